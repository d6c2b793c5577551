"""What a channel sends, in order."""

from typing import TYPE_CHECKING

from braidmq.gateways.amqp.errors import translate
from braidmq.gateways.answering import Answers, Reply
from braidmq.model.errors import StorageError
from braidmq.model.ids import Lsn
from braidmq.wire.amqp.methods import Method, method_frame

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
            self.give_once_durable(self._connection.broker, lsn, Reply(data))

    def follow(self, data: bytes) -> None:
        """Send behind a reply that waits."""
        if not self.is_over:
            self._connection.hold_back(len(data))
            self.give_once_durable(self._connection.broker, None, Reply(data))

    def encode(self, answer: Reply) -> bytes:
        self._connection.held_bytes -= len(answer.data)
        return answer.data

    def fail(self, failure: StorageError) -> None:
        self._connection.close(translate(failure))

    def end(self) -> None:
        self._connection.held_bytes -= sum(len(each.data) for each in self.waiting)
        super().end()
