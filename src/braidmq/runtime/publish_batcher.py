"""Publishes of one turn to one topic, appended together.

Two hundred producers that send one message each are two hundred reads of sockets, but need not be
two hundred journal entries: consecutive publishes to the same topic become one batch. It is
appended at the latest when the turn ends, and before anything else is done with the engine, so
nobody can see that it waited.
"""

from typing import Protocol

from braidmq.engine.engine import Engine
from braidmq.engine.topics import Topic
from braidmq.model.errors import BraidError, StorageError
from braidmq.model.ids import Lsn
from braidmq.record.batch import RecordBatch

BATCH_BYTES_MAX = 1 << 20


class Publisher(Protocol):
    """Who wants to know that its publishes are safe."""

    def expect(self, count: int) -> object:
        """A ticket for messages published now."""

    def expect_more(self, ticket: object, count: int) -> None:
        """Further messages, right behind those of the ticket."""

    def confirmed(self, ticket: object, failure: StorageError | None) -> None: ...

    @property
    def wants_places(self) -> bool:
        """Whether it is to be told where its messages are."""

    def placed(self, ticket: object, topic: Topic, offset: int) -> None:
        """The messages of a ticket are in the topic's first partition, from ``offset`` on."""


class PendingBatch:
    __slots__ = ("batch", "durable", "placing", "tickets", "topic")

    def __init__(self, topic: Topic, durable: bool, batch: RecordBatch) -> None:
        self.topic = topic
        self.durable = durable
        self.batch = batch
        self.tickets: list[tuple[Publisher, object]] = []
        self.placing: list[tuple[Publisher, object, int]] = []
        """Of those who want to know where theirs are: which is the first of each."""

    def takes(self, topic: Topic, durable: bool, batch: RecordBatch) -> bool:
        if self.topic is not topic or self.durable != durable or self.batch.size > BATCH_BYTES_MAX:
            return False
        batch.place(self.batch.base_offset + self.batch.count)
        return self.batch.can_absorb(batch)

    def expect(self, publisher: Publisher, count: int) -> None:
        if self.tickets and self.tickets[-1][0] is publisher:
            publisher.expect_more(self.tickets[-1][1], count)
        else:
            ticket = publisher.expect(count)
            self.tickets.append((publisher, ticket))
            if publisher.wants_places:
                self.placing.append((publisher, ticket, self.batch.count - count))

    def placed(self, offset: int) -> None:
        for publisher, ticket, first in self.placing:
            publisher.placed(ticket, self.topic, offset + first)

    def confirmed(self, failure: StorageError | None) -> None:
        for publisher, ticket in self.tickets:
            publisher.confirmed(ticket, failure)


def can_batch(topic: Topic, batch: RecordBatch) -> bool:
    """Topics that may refuse, split or thin out a batch get each publish by itself."""
    return topic.takes_any and topic.width == 1 and batch.value_bytes_max <= topic.message_bytes_max


class PublishBatcher:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: PendingBatch | None = None

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def add(
        self,
        topic: Topic,
        durable: bool,
        batch: RecordBatch,
        publisher: Publisher | None,
        now_ms: int,
    ) -> tuple[PendingBatch, Lsn | None] | None:
        """Take a publish; returns the run before it when that had to be appended first."""
        before = None
        count = batch.count
        if self._open is not None and self._open.takes(topic, durable, batch):
            self._open.batch.absorb(batch)
        else:
            before = self.flush(now_ms)
            batch.place(0)
            self._open = PendingBatch(topic, durable, batch)
        if publisher is not None:
            self._open.expect(publisher, count)
        return before

    def flush(self, now_ms: int) -> tuple[PendingBatch, Lsn | None] | None:
        """Append what was gathered; returns it with the LSN to wait for."""
        gathered, self._open = self._open, None
        if gathered is None:
            return None
        try:
            published = self._engine.publishing.publish(
                gathered.topic, gathered.batch, now_ms=now_ms, durable=gathered.durable
            )
        except StorageError as failure:
            gathered.confirmed(failure)
            return None
        except BraidError:
            # The topic is gone since: nobody would have got these, and nobody is wrong.
            gathered.confirmed(None)
            return None
        if gathered.placing:
            gathered.placed(published.placed[0][1])
        return gathered, published.lsn
