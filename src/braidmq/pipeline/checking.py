"""What is wrong with a pipeline, as far as can be known without Spark: the line, and what to do.

A setting that would have no effect is refused as one that nobody knows is: who wrote it meant
something by it.
"""

import ast
import glob
import importlib.util
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from braidmq.model.errors import BraidError
from braidmq.pipeline.definition import (
    AVAILABLE_NOW,
    ONCE,
    SINK_KINDS,
    SOURCE_KINDS,
    STORAGE,
    BadPipeline,
    Definition,
    Place,
    SinkSpec,
    SourceSpec,
    StepSpec,
    Watermark,
)
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import check_kind, parse_options
from braidmq.pipeline.sink_options import check_counting, parse_sink_options

PYTHON = re.compile(r"[\w./-]+:[A-Za-z_]\w*")
DELAY = re.compile(r"\d+ *(millisecond|second|minute|hour|day|week)s?", re.IGNORECASE)
FILES: Final = frozenset({"csv", "json", "parquet", "orc", "text", "xml", "avro", "binaryfile"})
"""Formats of files: the option path names them."""

SELF_DESCRIBING: Final = frozenset({"text", "binaryfile"})
NOT_A_STREAM: Final = frozenset({"jdbc", "hive"})
"""Formats that Spark reads and writes only at once."""

ONLY_A_STREAM: Final = frozenset({"rate", "rate-micro-batch", "socket"})
COUNTED: Final = frozenset({"applicationid", "applicationepoch", "applicationinstance", "batchid"})
"""Options of sinks by which batches are counted."""

SHOWN_ONLY: Final = frozenset({"console", "memory"})
"""Sinks of streams that a batch can't be written to."""


def check(definition: Definition, raw: Mapping[str, Any], base: Path, data_here: bool) -> None:
    """Raises BadPipeline. ``raw``: the file as it was read; ``base``: where it is."""
    _check_trigger(definition, raw)
    if not definition.sources or not definition.sinks:
        raise BadPipeline("a pipeline needs at least one [[source]] and one [[sink]]")
    for key in definition.spark:
        if not key.startswith("spark."):
            raise BadPipeline(
                f"{key!r} is not a setting of Spark: they begin with spark.",
                at=Place("spark", 0, key),
            )
    known: list[str] = []
    for number, source in enumerate(definition.sources):
        _check_source(definition, source, _Part("source", number, source.name, raw), data_here)
        _new(source.name, known, Place("source", number, "name"))
    for number, step in enumerate(definition.steps):
        _check_step(definition, step, known, _Part("step", number, step.name, raw), base)
        _new(step.name, known, Place("step", number, "name"))
    labels: list[str] = []
    for number, sink in enumerate(definition.sinks):
        _check_sink(definition, sink, known, _Part("sink", number, sink.label, raw), base)
        _new(sink.label, labels, Place("sink", number, "name"), "sink")
    _check_queries(definition, labels)
    _check_applications(definition)
    _check_chunks(definition)


class _Part:
    """One table of a file, and what to say of it."""

    def __init__(self, table: str, number: int, name: str, raw: Mapping[str, Any]) -> None:
        self._table, self._number = table, number
        self._name = name
        self.given = set(raw.get(table, ())[number])

    def wrong(self, key: str, said: str, remedy: str | None = None) -> BadPipeline:
        at = Place(self._table, self._number, key)
        return BadPipeline(f"{self._table} {self._name!r}: {said}", remedy=remedy, at=at)

    def only(self, keys: Iterable[str], allowed: bool, whose: str, remedy: str = "") -> None:
        """Refuse keys that would do nothing here."""
        for key in keys:
            if key in self.given and not allowed:
                raise self.wrong(key, f"{key} is only for {whose}", remedy or f"Take {key} out")

    def one_of(self, spec: Any, kinds: Iterable[str]) -> None:
        named = [kind for kind in kinds if getattr(spec, kind)]
        if len(named) != 1:
            key = named[1] if named else ""
            raise self.wrong(key, f"needs exactly one of {', '.join(kinds)}")


def place_of(said: str) -> Place:
    """Of what msgspec found wrong."""
    unknown = re.search(r"unknown field `([^`]+)`", said)
    missing = re.search(r"missing required field", said)
    path = re.search(r"at `\$\.?([^`]*)`", said)
    inside = path[1] if path else ""
    key = unknown[1] if unknown else ""
    if found := re.match(r"(\w+)\[(\d+)\](?:\.(\w+))?", inside):
        return Place(found[1], int(found[2]), key or (found[3] or "" if not missing else ""))
    table, _, rest = inside.partition(".")
    if rest or table in ("spark", "parameters"):
        return Place(table, 0, key or rest.strip("[]."))
    return Place(key=key or table)


def _new(name: str, known: list[str], at: Place, what: str = "view") -> None:
    if name in known:
        raise BadPipeline(f"two {what}s are named {name!r}", remedy="Rename one of them", at=at)
    known.append(name)


def _check_trigger(definition: Definition, raw: Mapping[str, Any]) -> None:
    trigger = definition.trigger
    if trigger.startswith(("continuous", "real")):
        raise BadPipeline(
            f"trigger {trigger!r}: Spark runs no Python data source that way, and topics are read"
            " and written by one",
            remedy="Take a short time, such as 100ms: a batch takes 130 ms and more",
            at=Place(key="trigger"),
        )
    if trigger not in (AVAILABLE_NOW, ONCE) and not definition.interval:
        raise BadPipeline(
            f"trigger {trigger!r} is not {AVAILABLE_NOW}, {ONCE} or a time such as 10s",
            at=Place(key="trigger"),
        )
    if definition.streams:
        return
    for key in ("retries",) if definition.resumes else ("checkpoint", "retries"):
        if key in raw:
            raise BadPipeline(
                f"{key} is only for streams, and nothing is read as one here",
                remedy=f"Take {key} out; or read a topic with a trigger other than {ONCE}",
                at=Place(key=key),
            )


def _check_watermark(watermark: Watermark | None, part: _Part) -> None:
    if watermark is not None and not DELAY.fullmatch(watermark.delay):
        raise part.wrong(
            "watermark", f"delay {watermark.delay!r} is not a time", "Use one such as 10 minutes"
        )


def _check_source(definition: Definition, source: SourceSpec, part: _Part, data_here: bool) -> None:
    part.one_of(source, SOURCE_KINDS)
    streams = definition.is_stream(source)
    part.only(("group", "ordered"), source.is_topic, "topics")
    part.only(("stream",), bool(source.format), "a format: a topic is one unless trigger is once")
    part.only(("schema",), source.is_topic or bool(source.format), "topics and formats")
    part.only(("watermark",), streams, "streams")
    part.only(("chunk",), bool(source.lake), "lakes")
    _check_watermark(source.watermark, part)
    if source.stream and definition.trigger == ONCE:
        raise part.wrong("stream", f"with trigger = {ONCE!r} nothing is read as a stream")
    if source.format:
        _check_format(source, part, data_here)
    elif source.lake:
        _check_lake(source.lake, source.options, part, there=data_here, mode="")
    else:
        name = next(kind for kind in SOURCE_KINDS if getattr(source, kind))
        spelt = {"topic_pattern": "topicPattern"}.get(name, name)
        given = {spelt: getattr(source, name), **source.options}
        _parsed(lambda texts: _source_options(texts, streams=streams), given, part)
        starts = {key.lower(): each for key, each in source.options.items()}.get("startingoffsets")
        if streams and str(starts).lower() == "committed":
            raise part.wrong(
                "options",
                "startingOffsets=committed is for what is read at once",
                f"Take it out: a stream goes on from its checkpoint; or use trigger = {ONCE!r}",
            )


def _check_format(source: SourceSpec, part: _Part, data_here: bool) -> None:
    kind = source.format.lower()
    if kind in ("braid", "braid_lake"):
        raise part.wrong("format", f"{kind} is what topic, table and lake are for")
    if source.stream and kind in NOT_A_STREAM:
        raise part.wrong("stream", f"Spark reads {kind} only at once", "Take stream out")
    if not source.stream and kind in ONLY_A_STREAM:
        raise part.wrong("format", f"Spark reads {kind} only as a stream", "Add stream = true")
    if kind in FILES:
        if source.stream and not source.schema and kind not in SELF_DESCRIBING:
            raise part.wrong(
                "format",
                f"a stream of {kind} files needs a schema",
                'Add one, such as schema = "id LONG, name STRING"',
            )
        path = str(source.options.get("path", ""))
        if not path:
            raise part.wrong("options", f"{kind} needs the option path")
        # Not pathlib: its patterns do not begin at the root.
        if data_here and path.startswith("/") and not glob.glob(path):  # noqa: PTH207
            raise part.wrong("options", f"there is no file {path}")


def _check_step(
    definition: Definition, step: StepSpec, known: list[str], part: _Part, base: Path
) -> None:
    if bool(step.sql) == bool(step.python):
        raise part.wrong("python" if step.sql else "", "needs exactly one of sql and python")
    part.only(("inputs",), bool(step.python), "python; SQL names the views itself")
    part.only(("options",), bool(step.python), "python: they are its arguments")
    part.only(("watermark",), definition.streams, "streams")
    _check_watermark(step.watermark, part)
    for name in step.inputs:
        if name not in known:
            raise part.wrong("inputs", f"{name!r} is not an earlier source or step")
    if step.python:
        _check_function(step.python, len(step.inputs), step.options, part, base)


def _check_sink(
    definition: Definition, sink: SinkSpec, known: list[str], part: _Part, base: Path
) -> None:
    part.one_of(sink, SINK_KINDS)
    if sink.source not in known:
        raise part.wrong("from", f"{sink.source!r} is not a source or step")
    part.only(("title",), bool(sink.report or sink.console), "reports and console")
    part.only(("chart",), bool(sink.report), "reports")
    part.only(("options",), not sink.report, "what Spark writes; a report has none")
    part.only(("query", "output_mode"), definition.streams, "streams")
    if sink.mode == "overwrite" and (definition.streams or not (sink.lake or sink.format)):
        raise part.wrong("mode", "only a lake or a format can be overwritten, and not by a stream")
    if sink.report and definition.streams:
        raise part.wrong("report", f"a report needs trigger = {ONCE!r}")
    if sink.chart and sink.chart.count(",") not in (1, 2):
        raise part.wrong("chart", "must be two or three columns, such as reason,messages")
    _check_output_mode(sink, part)
    counts = not definition.chunked  # else that is done for it, and said in _check_chunks
    if sink.topic:

        def parse(texts: Mapping[str, str]) -> None:
            given = parse_sink_options(texts)
            if counts:
                check_counting(given, streams=definition.streams)

        _parsed(parse, {"topic": sink.topic, **sink.options}, part)
    elif sink.lake:
        _check_lake(sink.lake, sink.options, part, there=False, mode=sink.mode)
        if counts:
            _parsed(partial(_counting_of_lake, definition), sink.options, part)
    elif sink.format:
        _check_written_format(definition, sink, part)
    elif sink.python:
        _check_function(sink.python, 2, sink.options, part, base)


def _check_output_mode(sink: SinkSpec, part: _Part) -> None:
    if sink.topic and sink.output_mode == "complete":
        raise part.wrong(
            "output_mode", "a topic can't be replaced", "Use update: a message for each change"
        )
    appends = sink.lake or sink.format.lower() in FILES
    if appends and sink.output_mode != "append":
        raise part.wrong(
            "output_mode",
            f"{sink.kind} takes only append: rows are never changed there",
            "Give a watermark, so that rows are final; or write it with python",
        )


def _check_written_format(definition: Definition, sink: SinkSpec, part: _Part) -> None:
    kind = sink.format.lower()
    if kind in ("braid", "braid_lake"):
        raise part.wrong("format", f"{kind} is what topic and lake are for")
    if definition.streams and kind in NOT_A_STREAM and not sink.query:
        raise part.wrong(
            "format",
            f"Spark writes {kind} only at once",
            'Add query = "name": each batch is then written at once; or write it with python',
        )
    if kind in SHOWN_ONLY and (sink.query or not definition.streams):
        raise part.wrong("format", f"Spark writes {kind} only as a stream", "Use console = true")
    if kind in FILES and "path" not in sink.options:
        raise part.wrong("options", f"{kind} needs the option path")


def _check_queries(definition: Definition, labels: list[str]) -> None:
    for name in {each.query for each in definition.sinks if each.query}:
        sinks = [each for each in definition.sinks if each.query == name]
        at = Place("sink", definition.sinks.index(sinks[-1]), "query")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) or name in labels:
            raise BadPipeline(
                f"query {name!r} must be of letters, digits, . _ - and not the name of a sink",
                at=at,
            )
        if len({(each.source, each.output_mode) for each in sinks}) > 1:
            raise BadPipeline(
                f"sinks of query {name!r} must have the same from and output_mode",
                remedy="Take both from the view they share; where and select tell them apart",
                at=at,
            )
        if shown := next((each for each in sinks if each.console), None):
            raise BadPipeline(
                f"sink {shown.label!r}: console is a query of its own",
                remedy="Take query out",
                at=at,
            )


def _check_applications(definition: Definition) -> None:
    """Whatever two sinks count together, the second to come to a number would not write."""
    known: dict[tuple[str, ...], str] = {}
    for number, sink in enumerate(definition.sinks):
        said = {name.lower(): str(value) for name, value in sink.options.items()}
        application = said.get("applicationid", "")
        if not application or not (sink.topic or sink.lake):
            continue
        broker = (said.get("url", ""), said.get("namespace", ""))
        ledger = ("lake", sink.lake) if sink.lake else ("broker", *broker)
        key = (*ledger, application, said.get("applicationepoch", "0"))
        if key in known:
            raise BadPipeline(
                f"sinks {known[key]!r} and {sink.label!r} count as one application,"
                f" {application!r}: each batch would be written by one of them",
                remedy="Give each an applicationId of its own",
                at=Place("sink", number, "options"),
            )
        known[key] = sink.label


def _check_chunks(definition: Definition) -> None:
    """What is written in chunks is written piece by piece, and what a sink has is never all."""
    source = definition.chunked
    if source is None:
        return
    at = Place("source", definition.sources.index(source), "chunk")
    if definition.streams:
        raise BadPipeline(f"chunk needs trigger = {ONCE!r}: a stream has batches", at=at)
    if sum(each.chunk is not None for each in definition.sources) > 1:
        raise BadPipeline("only one source can be read in chunks", at=at)
    assert source.chunk is not None
    if not str(source.chunk.rows).isdecimal() or not source.chunk.rows_wanted:
        raise BadPipeline(
            f"source {source.name!r}: rows of chunk must be 1 or more, not {source.chunk.rows!r}",
            at=at,
        )
    if "range" in {name.lower() for name in source.options}:
        raise BadPipeline(
            f"source {source.name!r}: with chunk the option range is not free",
            remedy="Choose rows in a step",
            at=at,
        )
    if "://" in definition.checkpoint:
        raise BadPipeline(
            "chunks are counted in a file: checkpoint must be a directory here",
            at=Place(key="checkpoint"),
        )
    for number, sink in enumerate(definition.sinks):
        if sink.report or sink.console or sink.mode == "overwrite":
            key = "mode" if sink.mode == "overwrite" else sink.kind
            raise BadPipeline(
                f"sink {sink.label!r}: it would have only the last chunk",
                remedy="Write to a topic or a lake, or take chunk out",
                at=Place("sink", number, key),
            )
        if COUNTED & {each.lower() for each in sink.options}:
            raise BadPipeline(
                f"sink {sink.label!r}: with chunk each run counts its batches itself",
                remedy="Take applicationId, batchId and all that goes with them out",
                at=Place("sink", number, "options"),
            )


# --- what a file refers to ---


def look_at_lakes(definition: Definition) -> None:
    """Those in object stores: whether they answer, and whether what is read is there. Raises
    BadPipeline."""
    try:
        from braidmq.pipeline.lake import table
        from braidmq.pipeline.lake.options import parse_lake_options
    except ImportError:  # who runs it has Spark; a check may be without
        return
    found = [
        (f"source {each.name!r}", each.lake, each.options, True) for each in definition.sources
    ]
    found += [(f"sink {each.label!r}", each.lake, each.options, False) for each in definition.sinks]
    for name, path, options, wanted in found:
        if "://" not in path:
            continue
        given = {key: _text(each) for key, each in options.items() if key.startswith(STORAGE)}
        try:
            table.look(parse_lake_options({"path": path, **given}), wanted=wanted)
        except BraidError as error:
            raise BadPipeline(f"{name}: {error.args[0]}", remedy=error.remedy) from None


def _counting_of_lake(definition: Definition, texts: Mapping[str, str]) -> None:
    counting = {name: value for name, value in texts.items() if name.lower() in COUNTED}
    check_counting(parse_sink_options(counting), streams=definition.streams)


def _source_options(given: Mapping[str, str], *, streams: bool) -> None:
    options = parse_options(given)
    if not options.table:
        check_kind(options, streams=streams)


def _parsed(parse: Any, given: Mapping[str, object], part: _Part) -> None:
    try:
        parse({name: _text(value) for name, value in given.items()})
    except BadOption as error:
        raise part.wrong("options", error.args[0], error.remedy) from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_lake(
    path: str, options: Mapping[str, object], part: _Part, *, there: bool, mode: str
) -> None:
    """``mode``: how it is written; empty: it is read."""
    try:
        from braidmq.pipeline.lake.options import check_reading, check_writing, parse_lake_options
    except ImportError:  # who runs it has Spark; a check may be without
        pass
    else:

        def parse(texts: Mapping[str, str]) -> None:
            given = parse_lake_options(texts)
            if mode:
                check_writing(given, mode)
            else:
                check_reading(given)

        _parsed(parse, {"path": path, **options}, part)
    if there and path.startswith("/") and not (Path(path) / "_delta_log").is_dir():
        raise part.wrong("lake", f"there is no lake at {path}", "Correct it, or write it first")


def _check_function(
    reference: str, inputs: int, options: Mapping[str, object], part: _Part, base: Path
) -> None:
    """That it is there and takes what it will be given, without running any of it."""
    if not PYTHON.fullmatch(reference):
        raise part.wrong("python", "must be module:function or file.py:function")
    place, _, name = reference.rpartition(":")
    path = base / place if place.endswith(".py") else _module_file(place)
    if path is None or not path.is_file():
        raise part.wrong("python", f"{reference!r} can't be found: there is no {path or place}")
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except SyntaxError as error:
        raise part.wrong("python", f"{path}:{error.lineno}: {error.msg}") from None
    found = [each for each in tree.body if getattr(each, "name", "") == name]
    if not found:
        # It may be made or imported there: only running it would tell.
        if name in {each.id for each in ast.walk(tree) if isinstance(each, ast.Name)} | {
            each.asname or each.name for each in ast.walk(tree) if isinstance(each, ast.alias)
        }:
            return
        raise part.wrong("python", f"{reference!r} can't be found: {path} has no {name}")
    function = found[-1]
    if isinstance(function, ast.FunctionDef):
        _check_arguments(function, inputs, options, part, f"{path}:{function.lineno}: {name}")


def _module_file(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _check_arguments(
    function: ast.FunctionDef, inputs: int, options: Mapping[str, object], part: _Part, who: str
) -> None:
    taken = function.args
    positional = [each.arg for each in (*taken.posonlyargs, *taken.args)]
    if len(positional) < inputs and taken.vararg is None:
        raise part.wrong("python", f"{who} takes {len(positional)} DataFrames, not {inputs}")
    named = {*positional[inputs:], *(each.arg for each in taken.kwonlyargs)}
    strangers = sorted(set(options) - named)
    if strangers and taken.kwarg is None:
        raise part.wrong("options", f"{who} takes no argument {strangers[0]!r}")
    required = set(positional[inputs : len(positional) - len(taken.defaults)]) | {
        each.arg
        for each, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
        if default is None
    }
    if missing := sorted(required - set(options)):
        raise part.wrong("options", f"{who} needs the argument {missing[0]!r}")
