"""``braid publish``: messages from arguments, files or a pipe."""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.commands import Out, WithAmqp
from braidmq.cli.node import Node
from braidmq.cli.output import counted
from braidmq.cli.posted import Posting
from braidmq.cli.progress import Bar
from braidmq.cli.units import duration_ms, moment, pairs
from braidmq.model.errors import BadSetting, BraidError, Kind, SetupError

if TYPE_CHECKING:
    from braidmq.client.metadata import Metadata

PRIORITY_MAX = 255
INTERRUPTED = 130
"""What shells say of a command that Ctrl-C ended."""


class PublishStopped(BraidError):
    kind = Kind.REFUSED
    code = "publish-stopped"


def publish(
    node: WithAmqp,
    out: Out,
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
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="Where they go, whatever their key: one that the topic has."),
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
    deliver_at: Annotated[
        str | None, typer.Option(help="Deliver it then, such as 2026-05-01T12:00; or --delay.")
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
    metadata = _metadata(key, header or [], priority, delay, deliver_at, ttl, content_type)
    if partition is not None:
        metadata["partition"] = partition
    from_stdin = not values and not files
    if from_stdin:
        # Before the messages: it may have to be asked for.
        node = node.with_password()
    source = _lines() if from_stdin else _given(values or [], files)
    bar = _bar_of_stdin() if from_stdin else Bar("publishing", len(values or []) + len(files))
    refused: list[BraidError] = []
    with ExitStack() as stack:
        put, flush = _sender(node, stack, topic, exchange, metadata, refused.append)
        started = time.monotonic()
        sent, sent_bytes, interrupted = 0, 0, False
        with bar:
            try:
                for value in _paced(source, rate):
                    put(value)
                    sent += 1
                    sent_bytes += len(value) + 1
                    bar.show(sent_bytes if bar.is_size else sent)
                    if refused:
                        break
            except KeyboardInterrupt:
                interrupted = True
            flush()
            _settle(refused, sent)
    seconds = time.monotonic() - started
    out.done(
        f"published {counted(sent, 'message')} to {topic}",
        {"topic": topic, "published": sent, "seconds": round(seconds, 3)},
    )
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _sender(
    node: Node,
    stack: ExitStack,
    topic: str,
    exchange: str,
    metadata: "Metadata",
    on_error: Callable[[BraidError], None],
) -> tuple[Callable[[bytes], None], Callable[[], None]]:
    """What sends a message, and what waits until all are safe: over AMQP, or HTTP for a token."""
    if node.token is not None:
        posting = Posting(node.api(), topic, exchange, on_error)
        return partial(posting.put, metadata=dict(metadata)), posting.flush
    broker = stack.enter_context(node.broker("publish"))
    producer = stack.enter_context(broker.producer(on_error=lambda each: on_error(each.error)))

    def put(value: bytes) -> None:
        producer.put(topic, value, exchange=exchange, **metadata)

    return put, producer.flush


def _settle(refused: list[BraidError], sent: int) -> None:
    if refused:
        error = refused[0]
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
    deliver_at: str | None,
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
    if deliver_at is not None:
        if delay is not None:
            raise BadSetting("--delay and --deliver-at exclude each other", remedy="Give only one")
        found["deliver_at"] = moment(deliver_at)
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


def _bar_of_stdin() -> Bar:
    """A file says how much it is, a pipe does not."""
    with suppress(OSError, ValueError):
        found = os.fstat(sys.stdin.fileno())
        if stat.S_ISREG(found.st_mode):
            return Bar("publishing", found.st_size, is_size=True)
    return Bar("publishing", None)
