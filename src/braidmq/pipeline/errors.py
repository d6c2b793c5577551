"""What can go wrong between Spark and a broker, each with a type and a remedy.

They travel from executors to the driver as text, so the message has to say all.
"""

from braidmq.model.errors import BadRequest, BraidError, Kind, SetupError


class BadOption(BadRequest):
    code = "bad-option"


class BrokerUnreachable(SetupError):
    code = "broker-unreachable"
    remedy = "Start it with `braid serve`, or correct the option url"


class DataLoss(BraidError):
    """What a query still had to read is gone."""

    kind = Kind.STORAGE
    code = "data-loss"
    remedy = (
        "Keep more (retention of the topic), read sooner, or set failOnDataLoss to false to go on"
        " with what is there"
    )


class StaleCheckpoint(BraidError):
    """A query begins again with numbers that its application has used up."""

    kind = Kind.CONFLICT
    code = "stale-checkpoint"
    remedy = (
        "With a new checkpoint give the application a new applicationEpoch; with an old one from a"
        " backup, what it would write is in the topic already"
    )


class TopicFull(BraidError):
    kind = Kind.REFUSED
    code = "topic-full"
    remedy = "Let its consumers catch up, or raise its limits"


class LakeChanged(BraidError):
    """Somebody has written to a lake that was to be overwritten."""

    kind = Kind.CONFLICT
    code = "lake-changed"
    remedy = "Run it again: nothing was changed"
