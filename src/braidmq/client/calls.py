"""Calls: a request to a queue, and the answer straight to who asked, with no queue between.

AMQP's direct reply-to: who asks consumes from a pseudo-queue on the channel that publishes, and the
broker puts an address into the request. It goes with the channel, and with it answers on their way.
"""

import asyncio
import uuid
from itertools import count
from typing import Final

from braidmq.client.connection import Channel
from braidmq.client.consuming import ChannelAnswers
from braidmq.client.errors import CallFailed, CallTimedOut, ConnectionLost
from braidmq.client.link import Link
from braidmq.client.message import Message, text_of
from braidmq.client.metadata import Metadata
from braidmq.client.publishing import Publishing, Value, unroutable
from braidmq.model.errors import BadRequest, BraidError
from braidmq.wire.amqp.client import DeliveryRun, deliveries
from braidmq.wire.amqp.methods import BasicConsume, BasicConsumeOk, BasicReturn
from braidmq.wire.amqp.properties import decode_properties

REPLY_TO: Final = "amq.rabbitmq.reply-to"
ERROR: Final = "x-error"
"""A header of an answer: what went wrong."""
CALL_S = 30.0


class Calls(Publishing):
    """Requests of this program that wait for their answers, on one channel."""

    def __init__(self, link: Link) -> None:
        super().__init__(link, linger_ms=0)
        self._answers: ChannelAnswers | None = None
        self._calls: dict[str, asyncio.Future[Message]] = {}
        self._ids = (f"{uuid.uuid4().hex}-{number}" for number in count())

    async def call(
        self, topic: str, value: Value, timeout_s: float, exchange: str, metadata: Metadata
    ) -> Message:
        for taken in ("reply_to", "correlation_id"):
            if taken in metadata:
                raise BadRequest(f"{taken} of a call is how its answer finds back: leave it out")
        # A request that nobody waits for any more is better not carried out.
        request: Metadata = {"ttl_ms": max(1, int(timeout_s * 1000)), **metadata}
        name = next(self._ids)
        request["reply_to"], request["correlation_id"] = REPLY_TO, name
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._calls[name] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self.send(topic, value, exchange=exchange, **request)
                reply = await answer
        except TimeoutError:
            raise CallTimedOut(
                f"no answer came within {timeout_s:g} s to a call of {topic!r}"
            ) from None
        finally:
            del self._calls[name]
            if answer.done() and not answer.cancelled():
                answer.exception()  # somebody else's news, if it was not raised above
        if (error := reply.headers.get(ERROR)) is not None:
            raise CallFailed(str(error))
        return reply

    async def attached(self, channel: Channel) -> None:
        self._answers = ChannelAnswers(channel, REPLY_TO)
        self._answers.end()  # answers to calls need none
        await channel.call(BasicConsume(REPLY_TO, "r", no_ack=True), BasicConsumeOk)
        await super().attached(channel)

    def on_deliveries(self, run: DeliveryRun) -> None:
        for message in deliveries(run, Message, self._answers):
            waiting = self._calls.get(message.correlation_id or "")
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    def on_return(self, method: BasicReturn, properties: bytes, body: bytes) -> None:
        # Not as it was sent: the broker has put the address in.
        name = decode_properties(properties).correlation_id or ""
        if (waiting := self._calls.get(name)) is not None and not waiting.done():
            waiting.set_exception(unroutable(method))

    def detached(self) -> None:
        was_attached = self._channel is not None
        super().detached()
        if was_attached:
            lost = ConnectionLost(
                "the connection was lost before the answer came, and the request may have been"
                " carried out",
                remedy="Call again if it may be carried out twice",
            )
            self._lose(lost)
            self.drop_sent()  # nobody waits for the answers

    def on_closed(self, error: BraidError) -> None:
        super().on_closed(error)
        self._lose(error)

    def fail(self, error: BraidError) -> None:
        super().fail(error)
        self._lose(error)

    def _lose(self, error: BraidError) -> None:
        """Whatever is answered now is answered to nobody."""
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(error)


def reply_metadata(message: Message, error: object, metadata: Metadata) -> tuple[str, Metadata]:
    """Where an answer to a message goes, and what it says."""
    address = message.reply_to
    if not address:
        raise BadRequest("the message asks for no answer: it has no reply_to")
    said: Metadata = {**metadata}
    if message.correlation_id is not None:
        said.setdefault("correlation_id", message.correlation_id)
    if error is not None:
        said["headers"] = {**(said.get("headers") or {}), ERROR: text_of(error)}
    return address, said
