"""The options of ``format("braid_lake")``, checked and typed. docs/lake.md lists them."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from urllib.parse import unquote

from braidmq.pipeline.definition import STORAGE
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import Readers, boolean, positive, read_options, text
from braidmq.pipeline.sink_options import number

WITHIN = re.compile(r"(.+):(-?\d+):(-?\d+)")

CHECKPOINT_EVERY = 10
"""Commits, as delta-spark has it: a reader opens one Parquet file and at most nine of JSON."""


@dataclass(frozen=True)
class Within:
    """Rows whose ``column`` is ``start`` or more, and less than ``stop``."""

    column: str
    start: int
    stop: int

    def __str__(self) -> str:
        """As the option has it."""
        return f"{self.column}:{self.start}:{self.stop}"


@dataclass(frozen=True)
class LakeOptions:
    path: str = ""
    application: str = ""
    epoch: int = 0
    batch: int | None = None
    instance: str = ""
    version: int | None = None
    """Of the table: what is read, and what an overwriting replaces."""
    timestamp: datetime | None = None
    """What is read: the version of that time."""
    within: Within | None = None
    """What is read: only these rows."""
    partition_by: tuple[str, ...] = ()
    merge_schema: bool = False
    checkpoint_every: int = CHECKPOINT_EVERY
    storage: dict[str, str] = field(default_factory=dict, repr=False)
    """Of the object store; secrets are among them."""

    @property
    def is_local(self) -> bool:
        """On a file system that all machines see under one path."""
        return "://" not in self.path

    @property
    def owner(self) -> str:
        """Whose batches are counted; empty: the query's."""
        if not self.application:
            return ""
        return f"{self.application}/{self.epoch}" if self.epoch else self.application


def _within(name: str, value: str) -> Within:
    found = WITHIN.fullmatch(value)
    if found is None:
        raise BadOption(f"{name}: {value!r} is not a range", remedy="Write it as offset:0:1000000")
    return Within(found[1], int(found[2]), int(found[3]))


def _names(name: str, value: str) -> tuple[str, ...]:
    if value.lower() == "none":
        return ()
    found = tuple(each.strip() for each in value.split(","))
    if not all(found) or len(set(found)) < len(found):
        raise BadOption(
            f"{name}: {value!r} is not a list of distinct columns", remedy="Write it as date,topic"
        )
    return found


def _version(name: str, value: str) -> int | None:
    return None if value.lower() == "latest" else number(name, value)


def _moment(name: str, value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise BadOption(
            f"{name}: {value!r} is not a time", remedy="Use a time such as 2026-01-31T08:00:00Z"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


_READERS: Readers = {
    "path": ("path", text),
    "applicationId": ("application", text),
    "applicationEpoch": ("epoch", number),
    "batchId": ("batch", number),
    "applicationInstance": ("instance", text),
    "version": ("version", _version),
    "timestamp": ("timestamp", _moment),
    "range": ("within", _within),
    "partitionBy": ("partition_by", _names),
    "mergeSchema": ("merge_schema", boolean),
    "checkpointInterval": ("checkpoint_every", positive),
}


def parse_lake_options(given: Mapping[str, str]) -> LakeOptions:
    """Raises BadOption, naming the option as users write it."""
    storage = {
        name.lower().removeprefix(STORAGE): value
        for name, value in given.items()
        if name.lower().startswith(STORAGE)
    }
    others = {name: value for name, value in given.items() if not name.lower().startswith(STORAGE)}
    return _checked(LakeOptions(**read_options(others, _READERS), storage=storage))


def check_reading(options: LakeOptions) -> LakeOptions:
    """Raises BadOption for what only writing would heed."""
    _refuse(options, OF_WRITING, "for writing")
    return options


def check_writing(options: LakeOptions, mode: str) -> None:
    """Raises BadOption for what only reading, or another mode, would heed."""
    _refuse(options, {"timestamp"}, "for reading")
    if mode != "overwrite":
        _refuse(options, {"version"}, "for reading and overwriting, and this appends")


def _refuse(options: LakeOptions, unused: Set[str], what: str) -> None:
    names = {attribute: name for name, (attribute, _) in _READERS.items()}
    for each in fields(LakeOptions):
        if each.name in unused and getattr(options, each.name) != each.default:
            raise BadOption(f"{names[each.name]} is {what}", remedy="Take it out")


OF_WRITING = frozenset(
    {
        *("application", "epoch", "batch", "instance"),
        *("partition_by", "merge_schema", "checkpoint_every"),
    }
)


def _checked(options: LakeOptions) -> LakeOptions:
    path = options.path
    if not path:
        raise BadOption(
            "the option path is needed",
            remedy="Give the place of the lake; it is created if it does not exist",
        )
    if "://" not in path and not path.startswith("/"):
        raise BadOption(
            f"path: {path!r} is relative",
            remedy="Executors work in other directories: begin the path with / or a scheme",
        )
    if options.version is not None and options.timestamp is not None:
        raise BadOption("version and timestamp can't both be given")
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    if "://" not in path and options.storage:
        raise BadOption("options storage.… are for object stores, and path is a directory")
    return replace(options, path=path.rstrip("/") or "/")
