"""Who a producer is to the broker: somebody whose messages are numbered, so that one that is sent
again is not written twice."""

import asyncio
from typing import Protocol, TypedDict

from braidmq.client.connection import Channel
from braidmq.client.errors import ConnectionLost, TransactionAborted, Unsupported
from braidmq.model.errors import BraidError
from braidmq.wire.amqp.methods import Method, TxBegin, TxBeginOk, TxProducer, TxProducerOk


class Identity(Protocol):
    outlives_channel: bool
    """Whether another channel may go on after the broker refused something on one."""

    async def attach(self, channel: Channel, sequence: int) -> None:
        """Number the channel's messages, from ``sequence`` on."""

    def fail(self, error: BraidError) -> None:
        """There will be no channel any more."""


def require_ours(channel: Channel) -> None:
    if not channel.connection.can_transact:
        raise Unsupported(
            "this broker supports neither idempotent producers nor their transactions"
        )


class NumberedProducer:
    """A producer with an id; with a name, one that shuts out those who had the name before."""

    outlives_channel = True

    def __init__(self, name: str) -> None:
        self._name = name
        self.id = 0
        self.epoch = 0

    async def attach(self, channel: Channel, sequence: int) -> None:
        require_ours(channel)
        method = TxProducer(self._name, self.id, self.epoch, sequence)
        answer = await channel.call(method, TxProducerOk)
        self.id, self.epoch = answer.producer, answer.epoch

    def fail(self, error: BraidError) -> None:
        pass


class Application(TypedDict):
    """A program that numbers its transactions: each is committed once, whoever tries again.

    ```python
    about = braidmq.Application(name="billing", epoch=1, sequence=17)
    async with broker.transaction(application=about) as tx:
        await tx.publish("invoices", b"…")
    ```
    """

    name: str
    epoch: int
    sequence: int


class TransactionBranch:
    """A branch of a transaction. ``begun`` is done when the broker has it, or will not."""

    outlives_channel = False

    def __init__(self, begin: TxBegin, loop: asyncio.AbstractEventLoop) -> None:
        self._begin = begin
        self.number = 0
        """What the broker calls it, once begun: another of its name has another number."""
        self.begun: asyncio.Future[None] = loop.create_future()
        self.unsure = False
        """Whether something was sent that can't be sent again: acknowledgements."""

    @property
    def name(self) -> str:
        return self._begin.name

    def announce(self, channel: Channel) -> None:
        """Begin, and don't wait for the answer: nothing is known to be wrong with a name that
        nobody else has. What is wrong nevertheless closes the channel."""
        require_ours(channel)
        channel.ask(self._begin_at(0)).add_done_callback(self._answered)

    def _answered(self, answer: "asyncio.Future[Method]") -> None:
        error = None if answer.cancelled() else answer.exception()
        if isinstance(error, BraidError) and not isinstance(error, ConnectionLost):
            self.fail(error)
        elif error is None and isinstance(begun := answer.result(), TxBeginOk):
            self._is_begun(begun)

    def _is_begun(self, answer: TxBeginOk) -> None:
        self.number = answer.number
        if not self.begun.done():
            self.begun.set_result(None)

    def _begin_at(self, sequence: int) -> TxBegin:
        begin = self._begin
        # Whoever begins it again begins a new one if it was aborted meanwhile.
        join = begin.join or (self.begun.done() and self.begun.exception() is None)
        return TxBegin(
            begin.name,
            begin.branch,
            join,
            self.number,
            sequence,
            begin.timeout_ms,
            begin.session_ms,
            begin.producer,
            begin.epoch,
            begin.application,
            begin.application_epoch,
            begin.application_sequence,
        )

    async def attach(self, channel: Channel, sequence: int) -> None:
        require_ours(channel)
        try:
            answer = await channel.call(self._begin_at(sequence), TxBeginOk)
        except ConnectionLost:
            raise
        except BraidError as error:
            self.fail(error)
            raise
        self._is_begun(answer)
        if self.unsure:
            raise TransactionAborted(
                "the connection was lost, and with it the acknowledgements of the transaction"
            )

    def fail(self, error: BraidError) -> None:
        if not self.begun.done():
            self.begun.set_exception(error)
            self.begun.exception()  # if nobody waits for it, that is no news
