"""``braid pipeline``: data in bulk through Spark, declared in one file."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.api import (
    DEFAULT_URL,
    GUEST,
    ROOT,
    Api,
    Json,
    Namespace,
    Secret,
    Url,
    User,
    console,
    password_of,
    print_json,
    show,
    show_one,
    table_of,
)
from braidmq.cli.units import span_text
from braidmq.model.errors import BadRequest, BraidError, Conflict

if TYPE_CHECKING:
    from braidmq.pipeline.definition import Definition
    from braidmq.pipeline.reporting import Progress, Reporter

app = typer.Typer(
    name="pipeline",
    help="Pipelines: data in bulk through Spark, declared in one file.",
    no_args_is_help=True,
)

COLUMNS = ("pipeline", "state", "rows", "rows_/s", "lag", "batch", "seen")
FIELDS = (
    "name",
    "state",
    "stop_requested",
    "rows",
    "rows_per_s",
    "lag",
    "batch",
    "batch_ms",
    "host",
    "user",
    "started",
    "seen",
    "run",
    "error",
)
SINK_COLUMNS = ("sink", "batch", "rows", "rows_/s", "lag", "batch_ms", "status")
REPORT_EVERY_S = 2.0

File = Annotated[
    str, typer.Argument(help="A pipeline's file, or the name of one that comes with BraidMQ.")
]
Values = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter of the pipeline, as name=value; may be repeated."),
]
Name = Annotated[str, typer.Argument(help="The pipeline's name.")]

NEW = """\
# A pipeline: `braid pipeline check {name}.toml`, then `braid pipeline run {name}.toml`.
name = "{name}"
description = "Orders above a limit, one message each"

# available_now: what is there, then end. once: the same without a checkpoint, from the beginning.
# Or how often, as 10s: go on until it is stopped.
trigger = "available_now"

[parameters]            # ${{limit}} below; `--set limit=5` at the command line
limit = 100

[[source]]              # a topic, topic_pattern, lake or table; its name is a view in SQL
name = "orders"
topic = "{name}-in"

[[step]]                # SQL of the views before it; or python = "steps.py:function"
name = "large"
sql = '''
SELECT key, value, headers
FROM orders
WHERE CAST(get_json_object(decode(value, 'utf-8'), '$.amount') AS DOUBLE) > ${{limit}}
'''

[[sink]]                # a topic, lake, report or console
from = "large"
topic = "{name}-out"
"""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the new pipeline.")],
    directory: Annotated[
        Path, typer.Option("--directory", "-d", help="Directory to write it to.")
    ] = Path(),
) -> None:
    """Write a pipeline to begin with, NAME.toml.

    Example: braid pipeline new orders
    """
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
            remedy="Use letters and digits, and after the first also . _ -",
        ) from None
    print(path)


@app.command()
def check(
    file: File,
    values: Values = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Start Spark and have it check SQL and columns too.")
    ] = False,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Say what is wrong with a pipeline, without running it.

    Example: braid pipeline check orders.toml
    """
    path, definition = _load(file, values)
    if plan:
        from braidmq.pipeline.runner import Runner
        from braidmq.pipeline.session import session

        with session(definition.name, settings=definition.spark) as spark:
            Runner(definition, spark, _broker(url, user, password, namespace), path.parent).check()
    print(f"{definition.name}: {_described(definition)}")


@app.command()
def run(
    file: File,
    values: Values = None,
    master: Annotated[
        str, typer.Option(help="A Spark master.", show_default="local[*], this machine")
    ] = "",
    remote: Annotated[str, typer.Option(help="A Spark Connect address, as sc://host.")] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Run a pipeline until it is done, or stopped: by `braid pipeline stop`, Ctrl-C or SIGTERM.

    On a cluster the same file does; BraidMQ is to be installed there, and --url is an address that
    its machines reach. Exits 0 when it is done or was stopped, 1 when it failed.

    Examples: braid pipeline run orders.toml; braid pipeline run archive --set topic=orders
    --set lake=/data/lake
    """
    path, definition = _load(file, values)
    from braidmq.pipeline.session import require_spark, session

    require_spark()
    from braidmq.pipeline.reporting import Progress, Reporter
    from braidmq.pipeline.runner import Runner

    broker = _broker(url, user, password, namespace)
    reporter = Reporter(definition.name, broker)
    reporter.report(Progress())
    progress = Progress()
    try:
        with (
            session(definition.name, master, remote, definition.spark) as spark,
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
    print(f"{definition.name} {progress.state}: {progress.rows} rows")


class _Watch:
    """Shows progress, tells the broker, and hears of wishes to stop."""

    def __init__(self, reporter: "Reporter", quiet: bool) -> None:
        self._reporter = reporter
        self._live: Any = None
        self._quiet = quiet
        self._lines = not sys.stdout.isatty()
        self._stop = False
        self._reported_s = 0.0
        self._shown: tuple[Any, ...] = ()
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
            self._stop = self._reporter.report(progress) or self._stop
        return self._stop

    def show(self, progress: "Progress") -> None:
        if self._quiet:
            return
        rows = [
            {
                "sink": each.name,
                "batch": max(each.batch, 0),
                "rows": each.rows,
                "rows_/s": round(each.rows_per_s),
                "lag": each.lag,
                "batch_ms": each.batch_ms,
                "status": each.status,
            }
            for each in progress.sinks
        ]
        if self._live is not None:
            self._live.update(table_of(rows, SINK_COLUMNS))
            return
        said = tuple((row["sink"], row["batch"], row["rows"], row["status"]) for row in rows)
        if said != self._shown and rows:
            self._shown = said
            for row in rows:
                print(" ".join(f"{name}={row[name]}" for name in SINK_COLUMNS if row[name] != ""))


@app.command("list")
def list_pipelines(
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Those that come with BraidMQ instead.")
    ] = False,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show pipelines that have reported to the node within a week, and their state.

    Example: braid pipeline list
    """
    if shipped:
        show(_shipped(), ("pipeline", "parameters", "description"), as_json)
        return
    found = Api(url, user, password, namespace).get("pipelines")
    rows = [
        {
            **each,
            "pipeline": each["name"],
            "rows_/s": round(each["rows_per_s"]),
            "seen": _ago(each["seen_ms"]),
        }
        for each in found
    ]
    if as_json:
        print_json(found)
    else:
        show(rows, COLUMNS, False)


@app.command()
def status(
    name: Name,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show the state of a pipeline, and why it failed if it did.

    Example: braid pipeline status orders
    """
    found = Api(url, user, password, namespace).get("pipelines", name)
    if as_json:
        print_json(found)
        return
    ages = {"started": _ago(found["started_ms"]), "seen": _ago(found["seen_ms"])}
    show_one({**found, **ages}, FIELDS, False)


@app.command()
def stop(
    name: Name,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Ask whoever runs a pipeline to stop it, through the node; it does within seconds.

    Example: braid pipeline stop orders
    """
    found = Api(url, user, password, namespace).post("pipelines", name, "stop")
    if found["state"] != "running":
        raise Conflict(f"pipeline {name!r} is not running: it is {found['state']}")


def _load(file: str, values: list[str] | None) -> "tuple[Path, Definition]":
    from braidmq.pipeline.definition import find, load

    given: dict[str, str] = {}
    for each in values or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise BadRequest(f"--set {each}: expected name=value")
        given[name] = value
    path = find(file)
    return path, load(path, given)


def _broker(url: str, user: str, password: str | None, namespace: str) -> Any:
    from braidmq.pipeline.options import BrokerOptions

    secret = password_of(user) if password is None else password
    return BrokerOptions(url=url.rstrip("/"), user=user, password=secret, namespace=namespace)


def _described(definition: "Definition") -> str:
    sources = ", ".join(
        each.topic or each.topic_pattern or each.lake or f"table {each.table}"
        for each in definition.sources
    )
    sinks = ", ".join(
        each.topic or each.lake or each.report or "console" for each in definition.sinks
    )
    return f"{sources} → {len(definition.steps)} steps → {sinks} ({definition.trigger})"


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


def _ago(at_ms: int) -> str:
    return f"{span_text(max(int(time.time() * 1000) - at_ms, 0))} ago"
