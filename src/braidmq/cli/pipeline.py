"""``braid pipeline``: data in bulk through Spark, declared in one file."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.node import Node
from braidmq.cli.output import console, counted
from braidmq.cli.units import pairs, span_text
from braidmq.model.errors import BadRequest, BraidError, Conflict, NotFound

if TYPE_CHECKING:
    from braidmq.pipeline.definition import Definition
    from braidmq.pipeline.reporting import Progress, Reporter

app = Commands(
    name="pipeline",
    help="Pipelines: data in bulk through Spark, declared in one file.",
    no_args_is_help=True,
)

LESSER = ("parameters", "batch", "rows_/s")
COLUMNS = ("pipeline", "parameters", "state", "rows", "rows_/s", "lag", "batch", "seen")
FIELDS = (
    "name",
    "parameters",
    "state",
    "stop_requested",
    "rows",
    "rows_per_s",
    "lag",
    "batch",
    "batch_ms",
    "tasks",
    "tasks_done",
    "remaining",
    "restarts",
    "host",
    "user",
    "started",
    "seen",
    "run",
    "error",
)
NAMES = "Use letters and digits, and after the first also . _ -"
REPORT_EVERY_S = 2.0
LINE_EVERY_S = 30.0
"""Where lines stay: how long a batch may take without one."""

File = Annotated[
    str, typer.Argument(help="A pipeline's file, or the name of one that comes with BraidMQ.")
]
Values = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter of the pipeline, as name=value; may be repeated."),
]
Storage = Annotated[
    list[str] | None,
    typer.Option(
        help="Of the object store that lakes are in, as aws_region=eu-central-1; may be repeated."
    ),
]
Name = Annotated[
    str, typer.Argument(help="The pipeline's name.", autocompletion=complete("pipelines"))
]

NEW = """\
# A pipeline: `braid pipeline check {name}.toml`, then `braid pipeline run {name}.toml`.
name = "{name}"
description = "Orders above a limit, one message each"

# available_now: what is there, then end. once: the same without a checkpoint, from the beginning.
# Or how often, as 10s: go on until it is stopped.
trigger = "available_now"

[parameters]            # ${{limit}} below; `--set limit=5` at the command line
limit = 100

[[source]]              # a topic, topic_pattern, lake, table or format; its name is a view in SQL
name = "orders"
topic = "{name}-in"

[[step]]                # SQL of the views before it; or python = "steps.py:function"
name = "large"
sql = '''
SELECT key, value, headers
FROM orders
WHERE CAST(get_json_object(decode(value, 'utf-8'), '$.amount') AS DOUBLE) > ${{limit}}
'''

[[sink]]                # a topic, lake, report, console, format or python
from = "large"
topic = "{name}-out"
"""


@app.command()
def new(
    out: Out,
    name: Annotated[str, typer.Argument(help="Name of the new pipeline.")],
    directory: Annotated[
        Path, typer.Option("--directory", "-d", help="Directory to write it to.")
    ] = Path(),
) -> None:
    """Write a pipeline to begin with, NAME.toml.

    Example: braid pipeline new orders
    """
    if "/" in name:
        raise BadRequest(f"{name!r} is not a valid pipeline name", remedy=NAMES)
    path = directory / f"{name}.toml"
    if path.exists():
        raise Conflict(f"{path} already exists")
    from braidmq.pipeline.definition import load

    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(NEW.format(name=name))
    try:
        load(path)
    except BraidError:
        path.unlink()
        raise BadRequest(
            f"{name!r} is not a valid pipeline name",
            remedy=NAMES,
        ) from None
    out.done(str(path), {"file": str(path)})


@app.command()
def check(
    node: InNamespace,
    out: Out,
    file: File,
    values: Values = None,
    storage: Storage = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Start Spark and have it check SQL and columns too.")
    ] = False,
) -> None:
    """Say what is wrong with a pipeline, without running it.

    Example: braid pipeline check orders.toml
    """
    path, definition = _load(file, values, storage)
    from braidmq.pipeline.checking import look_at_lakes

    look_at_lakes(definition)
    if plan:
        from braidmq.pipeline.runner import Runner
        from braidmq.pipeline.session import session

        with session(definition.name, settings=definition.spark) as spark:
            Runner(definition, spark, _broker(node), path.parent).check()
    checkpoint = str(definition.checkpoint_dir) if definition.resumes else None
    said = f"{definition.name}: {_described(definition)}"
    out.done(
        said if checkpoint is None else f"{said}\ncheckpoint: {checkpoint}",
        {"pipeline": definition.name, "trigger": definition.trigger, "checkpoint": checkpoint},
    )


@app.command()
def run(
    node: InNamespace,
    out: Out,
    file: File,
    values: Values = None,
    storage: Storage = None,
    master: Annotated[
        str, typer.Option(help="A Spark master.", show_default="local[*], this machine")
    ] = "",
    remote: Annotated[str, typer.Option(help="A Spark Connect address, as sc://host.")] = "",
    log: Annotated[
        Path | None,
        typer.Option(
            help="File for what Spark itself says.",
            show_default="one for each run, in ~/.local/state/braidmq/pipelines/logs",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Run a pipeline until it is done, or stopped: by `braid pipeline stop`, Ctrl-C or SIGTERM.

    On a cluster the same file does; BraidMQ is to be installed there, and --url is an address that
    its machines reach. Exits 0 when it is done or was stopped, 1 when it failed.

    Examples: braid pipeline run orders.toml; braid pipeline run archive --set topic=orders
    --set lake=/data/lake
    """
    path, definition = _load(file, values, storage, data_here=not remote)
    from braidmq.pipeline.checking import look_at_lakes

    if not remote:
        look_at_lakes(definition)
    from braidmq.pipeline.session import log_file, require_spark, session

    quiet = quiet or out.is_data
    require_spark()
    from braidmq.pipeline.reporting import Progress, Reporter
    from braidmq.pipeline.runner import Runner

    broker = _broker(node)
    reporter = Reporter(definition.name, broker, definition.known_by)
    reporter.report(Progress())
    progress = Progress()
    where = None if remote else log or log_file(definition.name)
    if not quiet:
        print(
            f"{definition.name}: run {reporter.run}"
            + (f", Spark's log is {where}" if where else "")
        )
    try:
        with (
            session(definition.name, master, remote, definition.spark, where) as spark,
            # After the session: Spark has a way with Ctrl-C of its own.
            _Watch(reporter, quiet) as watch,
        ):
            progress = Runner(definition, spark, broker, path.parent).run(watch)
            watch.show(progress)
    except KeyboardInterrupt:
        reporter.report(progress.ended("stopped"))
        raise
    except BaseException as error:
        reporter.report(progress.ended("failed", str(error) or type(error).__name__))
        raise
    reporter.report(progress)
    out.done(
        f"{definition.name} {progress.state}: {counted(progress.rows, 'row')}",
        {
            "pipeline": definition.name,
            "run": reporter.run,
            "state": progress.state,
            "rows": progress.rows,
        },
    )


class _Watch:
    """Shows progress, a line for each sink, tells the broker, and hears of wishes to stop."""

    def __init__(self, reporter: "Reporter", quiet: bool) -> None:
        self._reporter = reporter
        self._live: Any = None
        self._quiet = quiet
        self._lines = not sys.stdout.isatty()
        self._stop = False
        self._reported_s = 0.0
        self._shown: tuple[Any, ...] = ()
        self._shown_s = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Watch":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        if not self._quiet and not self._lines:
            from rich.live import Live

            self._live = Live(console=console(), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """The first is a wish, obeyed after the batch that is written; the second an order."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True

    def __call__(self, progress: "Progress") -> bool:
        self.show(progress)
        now_s = time.monotonic()
        if now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            if self._reporter.report(progress):
                self._stop = True
        return self._stop

    def show(self, progress: "Progress") -> None:
        if self._quiet:
            return
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text("\n".join(each.line for each in progress.sinks), no_wrap=True))
            return
        # A file that is read later wants what changed, and a sign of life, not every look.
        said = tuple((each.name, each.batch, each.rows, each.status) for each in progress.sinks)
        now_s = time.monotonic()
        before = self._shown if now_s - self._shown_s < LINE_EVERY_S else ()
        if said != before:
            for now, each in zip(said, progress.sinks, strict=True):
                if now not in before:
                    print(each.line, flush=True)
            self._shown, self._shown_s = said, now_s


@app.command()
def export(
    out: Out,
    file: File,
    directory: Annotated[Path, typer.Option("--sdp", help="Directory for the project; a new one.")],
    values: Values = None,
) -> None:
    """Write a pipeline as a project of Spark Declarative Pipelines, which `spark-pipelines` runs.

    The broker is not in it, nor a secret: BRAID_URL, BRAID_NAMESPACE, BRAID_TOKEN, or BRAID_USER
    and BRAID_PASSWORD say it when it runs. Its Python names what else is to be set.

    Example: braid pipeline export orders.toml --sdp orders
    """
    path, definition = _load(file, values)
    from braidmq.pipeline.session import require_spark

    require_spark()
    from braidmq.pipeline.sdp import export as write

    files = [str(each) for each in write(definition, path.parent, directory)]
    out.show_lines(files, [{"file": each} for each in files])


@app.command("list")
def list_pipelines(
    node: InNamespace,
    out: Out,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Those that come with BraidMQ instead.")
    ] = False,
) -> None:
    """Show pipelines that have reported to the node within a week, and their state.

    Example: braid pipeline list
    """
    if shipped:
        out.show(_shipped(), ("pipeline", "parameters", "description"))
        return
    found = node.api().every("pipelines")
    rows = [
        {
            **each,
            "pipeline": each["name"],
            "parameters": _parameters(each),
            "batch": None if each["batch"] < 0 else each["batch"],
            "rows_/s": round(each["rows_per_s"]),
            "seen": _ago(each["seen_ms"]),
        }
        for each in found
    ]
    if out.is_data:
        out.data(found)
    else:
        out.show(rows, COLUMNS, LESSER)


@app.command()
def status(
    node: InNamespace,
    out: Out,
    name: Name,
) -> None:
    """Show the state of a pipeline, and why it failed if it did.

    Example: braid pipeline status orders
    """
    found = node.api().get("pipelines", name)
    if out.is_data:
        out.data(found)
        return
    left_s = found["remaining_s"]
    said = {
        "parameters": _parameters(found),
        "remaining": None if left_s is None else span_text(int(left_s * 1000)),
        "batch": None if found["batch"] < 0 else found["batch"],
        "error": found["error"] or None,
        "started": _ago(found["started_ms"]),
        "seen": _ago(found["seen_ms"]),
    }
    out.show_one({**found, **said}, FIELDS)


@app.command()
def stop(
    node: InNamespace,
    out: Out,
    name: Name,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Only runs with this parameter, as name=value; may be repeated."
        ),
    ] = None,
    run: Annotated[str, typer.Option("--run", help="Only this run.")] = "",
) -> None:
    """Ask whoever runs a pipeline to stop it, through the node; it does within seconds.

    All runs of that name are asked, unless told which.

    Examples: braid pipeline stop orders; braid pipeline stop archive --set topic=orders
    """
    api = node.api()
    wanted = [run]
    if values:
        wanted = _runs_with(api.every("pipelines", name, "runs"), name, run, _given(values))
    found = [
        each for one in wanted for each in api.post("pipelines", name, "stop", run=one or None)
    ]
    running = [each for each in found if each["state"] == "running"]
    if not running:
        raise Conflict(f"pipeline {name!r} is not running: it is {found[0]['state']}")
    if out.is_data:
        out.data(running)
        return
    for each in running:
        print(f"asked {each['run']} on {each['host'] or 'an unknown host'} to stop")


def _runs_with(
    runs: list[dict[str, Any]], name: str, run: str, values: dict[str, str]
) -> list[str]:
    """Those that run with these parameters, or the last that did."""
    found = [
        each
        for each in runs
        if values.items() <= each["parameters"].items() and run in ("", each["run"])
    ]
    if not found:
        said = ", ".join(f"{key}={value}" for key, value in values.items())
        raise NotFound(f"no run of pipeline {name!r} with {said} has reported")
    running = [each for each in found if each["state"] == "running"]
    return [each["run"] for each in running or found[:1]]


def _load(
    file: str,
    values: list[str] | None,
    storage: list[str] | None = None,
    *,
    data_here: bool = True,
) -> "tuple[Path, Definition]":
    from braidmq.pipeline.definition import find, load

    path, store = find(file), pairs(storage or [])
    return path, load(path, _given(values), data_here=data_here, storage=store)


def _given(values: list[str] | None) -> dict[str, str]:
    return pairs(values or [])


def _broker(node: Node) -> Any:
    from braidmq.pipeline.options import BrokerOptions

    user, password = "", ""
    if node.token is None:
        user, password = node.user, node.with_password().password or ""
    return BrokerOptions(
        url=node.url.rstrip("/"),
        user=user,
        password=password,
        token=node.token or "",
        namespace=node.namespace,
    )


def _described(definition: "Definition") -> str:
    sources = ", ".join(
        each.topic or each.topic_pattern or each.lake or each.format or f"table {each.table}"
        for each in definition.sources
    )
    sinks = ", ".join(
        each.topic or each.lake or each.report or each.format or each.python or "console"
        for each in definition.sinks
    )
    return f"{sources} → {counted(len(definition.steps), 'step')} → {sinks} ({definition.trigger})"


def _shipped() -> list[dict[str, Any]]:
    import msgspec

    from braidmq.pipeline.definition import find, shipped_names

    rows = []
    for name in shipped_names():
        raw = msgspec.toml.decode(find(name).read_bytes())
        rows.append(
            {
                "pipeline": name,
                "parameters": sorted(raw.get("parameters", {})),
                "description": raw["description"],
            }
        )
    return rows


def _parameters(run: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(run["parameters"].items()))


def _ago(at_ms: int) -> str:
    return f"{span_text(max(int(time.time() * 1000) - at_ms, 0))} ago"
