"""What a channel sends, in order."""

from typing import TYPE_CHECKING

from braidmq.gateways.amqp.errors import translate
from braidmq.model.errors import StorageError
from braidmq.model.ids import Lsn
from braidmq.runtime.answers import Answers, Reply
from braidmq.wire.amqp.methods import ChannelCloseOk, Method, method_frame

if TYPE_CHECKING:
    from braidmq.gateways.amqp.connection import AmqpConnection


class ChannelOutput(Answers[Reply]):
    """Of one channel number. While a reply waits for the disk all that follows waits behind it:
    clients expect consume-ok before the deliveries, and delete-ok before basic.cancel. Who opens
    the number again before all is said goes on with it, and gets its open-ok after the close-ok."""

    def __init__(self, connection: "AmqpConnection", number: int) -> None:
        super().__init__(connection.send)
        self._connection = connection
        self._number = number

    def reply(self, method: Method, lsn: Lsn | None = None) -> None:
        """Once an entry is on disk, and after what was sent before."""
        data = method_frame(self._number, method)
        if lsn is None and not self.waiting:
            self._send(data)
        elif not self.is_over:
            self._connection.held_bytes += len(data)
            self.give_once_durable(self._connection.node_loop, lsn, Reply(data))

    def follow(self, data: bytes) -> None:
        """Send behind a reply that waits."""
        if not self.is_over:
            self._connection.hold_back(len(data))
            self.give_once_durable(self._connection.node_loop, None, Reply(data))

    def encode(self, answer: Reply) -> bytes:
        self._connection.held_bytes -= len(answer.data)
        return answer.data

    def fail(self, failure: StorageError) -> None:
        self._connection.close(translate(failure))

    def end(self) -> None:
        self._connection.held_bytes -= sum(len(each.data) for each in self.waiting)
        super().end()


class ChannelSender:
    """All that one channel sends goes this way, but for replies. What comes too late is not sent:
    the client has closed it, or somebody else has its number."""

    __slots__ = ("_connection", "_output", "is_closed")

    def __init__(self, connection: "AmqpConnection", output: ChannelOutput) -> None:
        self._connection = connection
        self._output = output
        self.is_closed = False

    def send(self, data: bytes) -> None:
        if not self._output.waiting and not self.is_closed:
            self._connection.send(data)
        elif not self.is_closed:
            self._output.follow(data)


class ClosedChannels:
    """Numbers without a channel on which something is still to be heard or said."""

    def __init__(self) -> None:
        self._closing: dict[int, ChannelOutput] = {}
        """Those that we have closed, until the client answers."""
        self._parting: dict[int, ChannelOutput] = {}
        """Of channels that both are done with, what waits for the disk."""

    def __contains__(self, number: int) -> bool:
        """Whether all that comes on it is to be ignored, but close and close-ok."""
        return number in self._closing

    def add(self, number: int, output: ChannelOutput) -> None:
        """We have closed it."""
        self._closing[number] = output

    def heard_close(self, number: int) -> None:
        """Both have closed it: each answers the other, and the client's answer is to come."""
        self._closing[number].reply(ChannelCloseOk())

    def heard_close_ok(self, number: int) -> None:
        self.part(number, self._closing.pop(number))

    def part(self, number: int, output: ChannelOutput) -> None:
        if output.waiting:
            self._parting[number] = output

    def take(self, number: int) -> ChannelOutput | None:
        """What a channel that is opened goes on with."""
        return self._closing.pop(number, None) or self._parting.pop(number, None)

    def end(self) -> None:
        """The connection is over."""
        for output in (*self._closing.values(), *self._parting.values()):
            output.end()
        self._closing.clear()
        self._parting.clear()
