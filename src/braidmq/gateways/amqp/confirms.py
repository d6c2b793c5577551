"""Publisher confirms of a channel, in the order of publishing.

A confirm may only say "everything up to here" when everything up to here is confirmed, so what is
ready early waits for what was published before it.
"""

import struct
from collections.abc import Callable

from braidmq.gateways.amqp.settings import UnconfirmedLimit
from braidmq.runtime.answers import Answer, Answers
from braidmq.wire.amqp.constants import FRAME_END
from braidmq.wire.amqp.methods import BasicNack, BasicPlaced, method_frame

ACK_FRAME = struct.Struct(">BHIHHQBB")
"""kind, channel, length, class, method, delivery tag, multiple, end"""


Placed = tuple[int, int, str, int, int]
"""The first of a run in its confirm, and how many (0: all); topic, partition, and offset of the
first."""


class Confirm(Answer):
    """Publishes of one run; ``accepted`` of its ``count`` messages were taken."""

    __slots__ = ("accepted", "count", "placed", "size")

    def __init__(self, count: int, accepted: int) -> None:
        super().__init__()
        self.count = count
        self.accepted = accepted
        self.size = 0
        self.placed: list[Placed] = []
        """For who asks where messages are: what is known of these."""

    @property
    def refused(self) -> int:
        """How many of its messages are not stored, and never will be."""
        return self.count - self.accepted if self.failure is None else self.count


class Confirms(Answers[Confirm]):
    def __init__(self, channel: int, send: Callable[[bytes], None]) -> None:
        super().__init__(send)
        self._channel = channel
        self._last_tag = 0
        self._published = 0
        self._size = 0

    def __len__(self) -> int:
        """Messages that are neither confirmed nor refused."""
        return self._published - self._last_tag

    def expect(self, count: int, accepted: int) -> Confirm:
        confirm = Confirm(count, accepted)
        self.waiting.append(confirm)
        self._published += count
        return confirm

    def expect_more(self, confirm: Confirm, count: int) -> None:
        confirm.count += count
        confirm.accepted += count
        self._published += count

    def weigh(self, size: int) -> None:
        """The size of what was expected last."""
        if self.waiting:
            self.waiting[-1].size += size
            self._size += size

    def is_behind(self, limit: UnconfirmedLimit) -> bool:
        return len(self) > limit.messages or self._size > limit.bytes

    def has_caught_up(self, limit: UnconfirmedLimit) -> bool:
        return 2 * len(self) <= limit.messages and 2 * self._size <= limit.bytes

    def ready(self) -> bytes:
        """The frames for what is done now, as few as possible; basic.nack is the error of those
        that the disk did not take."""
        if len(self.waiting) == 1 and self.waiting[0].done and not self.waiting[0].refused:
            confirm = self.waiting.popleft()
            self._size -= confirm.size
            places = self._places(confirm) if confirm.placed else b""
            self._last_tag += confirm.count
            return places + self._ack(confirm.count)
        frames: list[bytes] = []
        acked = 0
        while self.waiting and self.waiting[0].done:
            confirm = self.waiting.popleft()
            self._size -= confirm.size
            bad = confirm.refused
            if confirm.placed and not bad:
                frames.append(self._places(confirm))
            good = confirm.count - bad
            if good:
                acked += good
                self._last_tag += good
            if bad:
                frames.append(self._ack(acked))
                acked = 0
                frames += self._nacks(bad)
        frames.append(self._ack(acked))
        return b"".join(frames)

    def _places(self, confirm: Confirm) -> bytes:
        return b"".join(
            method_frame(
                self._channel,
                BasicPlaced(
                    self._last_tag + 1 + first, count or confirm.count, topic, partition, offset
                ),
            )
            for first, count, topic, partition, offset in confirm.placed
        )

    def _ack(self, count: int) -> bytes:
        if not count:
            return b""
        # Written by hand, because a publisher with a window of one gets one for each message.
        return ACK_FRAME.pack(1, self._channel, 13, 60, 80, self._last_tag, count > 1, FRAME_END)

    def _nacks(self, count: int) -> list[bytes]:
        self._last_tag += count
        # All before are confirmed, so ``multiple`` takes in just these; RabbitMQ always says it.
        return [method_frame(self._channel, BasicNack(self._last_tag, multiple=True))]
