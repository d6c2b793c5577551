"""The options of ``spark.read.format("braid")``, checked and typed. docs/spark.md lists them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from braidmq.model.limits import MIB
from braidmq.pipeline.errors import BadOption

_SPARKS = {"path", "checkpointlocation", "queryname"}
"""Options that Spark adds itself."""

READ_MODES = ("segments", "broker")
ISOLATIONS = ("read_committed", "read_uncommitted")
TABLES = ("depth", "lag", "inflight", "deadletters", "delayed")

Place = Literal["earliest", "latest"] | dict[str, dict[int, int]]
"""Everywhere the same, or by topic and partition an offset; -2 is the beginning and -1 the end."""

EARLIEST, LATEST = -2, -1

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
    starting_offsets: Place | None = None
    ending_offsets: Place | None = None
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    records_per_trigger_max: int = 0
    bytes_per_trigger_max: int = 0
    read_mode: str = "segments"
    fail_on_data_loss: bool = True
    group: str = ""
    isolation: str = "read_committed"
    split_bytes: int = 64 * MIB
    lease_s: int = 120
    poll_ms: int = 100
    push_filters: bool = False
    columns: tuple[str, ...] = ()
    """Of a message, in this order; none: all of them."""
    format: str = ""
    dead_letter_topic: str = ""
    table: str = ""


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Raises BadOption, naming the option as users write it."""
    return _checked(SourceOptions(**read_options(given, _READERS)))


def read_options(given: Mapping[str, str], readers: Readers) -> dict[str, Any]:
    """Options by attribute. Raises BadOption."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - {name.lower() for name in readers} - _SPARKS)
    if unknown:
        raise BadOption(
            f"there is no option {unknown[0]!r}", remedy=f"There are: {', '.join(sorted(readers))}"
        )
    values: dict[str, Any] = {}
    for name, (attribute, read) in readers.items():
        if name.lower() in options:
            values[attribute] = read(name, options[name.lower()].strip())
    return values


def _checked(options: SourceOptions) -> SourceOptions:
    if options.table:
        return options
    if bool(options.topic) == bool(options.topic_pattern):
        raise BadOption("one of the options topic and topicPattern is needed")
    if options.columns and options.format:
        raise BadOption("columns are for messages; with a format the schema names them")
    for end in ("starting", "ending"):
        offsets = getattr(options, f"{end}_offsets")
        if offsets is not None and getattr(options, f"{end}_timestamp_ms") is not None:
            raise BadOption(f"{end}Offsets and {end}Timestamp can't both be given")
    return options


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


def one_of(*words: str) -> Reader:
    def read(name: str, value: str) -> str:
        if value.lower() not in words:
            raise BadOption(f"{name} must be one of {', '.join(words)}, not {value!r}")
        return value.lower()

    return read


BROKER_READERS: Readers = {
    "url": ("url", _url),
    "user": ("user", text),
    "password": ("password", text),
    "token": ("token", text),
    "namespace": ("namespace", text),
    "retrySeconds": ("retry_s", positive),
}

_READERS: Readers = {
    **BROKER_READERS,
    "topic": ("topic", text),
    "topicPattern": ("topic_pattern", text),
    "startingOffsets": ("starting_offsets", _place),
    "endingOffsets": ("ending_offsets", _place),
    "startingTimestamp": ("starting_timestamp_ms", _time),
    "endingTimestamp": ("ending_timestamp_ms", _time),
    "maxRecordsPerTrigger": ("records_per_trigger_max", positive),
    "maxBytesPerTrigger": ("bytes_per_trigger_max", size),
    "readMode": ("read_mode", one_of(*READ_MODES)),
    "failOnDataLoss": ("fail_on_data_loss", boolean),
    "group": ("group", text),
    "isolation": ("isolation", one_of(*ISOLATIONS)),
    "splitBytes": ("split_bytes", size),
    "leaseSeconds": ("lease_s", positive),
    "pollMilliseconds": ("poll_ms", positive),
    "pushFilters": ("push_filters", boolean),
    "columns": ("columns", _names),
    "format": ("format", text),
    "deadLetterTopic": ("dead_letter_topic", text),
    "table": ("table", one_of(*TABLES)),
}
