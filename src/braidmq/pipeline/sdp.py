"""A pipeline as a project of Spark Declarative Pipelines, for ``spark-pipelines run``.

Sources and steps become temporary views, sinks become sinks with a flow each. Who runs it gives the
broker's address and a token or password by environment, as `braid` takes them, and other secrets
too: none belongs into a project that is shared.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from braidmq.pipeline.definition import (
    STORAGE,
    BadPipeline,
    Definition,
    SinkSpec,
    SourceSpec,
    StepSpec,
    is_secret,
)
from braidmq.pipeline.options import BrokerOptions, names_a_login
from braidmq.pipeline.session import setting_text

DEFINITIONS = "transformations"
HEAD = '''\
"""{name}, written by `braid pipeline export --sdp`.

From the environment: BRAID_URL, BRAID_NAMESPACE, BRAID_TOKEN or BRAID_USER and BRAID_PASSWORD
{also}"""

import os
import sys
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent.parent / "steps"))
spark = SparkSession.active()
PLACE = {{
    "url": os.environ.get("BRAID_URL", "{url}"),
    "namespace": os.environ.get("BRAID_NAMESPACE", "{namespace}"),
}}
if os.environ.get("BRAID_TOKEN"):
    LOGIN = {{"token": os.environ["BRAID_TOKEN"]}}
else:
    LOGIN = {{
        "user": os.environ.get("BRAID_USER", "guest"),
        "password": os.environ.get("BRAID_PASSWORD", "guest"),
    }}
'''
SECRET = """

def secret(name):
    if name not in os.environ:
        raise RuntimeError(f"set {name}: a secret that is in no file of this project")
    return os.environ[name]
"""
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
    parts = [_source(definition, each) for each in definition.sources]
    parts += [_step(each) for each in definition.steps]
    parts += [_sink(each) for each in definition.sinks]
    imports = sorted({_import(each) for each in definition.steps if each.python})
    written = [directory / DEFINITIONS / "pipeline.py", directory / "spark-pipeline.yml"]
    head = _head(definition)
    written[0].write_text(head + "".join(f"\n{each}" for each in imports) + "".join(parts))
    written[1].write_text(_project(definition, directory))
    for place in sorted({each.python.rpartition(":")[0] for each in definition.steps}):
        if place.endswith(".py"):
            (directory / "steps").mkdir(exist_ok=True)
            target = directory / "steps" / Path(place).name
            shutil.copyfile(base / place, target)
            written.append(target)
    return written


def _head(definition: Definition) -> str:
    here = BrokerOptions()
    names = sorted(set(_secrets(definition).values()))
    also = "".join(f"{name}\n" for name in names)
    head = HEAD.format(name=definition.name, url=here.url, namespace=here.namespace, also=also)
    return head + (SECRET if names else "")


def _secrets(definition: Definition) -> dict[tuple[str, str], str]:
    """Of each part of the file, the options that are secrets, and who has them instead."""
    parts = [(each.name, each.options) for each in definition.sources]
    parts += [(each.name, each.options) for each in definition.steps]
    parts += [(each.label, each.options) for each in definition.sinks]
    return {
        (part, option): _variable(part, option)
        for part, options in parts
        for option in options
        if is_secret(option)
    }


def _variable(part: str, option: str) -> str:
    """Those of an object store as everybody calls them: AWS_SECRET_ACCESS_KEY."""
    store = option.lower().startswith(STORAGE)
    return _identifier(option[len(STORAGE) :] if store else f"{part}_{option}").upper()


def _check(definition: Definition) -> None:
    if secret := next((key for key in definition.spark if is_secret(key)), ""):
        raise BadPipeline(
            f"{secret!r} is a secret, and nobody's who reads the project",
            remedy="Take it out of [spark], and give it to spark-pipelines with --conf",
        )
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
        kind, broker = "braid", f".options(**{_broker(source.options)})"
        named = {"topic": source.topic, "topicPattern": source.topic_pattern, "table": source.table}
        ours: dict[str, Any] = {key: value for key, value in named.items() if value}
        if streams:
            ours["startingOffsets"] = "earliest"
        if source.is_topic:
            ours |= source.split_options(streams)
        options = ours | options
    schema = f".schema({_quoted(source.schema)})" if source.schema else ""
    given = f"{broker}.options(**{_options(source.name, options)})"
    read = f"{reader}.format({_quoted(kind)}){schema}{given}.load()"
    return _view(source.name, read + _late(source))


def _step(step: StepSpec) -> str:
    if step.sql:
        return _view(step.name, f"spark.sql({_quoted(step.sql)}){_late(step)}")
    inputs = ", ".join(f"spark.read.table({_quoted(name)})" for name in step.inputs)
    module, name = _function(step.python)
    call = f"{module}.{name}({inputs}, **{_literal(step.name, step.options)})"
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
    written = _options(sink.label, options)
    given = f"{_broker(sink.options)} | {written}" if sink.topic else written
    name = _identifier(sink.label)
    return SINK.format(
        name=_quoted(name),
        format=_quoted(kind),
        options=given,
        flow=_quoted(f"{name}_flow"),
        function=f"write_{name}",
        made=made,
    )


def _broker(options: Mapping[str, Any]) -> str:
    return "PLACE" if names_a_login(options) else "(PLACE | LOGIN)"


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


def _options(part: str, options: dict[str, Any]) -> str:
    return _literal(part, {name: setting_text(value) for name, value in options.items()})


def _literal(part: str, options: Mapping[str, Any]) -> str:
    def value(name: str) -> str:
        if is_secret(name):
            return f"secret({_quoted(_variable(part, name))})"
        return repr(options[name])

    return "{" + ", ".join(f"{_quoted(name)}: {value(name)}" for name in options) + "}"


def _quoted(text: str) -> str:
    return repr(text)
