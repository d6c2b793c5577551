"""Kafka's names for what jobs on Spark say: its columns, and what to use for options of its client.

Options that mean the same here are read under Kafka's names too (``options.py``). Those that name
parts of a Kafka client are refused with what to use instead: a job that moves here must not believe
that they still do something.
"""

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""As Kafka's source has them; ``headers`` follow with includeHeaders."""

TIMESTAMP_TYPE = "timestampType"
LOG_APPEND_TIME = 1
"""Kafka's number for times that the broker gives."""

_LOG_IN = "Give user and password, or token; an address with https:// is encrypted"
_NO_CLIENT = "Leave it out: there is no Kafka client here that would take it"

_INSTEAD = {
    "groupidprefix": "Give group: the stream's place is shown as this subscription's lag",
    "kafka.group.id": "Give group: the stream's place is shown as this subscription's lag",
    "kafka.auto.offset.reset": "Give startingOffsets",
    "kafka.enable.auto.commit": "Leave it out: the place of a stream is in its checkpoint",
    "kafka.max.poll.records": "Give splitBytes, or maxRecordsPerPartition",
    "kafkaconsumer.polltimeoutms": "Give retrySeconds",
    "fetchoffset.numretries": "Give retrySeconds",
    "fetchoffset.retryintervalms": "Give retrySeconds",
    "startingoffset": "Give startingOffsets",
    "kafka.acks": "Leave it out: what is written is on the broker's disk before it counts",
    "kafka.enable.idempotence": "Leave it out: delivery is exactly_once unless told otherwise",
    "kafka.transactional.id": "Give applicationId",
}
_FAMILIES = (
    ("kafka.security.", _LOG_IN),
    ("kafka.sasl.", _LOG_IN),
    ("kafka.ssl.", _LOG_IN),
    ("kafka.consumer.cache.", _NO_CLIENT),
    ("kafka.producer.cache.", _NO_CLIENT),
    ("kafka.", _NO_CLIENT),
)


def instead_of(option: str) -> str:
    """What to do about an option of Kafka's; empty: it is none. ``option`` in small letters."""
    if option in _INSTEAD:
        return _INSTEAD[option]
    return next((advice for prefix, advice in _FAMILIES if option.startswith(prefix)), "")
