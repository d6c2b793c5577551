"""What the engine wants done outside of it. Gateways and the node's shell perform these."""

from dataclasses import dataclass
from enum import IntEnum

from braidmq.engine.topics import Consumer, Subscription, Topic


@dataclass(frozen=True, slots=True)
class ConsumerCancelled:
    """Its subscription is gone."""

    consumer: Consumer


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


Effect = (
    ConsumerCancelled | ActiveConsumerChanged | TopicDeleted | SubscriptionReady | PressureChanged
)
