"""What can go wrong between Spark and a broker, each with a type and a remedy.

They travel from executors to the driver as text, so the message has to say all.
"""

import re

from braidmq.model.errors import BadRequest, BraidError, Kind, SetupError

OURS = re.compile(r"^braidmq\.(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
"""An error of ours in what Spark says: its class, and its words."""


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


class TopicRecreated(DataLoss):
    """A checkpoint stands in a log that is no more; its topic has a new one."""

    code = "topic-recreated"
    remedy = (
        "Begin with a new checkpoint, or set failOnDataLoss to false: the new log is then read from"
        " its beginning"
    )


class StaleCheckpoint(BraidError):
    """A query begins again with numbers that its application has used up."""

    kind = Kind.CONFLICT
    code = "stale-checkpoint"
    remedy = (
        "With a new checkpoint give the application a new applicationEpoch; with an old one from a"
        " backup, what it would write is there already"
    )


class TopicFull(BraidError):
    kind = Kind.REFUSED
    code = "topic-full"
    remedy = "Let its consumers catch up, or raise its limits"


class BatchGivenUp(BraidError):
    """All tasks of a batch were silent for too long, so that the broker gave it up."""

    kind = Kind.CONFLICT
    code = "batch-given-up"
    remedy = "Do the batch again: nothing of it was written. A longer sessionSeconds helps"


class RowTooLarge(BraidError):
    kind = Kind.TOO_LARGE
    code = "row-too-large"
    remedy = "Keep values of that size elsewhere, and send where they are"


class LakeChanged(BraidError):
    """Somebody has written to a lake that was to be overwritten."""

    kind = Kind.CONFLICT
    code = "lake-changed"
    remedy = "Run it again: nothing was changed"


class LakeUnreachable(BraidError):
    """The object store does not answer, or not to us."""

    kind = Kind.STORAGE
    code = "lake-unreachable"
    remedy = (
        "Look at its address and at the options storage.…, or --storage; what is in none of them"
        " comes from the environment, as AWS_ACCESS_KEY_ID"
    )


class LakeUnsupported(BraidError):
    """A table of others that we would read or write wrongly."""

    kind = Kind.REFUSED
    code = "lake-unsupported"
    remedy = "Use delta-spark for this table"


class WrongSchema(BadRequest):
    """Rows that do not fit the table; nothing of them was committed."""

    code = "wrong-schema"


class LakeVacuumed(BraidError):
    kind = Kind.STORAGE
    code = "lake-vacuumed"
    remedy = "Read a later version, or vacuum with a longer retention"


class PipelineFailed(BraidError):
    """Spark gave up; the message is what it said."""

    kind = Kind.REFUSED
    code = "pipeline-failed"


AWAY = frozenset({BrokerUnreachable.__name__})
PASSING = frozenset({"StorageError", "HttpError", TopicFull.__name__, LakeUnreachable.__name__})
"""Of ours, what may go well the next time. All else of ours will be the same again."""


def said_by(error: BaseException) -> str:
    """What Spark said, without plans and the stack of its JVM; of an error of ours, its words."""
    text = str(error)
    if ours := OURS.search(text):
        return ours[2]
    for rest in ("\n\nJVM stacktrace", "=== Streaming Query ==="):
        text = text.partition(rest)[0]
    return text.strip()[:2000]


def class_of(error: BaseException) -> str:
    """Of an error of ours, its class, also if Spark or a pipeline passed it on; else empty."""
    seen: BaseException | None = error
    while seen is not None:
        if ours := OURS.search(str(seen)):
            return ours[1]
        seen = seen.__cause__
    return ""
