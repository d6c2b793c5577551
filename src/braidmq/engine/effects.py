"""What the engine wants done outside of it. Gateways and the node's shell perform these."""

from dataclasses import dataclass
from enum import IntEnum

from braidmq.engine.envelope import Death
from braidmq.engine.topics import Consumer, Subscription, Topic
from braidmq.model.errors import PartitionQuarantined


@dataclass(frozen=True, slots=True)
class ConsumerCancelled:
    """Its subscription is gone."""

    consumer: Consumer


@dataclass(frozen=True, slots=True)
class ConsumerFailed:
    """It gets nothing any more: what it reads is quarantined."""

    consumer: Consumer
    error: PartitionQuarantined


@dataclass(frozen=True, slots=True)
class ActiveConsumerChanged:
    """Another consumer is served now, where only one is."""

    consumer: Consumer


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    topic: Topic


@dataclass(frozen=True, slots=True)
class SubscriptionReady:
    """A watched subscription may have something to hand out, or is gone. Said once: it has to be
    watched again."""

    subscription: Subscription


class Level(IntEnum):
    """How hard publishers are held back."""

    NORMAL = 0
    SLOW = 1
    BLOCKED = 2


@dataclass(frozen=True, slots=True)
class PressureChanged:
    level: Level
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """Messages of a topic that wants alerts of it became dead letters, together."""

    webhook: str
    death: Death
    targets: tuple[str, ...]
    """The topics they are in now."""
    first_offset: int
    """Where the first of them died."""
    count: int


Effect = (
    ConsumerCancelled
    | ConsumerFailed
    | ActiveConsumerChanged
    | TopicDeleted
    | SubscriptionReady
    | PressureChanged
    | DeadLettered
)
