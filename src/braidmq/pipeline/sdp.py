"""A pipeline as a project of Spark Declarative Pipelines, for ``spark-pipelines run``.

Sources and steps become temporary views, sinks become sinks with a flow each. Who runs it gives the
broker's address and password by environment: neither belongs into a project that is shared.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from braidmq.pipeline.definition import BadPipeline, Definition, SinkSpec, SourceSpec, StepSpec
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.session import setting_text

DEFINITIONS = "transformations"
HEAD = '''\
"""{name}, written by `braid pipeline export --sdp`."""

import os
import sys
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent.parent / "steps"))
spark = SparkSession.active()
BROKER = {{
    "url": os.environ.get("BRAIDMQ_URL", "{url}"),
    "namespace": os.environ.get("BRAIDMQ_NAMESPACE", "{namespace}"),
    "user": os.environ.get("BRAIDMQ_USER", "guest"),
    "password": os.environ.get("BRAIDMQ_PASSWORD", "guest"),
}}
'''
VIEW = """

@dp.temporary_view(name={name})
def {function}():
    return {made}
"""
SINK = """

dp.create_sink({name}, {format}, {options})


@dp.append_flow(target={name}, name={flow})
def {function}():
    return {made}
"""


def export(definition: Definition, base: Path, directory: Path) -> list[Path]:
    """The files written. ``base``: where the pipeline's file is. Raises BadPipeline."""
    _check(definition)
    if directory.exists() and any(directory.iterdir()):
        raise BadPipeline(f"{directory} is not empty", remedy="Give a directory that is new")
    (directory / DEFINITIONS).mkdir(parents=True)
    here = BrokerOptions()
    head = HEAD.format(name=definition.name, url=here.url, namespace=here.namespace)
    parts = [_source(definition, each) for each in definition.sources]
    parts += [_step(each) for each in definition.steps]
    parts += [_sink(each) for each in definition.sinks]
    imports = sorted({_import(each) for each in definition.steps if each.python})
    written = [directory / DEFINITIONS / "pipeline.py", directory / "spark-pipeline.yml"]
    written[0].write_text(head + "".join(f"\n{each}" for each in imports) + "".join(parts))
    written[1].write_text(_project(definition, directory))
    for place in sorted({each.python.rpartition(":")[0] for each in definition.steps}):
        if place.endswith(".py"):
            (directory / "steps").mkdir(exist_ok=True)
            target = directory / "steps" / Path(place).name
            shutil.copyfile(base / place, target)
            written.append(target)
    return written


def _check(definition: Definition) -> None:
    if not definition.streams:
        raise BadPipeline(
            "only what streams becomes a declarative pipeline",
            remedy='Use trigger = "available_now": each run reads what is new',
        )
    for sink in definition.sinks:
        kind = "query" if sink.query else sink.kind
        if kind in ("report", "console", "python", "query"):
            raise BadPipeline(f"sink {sink.label!r}: declarative pipelines have no {kind}")
        if sink.output_mode != "append":
            raise BadPipeline(f"sink {sink.label!r}: flows only append there")


def _project(definition: Definition, directory: Path) -> str:
    settings = {key: setting_text(value) for key, value in definition.spark.items()}
    settings |= {
        "spark.sql.session.timeZone": "UTC",
        # Views of streams are read by SQL that does not say STREAM, as in the pipeline's file.
        "pipelines.incompatibleViewCheck.enabled": "false",
    }
    # JSON is YAML.
    project = {
        "name": definition.name,
        "storage": (directory.resolve() / "storage").as_uri(),
        "libraries": [{"glob": {"include": f"{DEFINITIONS}/**"}}],
        "configuration": settings,
    }
    return json.dumps(project, indent=2) + "\n"


def _source(definition: Definition, source: SourceSpec) -> str:
    streams = definition.is_stream(source)
    reader = "spark.readStream" if streams else "spark.read"
    options: dict[str, Any] = dict(source.options)
    broker = ""
    if source.format:
        kind = source.format
    elif source.lake:
        kind, options = "braid_lake", {"path": source.lake, **options}
    else:
        kind, broker = "braid", ".options(**BROKER)"
        named = {"topic": source.topic, "topicPattern": source.topic_pattern, "table": source.table}
        ours: dict[str, Any] = {key: value for key, value in named.items() if value}
        if streams:
            ours["startingOffsets"] = "earliest"
        if source.is_topic:
            ours |= source.split_options(streams)
        options = ours | options
    schema = f".schema({_quoted(source.schema)})" if source.schema else ""
    read = f"{reader}.format({_quoted(kind)}){schema}{broker}.options(**{_options(options)}).load()"
    return _view(source.name, read + _late(source))


def _step(step: StepSpec) -> str:
    if step.sql:
        return _view(step.name, f"spark.sql({_quoted(step.sql)}){_late(step)}")
    inputs = ", ".join(f"spark.read.table({_quoted(name)})" for name in step.inputs)
    module, name = _function(step.python)
    call = f"{module}.{name}({inputs}, **{step.options!r})"
    return _view(step.name, call + _late(step))


def _sink(sink: SinkSpec) -> str:
    made = f"spark.read.table({_quoted(sink.source)})"
    made += f".where({_quoted(sink.where)})" if sink.where else ""
    made += f".selectExpr(*{sink.select!r})" if sink.select else ""
    options: dict[str, Any] = dict(sink.options)
    if sink.topic:
        kind, options = "braid", {"topic": sink.topic, **options}
    elif sink.lake:
        kind, options = "braid_lake", {"path": sink.lake, **options}
    else:
        kind = sink.format
    given = f"{{**BROKER, **{_options(options)}}}" if sink.topic else _options(options)
    name = _identifier(sink.label)
    return SINK.format(
        name=_quoted(name),
        format=_quoted(kind),
        options=given,
        flow=_quoted(f"{name}_flow"),
        function=f"write_{name}",
        made=made,
    )


def _view(name: str, made: str) -> str:
    return VIEW.format(name=_quoted(name), function=f"view_{name}", made=made)


def _late(part: SourceSpec | StepSpec) -> str:
    late = part.watermark
    return f".withWatermark({_quoted(late.column)}, {_quoted(late.delay)})" if late else ""


def _function(reference: str) -> tuple[str, str]:
    place, _, name = reference.rpartition(":")
    return (Path(place).stem if place.endswith(".py") else place), name


def _import(step: StepSpec) -> str:
    return f"import {_function(step.python)[0]}\n"


def _identifier(label: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in label)


def _options(options: dict[str, Any]) -> str:
    return repr({name: setting_text(value) for name, value in options.items()})


def _quoted(text: str) -> str:
    return repr(text)
