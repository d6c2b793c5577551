"""What the engine wants done outside of it. Gateways and the node's shell perform these."""

from dataclasses import dataclass
from enum import IntEnum

from braidmq.engine.envelope import Death
from braidmq.engine.groups import Membership
from braidmq.engine.topics import Consumer, PartitionView, Subscription, Topic
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
class DeliveriesTimedOut:
    """A consumer did not answer for these in its visibility timeout: they are not its any more."""

    consumer: Consumer
    view: PartitionView
    start: int
    stop: int


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


@dataclass(frozen=True, slots=True)
class MemberNotice:
    """What a member of a group has is another now. It comes before any delivery that follows
    from it."""

    group: str
    membership: Membership
    consumers: tuple[Consumer, ...]
    """Where deliveries to the member go."""


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
    | DeliveriesTimedOut
    | ActiveConsumerChanged
    | TopicDeleted
    | SubscriptionReady
    | MemberNotice
    | PressureChanged
    | DeadLettered
)
