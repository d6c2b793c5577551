"""``braid consume``: messages of a topic on stdout, with or without consuming them."""

import base64
import json
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.api import DEFAULT_URL, GUEST, ROOT, Namespace, Secret, Url, User, printable
from braidmq.cli.broker import AMQP_PORT, AmqpPort, open_broker
from braidmq.cli.units import Position, position
from braidmq.model.errors import NotFound

if TYPE_CHECKING:
    from braidmq.client import Message, StoredMessage, SyncBroker

LOOK_S = 0.2
"""How often a reader that follows looks for more."""

QUEUE = "queue"
"""What the subscription of an AMQP queue is called."""


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    RAW = "raw"


def consume(
    topic: Annotated[str, typer.Argument(help="The topic, or AMQP queue.")],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Take messages as a member of this group, made if missing, and acknowledge each"
            " once it is printed. `queue` is an AMQP queue's own. Without a group messages are only"
            " read: nobody misses them.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="earliest, latest, an offset, a time such as 2026-05-01T12:00, or 10m for ten"
            " minutes ago. An existing group continues where it was.",
        ),
    ] = "earliest",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new messages until Ctrl-C.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after this many messages.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, help="With --group, without --follow: seconds without a message."),
    ] = 1.0,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="text: the value and a new line, control characters escaped. json: an object a"
            " line, with everything the message says. raw: the value's bytes, nothing else.",
        ),
    ] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="As --format json.")] = False,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    amqp_port: AmqpPort = AMQP_PORT,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Print messages of a topic: all it has, or with --follow also those to come.

    Examples: braid consume orders --from 10m --json; braid consume orders --follow --from latest;
    braid consume orders --group billing --count 10
    """
    begin = position(start, datetime.now(UTC))
    out = _Printer(Format.JSON if as_json else form)
    # An interrupt may come between making a coroutine and handing it to its loop.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        with open_broker(url, amqp_port, user, password, namespace) as broker:
            if group is None:
                for stored in islice(_read(broker, topic, begin, follow), count):
                    out.stored(stored)
            else:
                _take(broker, topic, group, begin, out, count, None if follow else wait)
    except KeyboardInterrupt:
        return  # the usual end of --follow


def _read(
    broker: "SyncBroker", topic: str, begin: Position, follow: bool
) -> "Iterator[StoredMessage]":
    """Partition by partition, and with ``follow`` over and over."""
    offsets: dict[int, int | None] = {
        each["partition"]: _offset(begin, each)
        for each in broker.admin.describe_topic(topic)["partitions"]
    }
    since = begin if isinstance(begin, datetime) else None
    while True:
        for partition, offset in offsets.items():
            for message in broker.read(
                topic,
                partition=partition,
                from_offset=offset,
                from_time=since if offset is None else None,
            ):
                offsets[partition] = message.offset + 1
                yield message
        if not follow:
            return
        time.sleep(LOOK_S)


def _offset(begin: Position, partition: dict[str, Any]) -> int | None:
    """Where to begin in a partition; None is where its time says."""
    if isinstance(begin, datetime):
        return None
    first: int = partition["start_offset"]
    end: int = partition["next_offset"]
    if isinstance(begin, int):
        return min(max(begin, first), end)
    return first if begin == "earliest" else end


def _take(
    broker: "SyncBroker",
    topic: str,
    group: str,
    begin: Position,
    out: "_Printer",
    count: int | None,
    wait_s: float | None,
) -> None:
    """``wait_s`` without a message is the end; None is never."""
    from braidmq.client.consumer import PREFETCH

    prefetch = PREFETCH if count is None else min(count, PREFETCH)
    name = None if group == QUEUE else group
    with ExitStack() as stack:
        try:
            consumer = stack.enter_context(
                broker.consume(topic, group=name, start=begin, prefetch=prefetch)
            )
        except NotFound as error:
            remedy = f"Create it with `braid topics create {topic}`"
            raise NotFound(str(error), remedy=remedy) from None
        left = count
        while left != 0 and (message := consumer.get(wait_s)) is not None:
            out.delivered(message)
            message.ack()
            left = left and left - 1


class _Printer:
    """Writes each message through before the next: whoever reads a pipe sees it at once, and what
    is acknowledged was printed."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._out = sys.stdout.buffer

    def stored(self, message: "StoredMessage") -> None:
        if self._form is Format.JSON:
            self._json(_stored(message))
        else:
            self._value(message.value or b"")

    def delivered(self, message: "Message") -> None:
        if self._form is Format.JSON:
            self._json(_delivered(message))
        else:
            self._value(message.value)

    def _json(self, found: dict[str, Any]) -> None:
        self._write(json.dumps(found, default=str, ensure_ascii=False).encode() + b"\n")

    def _value(self, value: bytes) -> None:
        if self._form is Format.TEXT:
            value = printable(value.decode(errors="backslashreplace")).encode() + b"\n"
        self._write(value)

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()


def _stored(message: "StoredMessage") -> dict[str, Any]:
    import msgspec

    # The names of the HTTP API, without what the message does not say.
    every = msgspec.to_builtins(message)
    return {name: value for name, value in every.items() if value not in (None, {})} | (
        {"value": None} if message.value is None else {}
    )


def _delivered(message: "Message") -> dict[str, Any]:
    from braidmq.client.metadata import KEY

    said = message.properties
    every = {
        "topic": message.topic,
        **_text("value", message.value),
        **_text("key", message.key),
        "headers": {
            name: value if isinstance(value, str | int | float | bool) else str(value)
            for name, value in message.headers.items()
            if name != KEY
        },
        "priority": message.priority,
        "ttl_ms": message.ttl_ms,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "message_id": message.message_id,
        "type": said.type,
        "app_id": said.app_id,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "delivery_count": message.delivery_count,
        "redelivered": message.redelivered,
    }
    return {name: value for name, value in every.items() if value not in (None, {})}


def _text(name: str, value: bytes | None) -> dict[str, str]:
    """As text, or in base64 what is none."""
    if value is None:
        return {}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
