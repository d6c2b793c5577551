"""What became of messages that were published for later, since the node started: counted, and the
latest of each topic kept to be looked at. A message without a delay never comes here."""

from collections import Counter, deque
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from braidmq.engine.hooks import Hooks
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic, TopicPartition

KEPT_MAX: Final = 100
"""Of each state in a topic."""
TOPICS_MAX: Final = 1000
"""Those that were last to end one have them kept, the others are only counted."""


class DelayEnd(StrEnum):
    DELIVERED = "delivered"
    """Its time came, and it was there for whoever subscribes or reads."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Before its time had come."""


class EndedDelay(NamedTuple):
    partition: int
    offset: int
    due_ms: int
    """By the wall clock, as ``ended_ms``."""
    ended_ms: int


class DelayEnds:
    def __init__(self, state: EngineState, hooks: Hooks) -> None:
        self._state = state
        self._counts: dict[int, Counter[DelayEnd]] = {}
        self._kept: dict[int, dict[DelayEnd, deque[EndedDelay]]] = {}
        """By topic; the one where something ended last is last."""
        hooks.topic_deleted.append(self._topic_deleted)

    def note(
        self, partition: TopicPartition, offset: int, due_ms: int, end: DelayEnd, now_ms: int
    ) -> None:
        topic, wall_ms = partition.topic, self._state.wall_ms
        counts = self._counts.get(topic.id)
        if counts is None:
            counts = self._counts[topic.id] = Counter()
        counts[end] += 1
        self._state.totals.of(topic.namespace).delays_ended[end] += 1
        kept = self._kept.pop(topic.id, None)
        if kept is None:
            kept = {each: deque(maxlen=KEPT_MAX) for each in DelayEnd}
            if len(self._kept) >= TOPICS_MAX:
                del self._kept[next(iter(self._kept))]
        self._kept[topic.id] = kept
        kept[end].append(EndedDelay(partition.number, offset, wall_ms(due_ms), wall_ms(now_ms)))

    def counts(self, topic: Topic) -> Counter[DelayEnd]:
        return Counter(self._counts.get(topic.id))

    def latest(self, topic: Topic, end: DelayEnd, limit: int = KEPT_MAX) -> list[EndedDelay]:
        """The last ones first."""
        kept = self._kept.get(topic.id)
        return [] if kept is None else list(islice(reversed(kept[end]), limit))

    def _topic_deleted(self, topic: Topic) -> None:
        self._counts.pop(topic.id, None)
        self._kept.pop(topic.id, None)
