"""A pipeline as its file says it: sources, steps, sinks and when it runs. ADR 0012 says why TOML.

Nothing here needs Spark: what can be wrong with a file is found without it, in ``checking.py``.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from braidmq.model.errors import BadRequest, NotFound

AVAILABLE_NOW, ONCE = "available_now", "once"
SHIPPED: Final = Path(__file__).with_name("shipped")
SUFFIX = ".toml"
PARAMETER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
INTERVAL = re.compile(r"([1-9][0-9]*)(ms|s|m|h)")
UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}

WHOLE_PARTITION = "1000000g"
"""One task for all that a batch has of a partition, so that its order is kept."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
PipelineName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
Options = dict[str, str | int | float | bool]


class BadPipeline(BadRequest):
    code = "bad-pipeline"

    def __init__(
        self, message: str, *, remedy: str | None = None, at: "Place | None" = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.at = at


class Place(NamedTuple):
    """Where in a file: the table, which of that name, and the key in it."""

    table: str = ""
    number: int = 0
    key: str = ""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key nobody knows is refused: a misspelt option must not be taken for none."""


class Watermark(_Part, frozen=True):
    """How late a row may be: what is older than the newest by more than ``delay`` is dropped, and
    state of that age let go."""

    column: str
    delay: str


class Chunk(_Part, frozen=True):
    """A lake is read and written in parts of about so many rows, each a range of a column."""

    column: str
    rows: int | str

    @property
    def rows_wanted(self) -> int:
        return int(self.rows)


class SourceSpec(_Part, frozen=True):
    """One of topic, topic_pattern, lake, table and format."""

    name: Name
    topic: str = ""
    topic_pattern: str = ""
    lake: str = ""
    table: str = ""
    format: str = ""
    """Any source that Spark knows; what it needs is in ``options``."""
    stream: bool = False
    """Of a format: read it as a stream."""
    group: str = ""
    """Whose lag the broker shows; the pipeline's name if none is given."""
    ordered: bool | Literal["key"] | None = None
    """Messages of a partition stay in order, in one task; or only those of a key, in several;
    otherwise tasks share it as they come. A stream's are in order unless it says."""
    schema: str = ""
    watermark: Watermark | None = None
    chunk: Chunk | None = None
    options: Options = {}

    @property
    def is_topic(self) -> bool:
        return bool(self.topic or self.topic_pattern)

    def split_options(self, streams: bool) -> dict[str, str]:
        """Of the data source: how tasks share a partition."""
        ordered = streams if self.ordered is None else self.ordered
        if ordered == "key":
            return {"splitBy": "key"}
        return {"splitBytes": WHOLE_PARTITION} if ordered else {}


class StepSpec(_Part, frozen=True):
    """A view made by SQL of those before it, or by a Python function of some of them."""

    name: Name
    sql: str = ""
    python: str = ""
    inputs: list[str] = []
    watermark: Watermark | None = None
    options: Options = {}


class SinkSpec(_Part, frozen=True):
    """One of topic, lake, report, console, format and python."""

    source: str = msgspec.field(name="from")
    name: str = ""
    topic: str = ""
    lake: str = ""
    report: str = ""
    console: bool = False
    format: str = ""
    """Any sink that Spark knows; what it needs is in ``options``."""
    python: str = ""
    """A function of each batch: its DataFrame, its number, and ``options`` by name."""
    where: str = ""
    """Only rows for which this SQL is true."""
    select: list[str] = []
    """Only these columns, or SQL of them."""
    query: str = ""
    """Sinks with the same one are written by one query: what is before them is read once."""
    mode: Literal["append", "overwrite"] = "append"
    output_mode: Literal["append", "update", "complete"] = "append"
    title: str = ""
    chart: str = ""
    """Of a report: label and number, as ``reason,messages``; or label and points, and points that
    are only expected."""
    options: Options = {}

    @property
    def label(self) -> str:
        return self.name or f"{self.source}-{self.kind}"

    @property
    def kind(self) -> str:
        return next((kind for kind in SINK_KINDS if getattr(self, kind)), "")


SINK_KINDS = ("topic", "lake", "report", "console", "format", "python")
SOURCE_KINDS = ("topic", "topic_pattern", "lake", "table", "format")
STORAGE: Final = "storage."
"""Before each option of a lake's object store."""

SECRETS = re.compile(r"(?i)secret|password|token|credential|access_?key|account_?key")


def is_secret(option: str) -> bool:
    return SECRETS.search(option) is not None


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Nor how one gets there, of an object store: what is left says what is read and written."""
    return {
        name: value
        for name, value in options.items()
        if not is_secret(name) and not name.lower().startswith(STORAGE)
    }


PLACES = frozenset((*SOURCE_KINDS, *SINK_KINDS, "options"))
"""Keys of sources and sinks that say what is read and written."""


class Definition(_Part, frozen=True):
    name: PipelineName
    description: str = ""
    trigger: str = AVAILABLE_NOW
    checkpoint: str = ""
    retries: Annotated[int, Meta(ge=0, le=1000)] = 3
    """How often in a row a stream that Spark gave up is begun again from its checkpoint."""
    parameters: dict[str, str | int | float] = {}
    spark: dict[str, str | int | bool] = {}
    sources: list[SourceSpec] = msgspec.field(name="source", default_factory=list)
    steps: list[StepSpec] = msgspec.field(name="step", default_factory=list)
    sinks: list[SinkSpec] = msgspec.field(name="sink", default_factory=list)
    known_by: dict[str, str] = {}
    """Parameters that say what is read and written: with its name, what a run is known by."""
    differs_by: dict[str, str] = {}
    """Of these, those that are not as the file has them."""

    @property
    def streams(self) -> bool:
        return any(self.is_stream(each) for each in self.sources)

    def is_stream(self, source: SourceSpec) -> bool:
        return self.trigger != ONCE and (source.is_topic or source.stream)

    @property
    def chunked(self) -> SourceSpec | None:
        """The source that is read in chunks."""
        return next((each for each in self.sources if each.chunk is not None), None)

    @property
    def resumes(self) -> bool:
        """Whether a run that was stopped goes on where it was, by what is in its checkpoint."""
        return self.streams or self.chunked is not None

    @property
    def queries(self) -> dict[str, list[SinkSpec]]:
        """Sinks by the query that writes them."""
        found: dict[str, list[SinkSpec]] = {}
        for sink in self.sinks:
            found.setdefault(sink.query or sink.label, []).append(sink)
        return found

    @property
    def interval(self) -> str:
        """As Spark writes it; empty: until all that is there is done."""
        found = INTERVAL.fullmatch(self.trigger)
        return f"{found[1]} {UNITS[found[2]]}" if found else ""

    @property
    def checkpoint_dir(self) -> str:
        """Runs that read or write something else have another: offsets of one topic in the
        checkpoint of another would be taken for its own."""
        if self.checkpoint and not self._is_in_object_store:
            return self.checkpoint
        if self.checkpoint:
            known = hashlib.sha256(self.checkpoint.encode()).hexdigest()[:12]
            return str(state_dir() / f"{self.name}@{known}")
        if not self.differs_by:
            return str(state_dir() / self.name)
        said = msgspec.json.encode(sorted(self.differs_by.items()))
        return str(state_dir() / f"{self.name}@{hashlib.sha256(said).hexdigest()[:12]}")

    @property
    def _is_in_object_store(self) -> bool:
        """Whether the checkpoint is meant to be beside a lake where Spark gets with jars only."""
        lakes = [each.lake for each in self.sources] + [each.lake for each in self.sinks]
        return any("://" in each and self.checkpoint.startswith(f"{each}/") for each in lakes)


def state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "braidmq" / "pipelines"


# --- finding and reading ---


def shipped_names() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob(f"*{SUFFIX}"))


def find(name: str) -> Path:
    """A file, or a pipeline that comes with BraidMQ."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = SHIPPED / f"{name}{SUFFIX}"
    if "/" not in name and shipped.is_file():
        return shipped
    raise NotFound(
        f"there is no file {name!r}",
        remedy=f"Give a path, or one that comes with BraidMQ: {', '.join(shipped_names())}",
    )


def load(
    path: Path,
    values: Mapping[str, str] | None = None,
    *,
    data_here: bool = True,
    storage: Mapping[str, str] | None = None,
) -> Definition:
    """Raises BadPipeline, saying in which line it is wrong.

    ``data_here``: paths of data are of this machine, and what is read has to be there.
    ``storage``: options of the object store, for all lakes in one.
    """
    from braidmq.pipeline.checking import check, place_of

    try:
        text = path.read_text("utf-8")
        raw = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise BadPipeline(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise BadPipeline(f"{path}: not valid UTF-8") from None
    try:
        if stranger := OURS_ALONE & set(raw):
            raise BadPipeline(f"there is no key {min(stranger)!r}", at=Place(key=min(stranger)))
        given = dict(values or {})
        filled = _stored(_filled(raw, given), dict(storage or {}))
        found = msgspec.convert(filled | _identity(raw, given), Definition)
        check(found, raw, path.parent, data_here)
    except msgspec.ValidationError as error:
        line = line_of(text, place_of(str(error)))
        raise BadPipeline(f"{path}:{line}: {error}") from None
    except BadPipeline as error:
        where = f"{path}:{line_of(text, error.at)}" if error.at else str(path)
        raise BadPipeline(f"{where}: {error.args[0]}", remedy=error.remedy) from None
    return found


def _stored(raw: dict[str, Any], storage: dict[str, str]) -> dict[str, Any]:
    """Options of the object store beside each lake that is in one; what a file says wins."""
    if not storage:
        return raw
    lakes = [
        part
        for part in (*raw.get("source", ()), *raw.get("sink", ()))
        if isinstance(part, dict) and "://" in str(part.get("lake", ""))
    ]
    if not lakes:
        raise BadPipeline(
            "options of an object store are given, and no lake of the pipeline is in one",
            remedy="Take --storage out, or give the lake an address such as s3://bucket/lake",
        )
    named = {f"{STORAGE}{name}": value for name, value in storage.items()}
    for part in lakes:
        part["options"] = named | dict(part.get("options", {}))
    return raw


OURS_ALONE: Final = frozenset({"known_by", "differs_by"})
"""Parts of a definition that are not in its file."""


def _identity(raw: dict[str, Any], given: dict[str, str]) -> dict[str, dict[str, str]]:
    used: set[str] = set()
    for part in (*raw.get("source", ()), *raw.get("sink", ())):
        if isinstance(part, dict):
            for key in PLACES & set(part):
                said = part[key]
                if isinstance(said, dict):
                    said = without_secrets(said)
                used |= set(PARAMETER.findall(str(said)))
    defaults = {name: str(value) for name, value in raw.get("parameters", {}).items()}
    known = {name: (defaults | given)[name] for name in sorted(used & set(defaults))}
    differ = {name: value for name, value in known.items() if value != defaults[name]}
    return {"known_by": known, "differs_by": differ}


HEADER = re.compile(r"\s*\[{1,2}\s*([A-Za-z_]+)\s*\]{1,2}")
QUOTES = re.compile(r"\"\"\"|'''")


def line_of(text: str, at: Place | None) -> int:
    """Of a key, or of the table if it has none; parsers of TOML do not tell."""
    wanted = at or Place()
    key = re.compile(rf"""\s*["']?{re.escape(wanted.key)}["']?\s*[=.]""")
    table, seen, found, quoted = "", 0, 1, False
    for number, line in enumerate(text.splitlines(), 1):
        if not quoted and (header := HEADER.match(line)):
            table = header[1]
            seen += table == wanted.table
            if table == wanted.table and seen == wanted.number + 1:
                found = number
        here = table == wanted.table and (not table or seen == wanted.number + 1)
        if here and not quoted and wanted.key and key.match(line):
            return number
        quoted ^= len(QUOTES.findall(line)) % 2 == 1
    return found


def _filled(raw: dict[str, Any], given: dict[str, str]) -> dict[str, Any]:
    parameters = raw.get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadPipeline("parameters must be a table of names and values")
    if strangers := sorted(set(given) - set(parameters)):
        known = ", ".join(sorted(parameters)) or "none"
        raise BadPipeline(f"there is no parameter {strangers[0]!r}; there are: {known}")
    defaults = {name: str(value) for name, value in parameters.items()}

    def value(name: str, of: tuple[str, ...] = ()) -> str:
        if name in of:
            raise BadPipeline(f"parameter {name!r} is made of itself")
        if name in given or "${" not in defaults.get(name, ""):
            return _value(name, defaults | given)
        return PARAMETER.sub(lambda found: value(found[1], (*of, name)), defaults[name])

    def fill(part: Any) -> Any:
        if isinstance(part, str):
            return PARAMETER.sub(lambda found: value(found[1]), part)
        if isinstance(part, list):
            return [fill(each) for each in part]
        if isinstance(part, dict):
            return {name: fill(each) for name, each in part.items()}
        return part

    return {name: part if name == "parameters" else fill(part) for name, part in raw.items()}


def _value(name: str, values: Mapping[str, str]) -> str:
    if name not in values:
        raise BadPipeline(f"${{{name}}} is not a parameter")
    if not values[name]:
        raise BadPipeline(f"parameter {name!r} needs a value: --set {name}=…")
    return values[name]
