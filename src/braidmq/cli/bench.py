"""``braid bench``: load for a running broker, ours or another."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.commands import Commands
from braidmq.cli.units import size_bytes, span_s
from braidmq.model.errors import BadSetting, BraidError, Kind, SetupError

if TYPE_CHECKING:
    from braidmq.loadgen.driver import OnProgress
    from braidmq.loadgen.result import Latency, Result

app = Commands(name="bench", help="Load for a running broker.", no_args_is_help=True)

DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"
DEFAULT_MQTT_URL = "mqtt://127.0.0.1:1883"


MEASURED_S_MIN = 0.1
PAYLOAD_BYTES_MIN = 24
"""A number, a time and a checksum."""


class NotExactlyOnce(BraidError):
    kind = Kind.REFUSED
    code = "not-exactly-once"


@app.callback()
def bench() -> None:
    """Load for a running broker, ours or another."""


@app.command()
def amqp(
    url: Annotated[str, typer.Option(help="The broker; any that speaks AMQP 0-9-1.")] = DEFAULT_URL,
    workload: Annotated[
        str, typer.Option(help="A, B, C, D1, D2, D3, E, topic, topic-1 or backlog.")
    ] = "A",
    seconds: Annotated[
        str,
        typer.Option(
            help="How long to measure, after a second of warming up: 20, 500ms or 2m, for example."
        ),
    ] = "8",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Drive a broker as fast as it answers, and check that each message arrives exactly once.

    Makes queues of its own and deletes them. Exits with 1 if a message was lost, duplicated,
    reordered or refused.

    A: 128 B persistent, confirm window 1000, prefetch 1000, ack every 100. B: transient, no
    confirms, auto-ack. C: 2000 msg/s, ack each. D1: 200 producers × 50/s into one queue; D2: into
    200 queues; D3: 200 producers, window 1, unthrottled. E: A with 1 KB. topic: A through a topic
    exchange with 1000 bindings and 1000 keys in turn (topic-1: one key). backlog: a million
    messages published, then drained.

    Example: braid bench amqp --workload A --seconds 20
    """
    # Here and not above: other commands should not load the kernels.
    from braidmq.loadgen.amqp import run
    from braidmq.loadgen.amqp_workloads import WORKLOADS

    if workload not in WORKLOADS:
        raise SetupError(
            f"there is no workload {workload}", remedy=f"Use one of {', '.join(WORKLOADS)}"
        )
    span = _span_s(seconds)
    with _Bar(workload) as bar:
        result = run(WORKLOADS[workload], url, span, bar.show)
    _report(result, as_json)


@app.command()
def mqtt(
    url: Annotated[
        str, typer.Option(help="The broker; any that speaks MQTT 3.1.1 or 5.0.")
    ] = DEFAULT_MQTT_URL,
    qos: Annotated[int, typer.Option(help="Of publishes and subscriptions.", min=0, max=2)] = 0,
    publishers: Annotated[int, typer.Option(help="Connections that publish.", min=1)] = 1,
    subscribers: Annotated[
        int, typer.Option(help="Connections that each get every message.", min=1)
    ] = 1,
    window: Annotated[
        int,
        typer.Option(
            help="Publishes of one publisher that wait for their answer, above QoS 0.",
            min=1,
            max=65_535,
        ),
    ] = 1000,
    size: Annotated[
        str, typer.Option(help="Of a payload, at least 24: 128, or 4KiB, for example.")
    ] = "128",
    rate: Annotated[
        int, typer.Option(help="Publishes a second in all; 0: as fast as possible.", min=0)
    ] = 0,
    persistent: Annotated[
        bool, typer.Option("--persistent", help="Sessions that outlive their connections.")
    ] = False,
    v5: Annotated[bool, typer.Option("--v5", help="MQTT 5.0 instead of 3.1.1.")] = False,
    seconds: Annotated[
        str,
        typer.Option(
            help="How long to measure, after a second of warming up: 20, 500ms or 2m, for example."
        ),
    ] = "8",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Drive a broker as fast as it answers, and check that each message arrives exactly once.

    Uses a topic and client ids of its own. Exits with 1 if a subscriber missed a message or got it
    twice or out of order. Without answers (QoS 0) at most 50 000 messages are under way, so that a
    broker that takes more than it can deliver need not drop any. The confirm of QoS 2 is PUBCOMP.

    Example: braid bench mqtt --qos 1 --persistent
    Example: braid bench mqtt --subscribers 50
    Example: braid bench mqtt --qos 1 --rate 2000
    """
    from braidmq.loadgen.mqtt import run
    from braidmq.loadgen.mqtt_workloads import MqttWorkload
    from braidmq.wire.mqtt.constants import Version

    span, payload_bytes = _span_s(seconds), size_bytes(size)
    if payload_bytes < PAYLOAD_BYTES_MIN:
        raise BadSetting(
            f"{size!r} is too small a payload", remedy=f"Use at least {PAYLOAD_BYTES_MIN} bytes"
        )
    kept = "persistent sessions" if persistent else "sessions in memory"
    workload = MqttWorkload(
        f"QoS {qos}, {publishers}:{subscribers}",
        f"{payload_bytes} B, {kept}" + (f", window {window}" if qos else ""),
        producers=publishers,
        body_bytes=payload_bytes,
        window=window if qos else 0,
        per_second=rate / publishers,
        qos=qos,
        subscribers=subscribers,
        persistent=persistent,
        version=Version.V5 if v5 else Version.V3_1_1,
    )
    with _Bar(workload.name) as bar:
        result = run(workload, url, span, bar.show)
    _report(result, as_json)


def _span_s(text: str) -> float:
    found = span_s(text)
    if found < MEASURED_S_MIN:
        raise BadSetting(
            f"{text!r} is too short to measure", remedy=f"Use {MEASURED_S_MIN} seconds at least"
        )
    return found


def _report(result: "Result", as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.as_dict(), indent=2))
    else:
        _print(result)
    if not result.exactly_once:
        raise NotExactlyOnce(
            f"{result.lost} lost, {result.duplicated} duplicated, {result.reordered} reordered,"
            f" {result.nacked} refused, {result.strange} unexpected"
        )


class _Bar:
    """Progress on stderr, so that what is on stdout can be piped."""

    def __init__(self, workload: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,  # a thread of its own would take the lock from the generator
        )
        self._task = self._progress.add_task(f"{workload}: setting up")
        self._workload = workload
        self._last = (0.0, 0, 0)

    def __enter__(self) -> "_Bar":
        if sys.stderr.isatty():
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def show(self) -> "OnProgress":
        return self._show

    def _show(self, now: "object") -> None:
        from braidmq.loadgen.driver import Progress

        assert isinstance(now, Progress)
        then, published, received = self._last
        self._last = (now.elapsed_s, now.published, now.received)
        span = max(now.elapsed_s - then, 1e-9)
        self._progress.update(
            self._task,
            description=f"{self._workload}: {now.phase}"
            f" · {(now.published - published) / span:>11,.0f}/s published"
            f" · {(now.received - received) / span:>11,.0f}/s received"
            f" · {now.published - now.received:>9,} under way",
        )
        if sys.stderr.isatty():
            self._progress.refresh()


def _print(result: "Result") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    rows = {
        "workload": f"{result.workload}: {result.about}",
        "published": f"{result.publish_rate:,.0f} msg/s",
        "received": f"{result.rate:,.0f} msg/s ({result.measured:,} in the measured part)",
        "end to end": _latency(result.end_to_end_ms),
        "confirm": _latency(result.confirm_ms),
        "broker": _broker(result),
        "generator": f"{result.generator_busy:.2f} of a core",
        "checked": f"{result.received:,} of {result.published:,} received; {result.lost} lost,"
        f" {result.duplicated} duplicated, {result.reordered} reordered",
        "notes": "; ".join(result.notes),
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _latency(found: "Latency | None") -> str:
    if found is None:
        return ""
    return (
        f"p50 {found.p50:.3f}  p90 {found.p90:.3f}  p99 {found.p99:.3f}  p99.9 {found.p999:.3f}"
        f"  max {found.max:.3f} ms"
    )


def _broker(result: "Result") -> str:
    parts = [result.broker]
    if result.cpu_us_per_message is not None:
        parts.append(f"{result.cpu_us_per_message:.2f} µs of processor a message")
    if result.drain_cpu_us_per_message is not None:
        parts.append(f"{result.drain_cpu_us_per_message:.2f} µs when drained")
    if result.broker_cpus is not None:
        parts.append(f"{result.broker_cpus:.2f} cores")
    if result.broker_rss_bytes is not None:
        parts.append(f"{result.broker_rss_bytes / 2**20:,.0f} MiB")
    return " · ".join(parts)
