"""What the catalogue keeps of topics and subscriptions."""

from typing import Any

import msgspec

from braidmq.engine.policy import TopicKind


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


class SubscriptionRecord(msgspec.Struct, array_like=True):
    id: int
    topic: int
    name: str
    mode: str
    starts: list[int]
    """Where it began in each partition."""
    uncommitted: bool = False
