"""What a caller of the engine can get wrong. Nothing has changed when one of these is raised."""

from braidmq.model.errors import BadRequest, BraidError, Conflict, Kind, NotFound


class UnknownTopic(NotFound):
    code = "unknown-topic"


class UnknownSubscription(NotFound):
    code = "unknown-subscription"


class UnknownPartition(NotFound):
    code = "unknown-partition"


class UnknownGroup(NotFound):
    code = "unknown-group"
    remedy = "Join the group first"


class UnknownLease(NotFound):
    """It was ended, or nobody renewed it in time."""

    code = "unknown-lease"


class UnknownTemplate(NotFound):
    code = "unknown-template"


class NotDelayed(NotFound):
    """The message is not waiting for its time any more, or never was."""

    code = "not-delayed"


class TopicExists(Conflict):
    code = "topic-exists"


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


class BadPartitionCount(BadRequest):
    code = "bad-partition-count"


class MessageTooLarge(BraidError):
    kind = Kind.TOO_LARGE
    code = "message-too-large"
    remedy = "Send less, or raise message_bytes_max of the topic"


class TopicFull(BraidError):
    """The topic has as many unsettled messages as its policy allows."""

    kind = Kind.REFUSED
    code = "topic-full"
    remedy = "Consume from it, raise its limit, or let it drop its oldest messages"
