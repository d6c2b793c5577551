"""The options of ``spark.read.format("braid")``, checked and typed. docs/spark.md lists them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from braidmq.model.limits import MIB
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.kafka import instead_of

_SPARKS = {"path", "checkpointlocation", "queryname"}
"""Options that Spark adds itself."""

READ_MODES = ("segments", "broker")
BY_OFFSET, BY_KEY = "offset", "key"
ISOLATIONS = ("read_committed", "read_uncommitted")
TABLES = ("depth", "subscriptions", "lag", "inflight", "deadletters", "delayed", "usage", "audit")

Place = Literal["earliest", "latest", "committed"] | dict[str, dict[int, int]]
"""Everywhere the same, or by topic and partition an offset; -2 is the beginning and -1 the end.
``committed``: the lowest offset that a subscription of the partition has not settled."""

EARLIEST, LATEST = -2, -1

Times = dict[str, dict[int, int]]
"""By topic and partition, milliseconds since 1970."""

TRIGGER_DELAY_MS = 15 * 60_000
"""A trigger that has too few records waits no longer: Kafka's figure."""

Reader = Callable[[str, str], object]
Readers = dict[str, tuple[str, Reader]]
"""Option as users write it → where it goes, and how it is read."""


@dataclass(frozen=True)
class BrokerOptions:
    """Which broker, as whom, and how patiently."""

    url: str = "http://127.0.0.1:8080"
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    token: str = field(default="", repr=False)
    namespace: str = "/"
    retry_s: float = 60.0


@dataclass(frozen=True)
class SourceOptions(BrokerOptions):
    topic: str = ""
    topic_pattern: str = ""
    topics: tuple[str, ...] = ()
    assigned: dict[str, tuple[int, ...]] | None = None
    """Only these partitions."""
    starting_offsets: Place | None = None
    ending_offsets: Place | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    starting_times: Times | None = None
    ending_times: Times | None = None
    unmatched_time: str = "latest"
    """Where to begin if no message is stamped at or after a time: there, or with an ``error``."""
    records_per_trigger_min: int = 0
    trigger_delay_max_ms: int = TRIGGER_DELAY_MS
    splits_min: int = 0
    records_per_split_max: int = 0
    records_per_trigger_max: int = 0
    bytes_per_trigger_max: int = 0
    read_mode: str = "segments"
    fail_on_data_loss: bool = True
    group: str = ""
    isolation: str = "read_committed"
    split_bytes: int = 64 * MIB
    split_by: str = BY_OFFSET
    """How tasks share a partition."""
    lease_s: int = 120
    poll_ms: int = 100
    push_filters: bool = False
    columns: tuple[str, ...] = ()
    """Of a message, in this order; none: all of them."""
    include_headers: bool | None = None
    kafka_columns: bool = False
    """Rows as Kafka's source has them; not an option but a format, ``braid_kafka``."""
    format: str = ""
    dead_letter_topic: str = ""
    table: str = ""

    @property
    def named_topics(self) -> list[str]:
        """Those that are wanted by name, and have to be there."""
        return [self.topic] if self.topic else [*self.topics, *(self.assigned or ())]

    @property
    def described(self) -> str:
        """What is read, for people."""
        return ", ".join(self.named_topics) or self.topic_pattern


OF_STREAMS = frozenset(
    {
        *("records_per_trigger_min", "records_per_trigger_max", "bytes_per_trigger_max"),
        *("trigger_delay_max_ms", "group", "poll_ms"),
    }
)
OF_BATCHES = frozenset({"ending_offsets", "ending_timestamp_ms", "ending_times", "push_filters"})


def parse_options(given: Mapping[str, str], *, kafka: bool = False) -> SourceOptions:
    """Raises BadOption, naming the option as users write it. ``kafka``: rows and defaults are as
    those of Kafka's source."""
    values = read_options(given, _READERS)
    if kafka:
        values = {"unmatched_time": "error", **values, "kafka_columns": True}
    return _checked(SourceOptions(**values))


def read_options(given: Mapping[str, str], readers: Readers) -> dict[str, Any]:
    """Options by attribute. Raises BadOption."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - {name.lower() for name in readers} - _SPARKS)
    if unknown:
        advice = instead_of(unknown[0]) or f"There are: {', '.join(sorted(readers))}"
        raise BadOption(f"there is no option {unknown[0]!r}", remedy=advice)
    values: dict[str, Any] = {}
    named: dict[str, str] = {}
    for name, (attribute, read) in readers.items():
        if name.lower() not in options:
            continue
        if attribute in named:
            raise BadOption(f"{named[attribute]} and {name} say the same", remedy="Give one")
        named[attribute] = name
        values[attribute] = read(name, options[name.lower()].strip())
    if values.get("token") and not {"user", "password"}.isdisjoint(values):
        raise BadOption("token is a login of its own", remedy="Leave out user and password")
    return values


LOGIN = frozenset({"user", "password", "token"})


def names_a_login(options: Mapping[str, object]) -> bool:
    """Whether they say who asks; then nobody else's token goes with them, maybe to another
    broker."""
    return not LOGIN.isdisjoint(name.lower() for name in options)


def _checked(options: SourceOptions) -> SourceOptions:
    if options.table:
        return options
    chosen = (options.topic, options.topic_pattern, options.topics, options.assigned)
    if sum(map(bool, chosen)) != 1:
        raise BadOption(
            "one of the options topic, topicPattern, subscribe, subscribePattern and assign is"
            " needed, and one alone"
        )
    if options.split_by == BY_KEY and options.records_per_split_max:
        raise BadOption(
            "maxRecordsPerPartition can't be promised with splitBy=key: of one key all go to one"
            " task",
            remedy="Give maxRecordsPerTrigger, or splitBytes",
        )
    if options.dead_letter_topic and not options.format:
        raise BadOption(
            "deadLetterTopic is for values that a format can't read, and none is given",
            remedy="Give format as well, or take it out",
        )
    if options.columns and options.format:
        raise BadOption("columns are for messages; with a format the schema names them")
    if options.include_headers is not None and (options.columns or options.format):
        raise BadOption(
            "includeHeaders is for all columns of messages: columns or schema name them"
        )
    for end in ("starting", "ending"):
        places = ("offsets", "timestamp_ms", "times")
        if sum(getattr(options, f"{end}_{each}") is not None for each in places) > 1:
            raise BadOption(
                f"only one of {end}Offsets, {end}Timestamp and {end}OffsetsByTimestamp can be given"
            )
    _check_trigger(options)
    return options


def check_kind(options: SourceOptions, *, streams: bool) -> None:
    """Raises BadOption for what only the other kind of reading would heed."""
    names = option_names(kafka=options.kafka_columns)
    unused = OF_BATCHES if streams else OF_STREAMS
    for each in fields(SourceOptions):
        if each.name in unused and getattr(options, each.name) != each.default:
            raise BadOption(
                f"{names[each.name]} is for {'what is read at once' if streams else 'streams'},"
                f" and this is {'a stream' if streams else 'read at once'}",
                remedy="Take it out",
            )


def _check_trigger(options: SourceOptions) -> None:
    least, most = options.records_per_trigger_min, options.records_per_trigger_max
    if most and least > most:
        raise BadOption(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    if options.trigger_delay_max_ms != TRIGGER_DELAY_MS and not least:
        raise BadOption("maxTriggerDelay is for minOffsetsPerTrigger, which is not given")


# --- one reader a kind of option ---


def text(name: str, value: str) -> str:
    return value


def _names(name: str, value: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in value.split(","))
    if not all(found) or len(set(found)) < len(found):
        raise BadOption(
            f"{name}: {value!r} is not a list of distinct names",
            remedy="Use a list such as key,value",
        )
    return found


def _address(name: str, value: str) -> str:
    """Host and port as Kafka's clients write them, or a URL; of the broker's HTTP listener."""
    if "," in value:
        raise BadOption(f"{name}: one address is needed, not several", remedy="Give the broker's")
    return _url(name, value if "://" in value else f"http://{value}")


def _assigned(name: str, value: str) -> dict[str, tuple[int, ...]]:
    remedy = 'As {"orders": [0, 1], "payments": [0]}'
    try:
        found = msgspec.json.decode(value.encode(), type=dict[str, list[int]])
    except msgspec.DecodeError as error:
        raise BadOption(f"{name}: {value!r} can't be read: {error}", remedy=remedy) from None
    if not found or not all(found.values()) or min(map(min, found.values())) < 0:
        raise BadOption(f"{name}: {value!r} names no partitions", remedy=remedy)
    return {topic: tuple(sorted(set(numbers))) for topic, numbers in found.items()}


def _times(name: str, value: str) -> Times:
    try:
        found = msgspec.json.decode(value.encode(), type=Times)
    except msgspec.DecodeError as error:
        raise BadOption(
            f"{name}: {value!r} can't be read: {error}",
            remedy='Milliseconds since 1970, as {"orders": {"0": 1767225600000}}',
        ) from None
    if any(time_ms < 0 for times in found.values() for time_ms in times.values()):
        raise BadOption(f"{name}: times must be 0 or above")
    return found


_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|)")
_UNITS_MS = {
    **{"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000},
    **{"h": 3_600_000, "d": 86_400_000},
}


def _duration_ms(name: str, value: str) -> int:
    found = _DURATION.fullmatch(value.lower())
    if found is None or not int(found[1]):
        raise BadOption(f"{name}: {value!r} is not a time", remedy="Use one such as 30s or 15m")
    return int(found[1]) * _UNITS_MS[found[2]]


def _url(name: str, value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise BadOption(
            f"{name}: {value!r} is not a URL", remedy="Use a URL such as http://127.0.0.1:8080"
        )
    return value.rstrip("/")


def boolean(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise BadOption(f"{name} must be true or false, not {value!r}")
    return value.lower() == "true"


def positive(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise BadOption(f"{name} must be a number above 0, not {value!r}")
    return int(value)


_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(name: str, value: str) -> int:
    """``64m`` is 64 MiB, as Spark writes sizes."""
    number = value.lower().removesuffix("b")
    unit = _SIZES.get(number[-1:], 1)
    return positive(name, number[:-1] if unit > 1 else number) * unit


def _time(name: str, value: str) -> int:
    """Milliseconds since 1970, or a date and time in ISO 8601; without a zone it is UTC."""
    if value.isdecimal():
        return int(value)
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        raise BadOption(
            f"{name}: {value!r} is not a time",
            remedy="Use a time such as 2026-01-31T08:00:00Z, or milliseconds",
        ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _place(name: str, value: str) -> Place:
    if value.lower() in ("earliest", "latest"):
        return "earliest" if value.lower() == "earliest" else "latest"
    try:
        found = msgspec.json.decode(value.encode(), type=dict[str, dict[int, int]])
    except msgspec.DecodeError as error:
        raise BadOption(
            f"{name}: {value!r} can't be read: {error}",
            remedy='earliest, latest, or as {"orders": {"0": 1200, "1": -2}}',
        ) from None
    if any(offset < EARLIEST for offsets in found.values() for offset in offsets.values()):
        raise BadOption(f"{name}: offsets must be -2 (earliest), -1 (latest) or 0 and above")
    return found


def _start(name: str, value: str) -> Place:
    return "committed" if value.lower() == "committed" else _place(name, value)


def one_of(*words: str) -> Reader:
    def read(name: str, value: str) -> str:
        if value.lower() not in words:
            raise BadOption(f"{name} must be one of {', '.join(words)}, not {value!r}")
        return value.lower()

    return read


def _table(name: str, value: str) -> str:
    """One of ``tables.SCHEMAS``; of those that people look for in vain, why."""
    if value.lower() == "metering":
        raise BadOption("there is no table 'metering'", remedy="What is counted is in 'usage'")
    return str(one_of(*TABLES)(name, value))


BROKER_READERS: Readers = {
    "url": ("url", _url),
    "user": ("user", text),
    "password": ("password", text),
    "token": ("token", text),
    "namespace": ("namespace", text),
    "retrySeconds": ("retry_s", positive),
    "kafka.bootstrap.servers": ("url", _address),
}

_READERS: Readers = {
    **BROKER_READERS,
    "topic": ("topic", text),
    "topicPattern": ("topic_pattern", text),
    "subscribe": ("topics", _names),
    "subscribePattern": ("topic_pattern", text),
    "assign": ("assigned", _assigned),
    "startingOffsets": ("starting_offsets", _start),
    "endingOffsets": ("ending_offsets", _place),
    "startingTimestamp": ("starting_timestamp_ms", _time),
    "endingTimestamp": ("ending_timestamp_ms", _time),
    "startingOffsetsByTimestamp": ("starting_times", _times),
    "endingOffsetsByTimestamp": ("ending_times", _times),
    "startingOffsetsByTimestampStrategy": ("unmatched_time", one_of("error", "latest")),
    "minOffsetsPerTrigger": ("records_per_trigger_min", positive),
    "maxTriggerDelay": ("trigger_delay_max_ms", _duration_ms),
    "minPartitions": ("splits_min", positive),
    "maxRecordsPerPartition": ("records_per_split_max", positive),
    "maxRecordsPerTrigger": ("records_per_trigger_max", positive),
    "maxOffsetsPerTrigger": ("records_per_trigger_max", positive),
    "maxBytesPerTrigger": ("bytes_per_trigger_max", size),
    "readMode": ("read_mode", one_of(*READ_MODES)),
    "failOnDataLoss": ("fail_on_data_loss", boolean),
    "group": ("group", text),
    "isolation": ("isolation", one_of(*ISOLATIONS)),
    "kafka.isolation.level": ("isolation", one_of(*ISOLATIONS)),
    "splitBytes": ("split_bytes", size),
    "splitBy": ("split_by", one_of(BY_OFFSET, BY_KEY)),
    "leaseSeconds": ("lease_s", positive),
    "pollMilliseconds": ("poll_ms", positive),
    "pushFilters": ("push_filters", boolean),
    "columns": ("columns", _names),
    "includeHeaders": ("include_headers", boolean),
    "format": ("format", text),
    "deadLetterTopic": ("dead_letter_topic", text),
    "table": ("table", _table),
}


def option_names(*, kafka: bool = False) -> dict[str, str]:
    """By attribute: the name that users write; ours, where Kafka has another, unless they are of
    ``kafka``."""
    every = list(_READERS.items())
    return {attribute: name for name, (attribute, _) in (every if kafka else reversed(every))}
