"""What the catalogue keeps of topics and subscriptions."""

from typing import Any

import msgspec

from braidmq.engine.policy import TopicKind


class Resize(msgspec.Struct, array_like=True, frozen=True):
    """The partitions of a topic became more or fewer."""

    before: int
    after: int
    ends: list[int]
    """Next offsets at the switch, of all partitions of before and after; 0 of one that was closed
    since."""


class TopicRecord(msgspec.Struct, array_like=True):
    """A topic in the catalogue."""

    id: int
    namespace: str
    name: str
    settings: dict[str, Any]
    partitions: list[int]
    created_ms: int
    attributes: dict[str, Any] = {}
    kind: TopicKind = "topic"
    width: int = 0
    """How many of the partitions, from the first, take records; 0: all, as an earlier BraidMQ
    wrote it."""
    resizes: tuple[Resize, ...] = ()
    """Oldest first, while there are records from before them."""
    closed: dict[int, int] = {}
    """Where partitions ended that were closed, by number."""


class SubscriptionRecord(msgspec.Struct, array_like=True):
    id: int
    topic: int
    name: str
    mode: str
    starts: list[int]
    """Where it began in each partition."""
    uncommitted: bool = False
