"""A pipeline as its file says it: sources, steps, sinks and when it runs. ADR 0012 says why TOML.

Nothing here needs Spark: what can be wrong with a file is found without it.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from braidmq.model.errors import BadRequest, NotFound

AVAILABLE_NOW, ONCE = "available_now", "once"
SHIPPED: Final = Path(__file__).with_name("shipped")
SUFFIX = ".toml"
PARAMETER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
INTERVAL = re.compile(r"([1-9][0-9]*)(ms|s|m|h)")
UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}
PYTHON = re.compile(r"[\w./-]+:[A-Za-z_]\w*")

Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=64)]
PipelineName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=128)]
Options = dict[str, str | int | float | bool]


class BadPipeline(BadRequest):
    code = "bad-pipeline"


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key nobody knows is refused: a misspelt option must not be taken for none."""


class SourceSpec(_Part, frozen=True):
    """One of topic, topic_pattern, lake and table."""

    name: Name
    topic: str = ""
    topic_pattern: str = ""
    lake: str = ""
    table: str = ""
    group: str = ""
    """Whose lag the broker shows; the pipeline's name if none is given."""
    ordered: bool = True
    """Messages of a partition stay in order, in one task; otherwise many tasks share it."""
    schema: str = ""
    options: Options = {}

    @property
    def is_topic(self) -> bool:
        return bool(self.topic or self.topic_pattern)


class StepSpec(_Part, frozen=True):
    """A view made by SQL of those before it, or by a Python function of some of them."""

    name: Name
    sql: str = ""
    python: str = ""
    inputs: list[str] = []
    options: Options = {}


class SinkSpec(_Part, frozen=True):
    """One of topic, lake, report and console."""

    source: str = msgspec.field(name="from")
    name: str = ""
    topic: str = ""
    lake: str = ""
    report: str = ""
    console: bool = False
    mode: str = "append"
    title: str = ""
    chart: str = ""
    """Of a report: label and number, as ``reason,messages``."""
    options: Options = {}

    @property
    def label(self) -> str:
        return self.name or f"{self.source}-{self.kind}"

    @property
    def kind(self) -> str:
        return next((kind for kind in SINK_KINDS if getattr(self, kind)), "")


SINK_KINDS = ("topic", "lake", "report", "console")
SOURCE_KINDS = ("topic", "topic_pattern", "lake", "table")


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

    @property
    def streams(self) -> bool:
        return self.trigger != ONCE and any(each.is_topic for each in self.sources)

    @property
    def interval(self) -> str:
        """As Spark writes it; empty: until all that is there is done."""
        found = INTERVAL.fullmatch(self.trigger)
        return f"{found[1]} {UNITS[found[2]]}" if found else ""

    @property
    def checkpoint_dir(self) -> str:
        return self.checkpoint or str(_home() / self.name)


def _home() -> Path:
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


def load(path: Path, values: Mapping[str, str] | None = None) -> Definition:
    """Raises BadPipeline, saying where it is wrong."""
    try:
        raw = msgspec.toml.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise BadPipeline(f"{path}: {error}") from None
    except UnicodeDecodeError:
        raise BadPipeline(f"{path}: not valid UTF-8") from None
    try:
        filled = _filled(raw, dict(values or {}))
        found = msgspec.convert(filled, Definition)
        check(found)
    except (msgspec.ValidationError, BadPipeline) as error:
        raise BadPipeline(f"{path}: {error}") from None
    return found


def _filled(raw: dict[str, Any], given: dict[str, str]) -> dict[str, Any]:
    parameters = raw.get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadPipeline("parameters must be a table of names and values")
    if strangers := sorted(set(given) - set(parameters)):
        known = ", ".join(sorted(parameters)) or "none"
        raise BadPipeline(f"there is no parameter {strangers[0]!r}; there are: {known}")
    values = {name: str(value) for name, value in parameters.items()} | given

    def fill(part: Any) -> Any:
        if isinstance(part, str):
            return PARAMETER.sub(lambda found: _value(found[1], values), part)
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


# --- checking ---


def check(definition: Definition) -> None:
    """Raises BadPipeline."""
    if definition.trigger not in (AVAILABLE_NOW, ONCE) and not definition.interval:
        raise BadPipeline(
            f"trigger {definition.trigger!r} is not {AVAILABLE_NOW}, {ONCE} or a time such as 10s"
        )
    if not definition.sources or not definition.sinks:
        raise BadPipeline("a pipeline needs at least one [[source]] and one [[sink]]")
    known: list[str] = []
    for source in definition.sources:
        _one_of(f"source {source.name!r}", source, SOURCE_KINDS)
        _new(source.name, known)
    for step in definition.steps:
        _check_step(step, known)
        _new(step.name, known)
    labels: list[str] = []
    for sink in definition.sinks:
        _check_sink(definition, sink, known)
        _new(sink.label, labels, "sink")


def _new(name: str, known: list[str], what: str = "view") -> None:
    if name in known:
        raise BadPipeline(f"two {what}s are named {name!r}")
    known.append(name)


def _one_of(what: str, part: Any, kinds: Iterable[str]) -> None:
    if sum(bool(getattr(part, kind)) for kind in kinds) != 1:
        raise BadPipeline(f"{what} needs exactly one of {', '.join(kinds)}")


def _check_step(step: StepSpec, known: list[str]) -> None:
    what = f"step {step.name!r}"
    if bool(step.sql) == bool(step.python):
        raise BadPipeline(f"{what} needs exactly one of sql and python")
    if step.sql and step.inputs:
        raise BadPipeline(f"{what}: inputs are only for python; SQL names the views itself")
    if step.python and not PYTHON.fullmatch(step.python):
        raise BadPipeline(f"{what}: python must be module:function or file.py:function")
    for name in step.inputs:
        if name not in known:
            raise BadPipeline(f"{what} takes {name!r}, which is not an earlier source or step")


def _check_sink(definition: Definition, sink: SinkSpec, known: list[str]) -> None:
    what = f"sink {sink.label!r}"
    _one_of(what, sink, SINK_KINDS)
    if sink.source not in known:
        raise BadPipeline(f"{what} is from {sink.source!r}, which is not a source or step")
    if sink.mode not in ("append", "overwrite"):
        raise BadPipeline(f"{what}: mode must be append or overwrite")
    if sink.mode == "overwrite" and (sink.topic or definition.streams):
        raise BadPipeline(f"{what}: only a lake can be overwritten, and not by a stream")
    if sink.report and definition.streams:
        raise BadPipeline(f"{what}: a report needs trigger = {ONCE!r}")
    if sink.chart and sink.chart.count(",") != 1:
        raise BadPipeline(f"{what}: chart must be two columns, such as reason,messages")
