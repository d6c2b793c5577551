"""One AMQP channel: its two halves, and what it answers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidmq.gateways.amqp import transactions
from braidmq.gateways.amqp.consumers import Consumers
from braidmq.gateways.amqp.output import ChannelOutput, ChannelSender
from braidmq.gateways.amqp.publisher import Publisher
from braidmq.gateways.amqp.transactions import TxMode
from braidmq.model.ids import Lsn
from braidmq.runtime.sliced_work import Steps
from braidmq.wire.amqp.methods import Method

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection


class Channel:
    """Its halves do not know it: what knows itself is freed only when garbage is collected."""

    def __init__(
        self, connection: "AmqpConnection", number: int, output: ChannelOutput | None = None
    ) -> None:
        """``output``: of the channel that had its number, which has not said all yet."""
        self.connection = connection
        self.node_loop = connection.node_loop
        self.number = number
        self.vhost = connection.vhost
        self.output = output or ChannelOutput(connection, number)
        self._sender = ChannelSender(connection, self.output)
        self.tx = TxMode(connection.share)
        self.consumers = Consumers(connection, number, self._sender, self.tx)
        self.publisher = Publisher(connection, number, self._sender, self.tx, self.consumers)
        self.last_queue = ""

    @property
    def is_closed(self) -> bool:
        return self._sender.is_closed

    def send(self, data: bytes) -> None:
        self._sender.send(data)

    def reply(self, method: Method, lsn: Lsn | None = None) -> None:
        """Answer a method, once an entry is on disk if it is about one."""
        if not self._sender.is_closed:
            self.output.reply(method, lsn)

    def ending(self, *, left: bool = False) -> Steps:
        """Close it: from now on it gets nothing. What is left is to give back its consumers, one by
        one. ``left``: the client wants it, and is done with it."""
        self._sender.is_closed = True
        self.publisher.end()
        return self._ending(self.consumers.ending(), left)

    def _ending(self, consumers: Steps, left: bool) -> Iterator[object]:
        yield from consumers
        if left:
            transactions.left(self)
