"""What a caller of the engine can get wrong. Nothing has changed when one of these is raised."""

from braidmq.model.errors import BadRequest, BraidError, Conflict, Kind, NotFound


class UnknownTopic(NotFound):
    code = "unknown-topic"


class UnknownSubscription(NotFound):
    code = "unknown-subscription"


class UnknownPartition(NotFound):
    code = "unknown-partition"


class UnknownLetter(NotFound):
    """It was returned, removed or consumed, or never was one."""

    code = "unknown-dead-letter"


class LetterInFlight(Conflict):
    code = "dead-letter-in-flight"
    remedy = "Wait for the consumer's answer, or end the consumer"


class LetterUndecided(Conflict):
    """Who is to get a message alone can't be told of it before those that came earlier."""

    code = "transaction-open"
    remedy = "Try again when the transaction is over, or return it for all subscriptions"


class UnknownGroup(NotFound):
    code = "unknown-group"
    remedy = "Join the group first"


class UnknownLease(NotFound):
    """It was ended, or nobody renewed it in time."""

    code = "unknown-lease"


class UnknownTemplate(NotFound):
    code = "unknown-template"


class UnknownSchedule(NotFound):
    code = "unknown-schedule"


class BadSchedule(BadRequest):
    code = "bad-schedule"


class TooManySchedules(Conflict):
    code = "too-many-schedules"
    remedy = "Delete some"


class NotDelayed(NotFound):
    """The message is not waiting for its time any more, or never was."""

    code = "not-delayed"


class TopicExists(Conflict):
    code = "topic-exists"


class LimitReached(Conflict):
    """A namespace has as much of something as it may."""

    code = "limit-reached"
    remedy = "Delete some, or raise the quota of the namespace"


class StorageIsFixed(Conflict):
    """Records do not move between memory and disk."""

    code = "storage-is-fixed"
    remedy = "Delete it, and make it anew with the storage it is to have"


class StaleReceipt(Conflict):
    """The delivery it names is over: acknowledged, timed out or delivered again since."""

    code = "stale-receipt"
    remedy = "The message will be, or was, delivered again: handle that delivery"


class WrongMode(Conflict):
    """The subscription hands out its messages in another way than the caller needs."""

    code = "wrong-mode"
    remedy = "Use another name for the group, or delete the subscription first"


class ExclusiveConsumer(Conflict):
    """Somebody has the subscription for itself."""

    code = "exclusive-consumer"


class BadReceipt(BadRequest):
    code = "bad-receipt"


class BadPosition(BadRequest):
    code = "bad-position"


class PartitionClosed(Conflict):
    """It was taken away, and is only read to its end."""

    code = "partition-closed"
    remedy = "Publish to one of the topic's partitions, or without naming one"


class TooManyResizes(Conflict):
    """The topic still holds records from before as many resizes as it can keep."""

    code = "too-many-resizes"
    remedy = "Let its subscriptions catch up, or its retention remove the oldest records first"


class PartitionRequired(BadRequest):
    """The topic's partition strategy leaves the choice to publishers."""

    code = "partition-required"
    remedy = "Name a partition, or set partition_strategy of the topic to hash or round-robin"


class MessageTooLarge(BraidError):
    kind = Kind.TOO_LARGE
    code = "message-too-large"
    remedy = "Send less, or raise message_bytes_max of the topic"


class TooManyInFlight(BraidError):
    """Whoever receives from the subscription has as much unanswered as its topic allows."""

    kind = Kind.REFUSED
    code = "too-many-in-flight"
    remedy = "Answer for what was received, or raise in_flight_max of the topic"


class TopicFull(BraidError):
    """The topic has as many unsettled messages as its policy allows."""

    kind = Kind.REFUSED
    code = "topic-full"
    remedy = "Consume from it, raise its limit, or let it drop its oldest messages"
