"""``braid publish``: messages from arguments, files or a pipe."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.api import (
    DEFAULT_URL,
    GUEST,
    ROOT,
    Namespace,
    Secret,
    Url,
    User,
    password_of,
    print_json,
)
from braidmq.cli.broker import AMQP_PORT, AmqpPort, open_broker
from braidmq.cli.units import duration_ms, pairs
from braidmq.model.errors import BadSetting, BraidError, Kind, SetupError

if TYPE_CHECKING:
    from braidmq.client import Failure, SyncProducer
    from braidmq.client.metadata import Metadata

BAR_AFTER_S = 1.0
"""What is quicker needs no bar."""

PRIORITY_MAX = 255
INTERRUPTED = 130
"""What shells say of a command that Ctrl-C ended."""


class PublishStopped(BraidError):
    kind = Kind.REFUSED
    code = "publish-stopped"


def publish(
    topic: Annotated[str, typer.Argument(help="The topic; with --exchange the routing key.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(help="A message each. None, and no --file: a message a line of stdin."),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(help="A file as one message, byte by byte; may be given again."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Messages with one key stay in order, in one partition.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="name=value; may be given again.")
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(help="0 to 255, or background, low, normal, high, critical."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="Deliver it after this time, such as 30s, 5m or 2h.")
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(help="Drop it if it was not consumed within this time, such as 1h."),
    ] = None,
    content_type: Annotated[str | None, typer.Option(help="Such as application/json.")] = None,
    exchange: Annotated[str, typer.Option(help="Publish through it, by routing key.")] = "",
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Most messages a second.", show_default="as fast as the node takes them"
        ),
    ] = None,
    namespace: Namespace = ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    url: Url = DEFAULT_URL,
    amqp_port: AmqpPort = AMQP_PORT,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Publish messages. When it says how many, they are on the node's disk.

    Stops at the first message that is refused, with exit code 1. Ctrl-C ends it when what was sent
    is safe, with exit code 130.

    Examples: braid publish orders '{"id": 17}' --key customer-5 --header source=shop;
    tail -f app.log | braid publish logs; braid publish pictures --file a.png --file b.png;
    seq 1000 | braid publish orders --rate 50
    """
    files = file or []
    for path in files:
        # Before any message is sent: half of what was asked for helps nobody.
        if not path.is_file():
            raise SetupError(f"{path} is not a file")
    metadata = _metadata(key, header or [], priority, delay, ttl, content_type)
    from_stdin = not values and not files
    if from_stdin and password is None:
        # Before the messages: it may have to be asked for.
        password = password_of(user)
    source = _lines() if from_stdin else _given(values or [], files)
    total = None if from_stdin else len(values or []) + len(files)
    refused: list[Failure] = []
    with ExitStack() as stack:
        broker = stack.enter_context(open_broker(url, amqp_port, user, password, namespace))
        producer = stack.enter_context(broker.producer(on_error=refused.append))
        started = time.monotonic()
        sent, interrupted = 0, False
        with _Bar(total) as bar:
            try:
                for value in _paced(source, rate):
                    producer.put(topic, value, exchange=exchange, **metadata)
                    sent += 1
                    bar.show(sent)
                    if refused:
                        break
            except KeyboardInterrupt:
                interrupted = True
            _settle(producer, refused, sent)
    seconds = time.monotonic() - started
    if as_json:
        print_json({"topic": topic, "published": sent, "seconds": round(seconds, 3)})
    else:
        print(f"published {sent} message{'' if sent == 1 else 's'} to {topic}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _settle(producer: "SyncProducer", refused: "list[Failure]", sent: int) -> None:
    producer.flush()
    if refused:
        error = refused[0].error
        if sent == 1:
            raise error
        raise PublishStopped(
            f"{sent - len(refused)} of {sent} messages were published, then: {error}"
        )


def _metadata(
    key: str | None,
    headers: list[str],
    priority: str | None,
    delay: str | None,
    ttl: str | None,
    content_type: str | None,
) -> "Metadata":
    found: Metadata = {}
    if key is not None:
        found["key"] = key
    if headers:
        found["headers"] = dict(pairs(headers))
    if priority is not None:
        found["priority"] = _priority(priority)
    if delay is not None:
        found["delay_ms"] = duration_ms(delay)
    if ttl is not None:
        found["ttl_ms"] = duration_ms(ttl)
    if content_type is not None:
        found["content_type"] = content_type
    return found


def _priority(text: str) -> int:
    from braidmq.engine.policy import PRIORITY_OF_LANE

    number = int(text) if text.isdecimal() else PRIORITY_OF_LANE.get(text, -1)
    if not 0 <= number <= PRIORITY_MAX:
        lanes = ", ".join(PRIORITY_OF_LANE)
        raise BadSetting(
            f"{text!r} is not a priority", remedy=f"Use a number from 0 to 255 or one of {lanes}"
        )
    return number


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _given(values: list[str], files: list[Path]) -> Iterator[bytes]:
    # As the bytes the shell gave, whatever they mean.
    yield from (value.encode(errors="surrogateescape") for value in values)
    for path in files:
        try:
            yield path.read_bytes()
        except OSError as error:
            raise SetupError(f"{path}: {error.strerror}") from None


def _paced(values: Iterable[bytes], rate: float | None) -> Iterator[bytes]:
    if rate is None:
        yield from values
        return
    due = time.monotonic()
    for value in values:
        wait_s = due - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        # What came late is not caught up with: a rate is a promise to whoever consumes.
        due = max(due, time.monotonic()) + 1 / rate
        yield value


class _Bar:
    """Progress on stderr, when a person waits for it."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._begins_s = time.monotonic() + BAR_AFTER_S
        self._seen = sys.stderr.isatty()
        self._stack = ExitStack()
        self._update: Callable[[int], None] | None = None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, sent: int) -> None:
        if self._update is not None:
            self._update(sent)
        elif self._seen and time.monotonic() > self._begins_s:
            self._update = self._begin()

    def _begin(self) -> "Callable[[int], None]":
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        progress = Progress(
            SpinnerColumn(),
            TextColumn("publishing"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._stack.enter_context(progress)
        task = progress.add_task("", total=self._total)
        return lambda sent: progress.update(task, completed=sent)
