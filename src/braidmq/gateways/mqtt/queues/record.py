"""A subscription to a durable queue, as its session keeps it."""

import msgspec


class QueueRecord(msgspec.Struct, array_like=True, frozen=True):
    filter: str
    topic: str
    """What its messages are published to: the filter without ``$share/{group}/``."""
    group: str
    qos: int
    explicit: bool
    identifier: int = 0
