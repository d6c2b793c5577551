"""``braid consume``: messages of a topic on stdout, with or without consuming them."""

import base64
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.away import Away
from braidmq.cli.commands import Json, WithAmqp
from braidmq.cli.completion import complete
from braidmq.cli.node import Node
from braidmq.cli.output import Template, printable
from braidmq.cli.progress import Bar
from braidmq.cli.stored import Reader
from braidmq.cli.units import Position, position, span_s
from braidmq.model.errors import BadSetting, NotFound

if TYPE_CHECKING:
    from braidmq.client import Message

QUEUE = "queue"
"""What the subscription of an AMQP queue is called."""


TEXT, JSON, RAW = FORMATS = ("text", "json", "raw")

FIELDS = (
    *("topic", "partition", "offset", "timestamp_ms", "value", "value_base64", "key", "key_base64"),
    *("headers", "headers_base64", "priority", "deliver_at_ms", "expires_at_ms", "ttl_ms"),
    *("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type"),
    *("app_id", "user_id", "exchange", "routing_key", "delivery_count", "redelivered"),
)
"""Of a message in JSON; one that it does not have is left out."""


def consume(
    node: WithAmqp,
    topic: Annotated[
        str,
        typer.Argument(help="The topic, or AMQP queue.", autocompletion=complete("queues")),
    ],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Take messages as a member of this group, made if missing, and acknowledge each"
            " once it is printed. `queue` is an AMQP queue's own. Without a group messages are only"
            " read: nobody misses them.",
            autocompletion=complete("groups"),
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
    last: Annotated[
        int | None,
        typer.Option(min=1, help="Begin with the last so many of the topic. Without a group."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new messages until Ctrl-C.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after this many messages.")
    ] = None,
    reject: Annotated[
        str | None,
        typer.Option(
            help="With --group: give each message up once it is printed, with this error. It"
            " becomes a dead letter.",
        ),
    ] = None,
    nack: Annotated[
        str | None,
        typer.Option(
            help="With --group: give each message back once it is printed, with this error. It is"
            " tried again, or becomes a dead letter.",
        ),
    ] = None,
    wait: Annotated[
        str,
        typer.Option(
            help="With --group, without --follow: end after this time without a message, such as"
            " 500ms or 1m; a number alone is seconds."
        ),
    ] = "1s",
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="text: the value and a new line, control characters escaped. json: an object a"
            " line, with everything the message says. raw: the value's bytes, nothing else. Or a"
            " template of JSON's fields, such as '{offset} {key} {value}'.",
            autocompletion=lambda: list(FORMATS),
        ),
    ] = TEXT,
    as_json: Json = False,
) -> None:
    """Print messages of a topic: all it has, or with --follow also those to come.

    With --follow it goes on when the node is back after a restart.

    Examples: braid consume orders --from 10m --json; braid consume orders --last 5;
    braid consume orders --follow --from latest; braid consume orders --group billing --count 10
    """
    answer = _answer(group, reject, nack)
    if last is not None and (group is not None or start != "earliest"):
        raise BadSetting("--last says where to begin", remedy="Leave out --from and --group")
    begin = position(start, datetime.now(UTC))
    out = _Printer(JSON if as_json else form)
    # An interrupt may come between making a coroutine and handing it to its loop.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        if group is None:
            reader = Reader(node.api(), topic, follow=follow)
            total = reader.begin(begin, last)
            expected = None if follow and count is None else min(total, count or total)
            with _progress("reading", expected) as bar:
                for number, stored in enumerate(islice(reader.messages(), count), 1):
                    out.stored(stored)
                    bar.show(number)
        else:
            wait_s = None if follow else span_s(wait)
            _take(node, topic, group, begin, out, count, wait_s, answer)
    except KeyboardInterrupt:
        return  # the usual end of --follow


def _progress(label: str, total: int | None) -> Bar:
    # On a terminal the messages themselves are what is seen.
    return Bar(label, total, shown=not sys.stdout.isatty())


def _answer(
    group: str | None, reject: str | None, nack: str | None
) -> "Callable[[Message], object]":
    """What is said to each message of a group."""
    if group is None and (reject is not None or nack is not None):
        raise BadSetting("--reject and --nack answer for messages of a group", remedy="Add --group")
    if reject is not None and nack is not None:
        raise BadSetting("a message has one answer", remedy="Give --reject or --nack")
    if reject is not None:
        return lambda message: message.reject(error=reject)
    if nack is not None:
        return lambda message: message.nack(error=nack)
    return lambda message: message.ack()


def _take(
    node: Node,
    topic: str,
    group: str,
    begin: Position,
    out: "_Printer",
    count: int | None,
    wait_s: float | None,
    answer: "Callable[[Message], object]",
) -> None:
    """``wait_s`` without a message is the end; None is never, and a node that goes away is waited
    for."""
    from braidmq.client import ConnectFailed, ConnectionLost

    away = Away()
    taken = 0
    with _progress("taking", count) as bar:
        while True:
            try:
                for message in _taken(node, topic, group, begin, count, taken, wait_s, away):
                    out.delivered(message)
                    answer(message)
                    taken += 1
                    bar.show(taken)
                return
            except (ConnectFailed, ConnectionLost):
                # What was printed and not acknowledged comes again.
                if wait_s is not None or not away.may_wait:
                    raise
                away.wait()


def _taken(
    node: Node,
    topic: str,
    group: str,
    begin: Position,
    count: int | None,
    taken: int,
    wait_s: float | None,
    away: Away,
) -> "Iterator[Message]":
    from braidmq.client.consuming import PREFETCH

    left = None if count is None else count - taken
    prefetch = PREFETCH if left is None else min(left, PREFETCH)
    name = None if group == QUEUE else group
    with ExitStack() as stack:
        broker = stack.enter_context(node.broker("consume --group"))
        try:
            consumer = stack.enter_context(
                broker.consume(topic, group=name, start=begin, prefetch=max(prefetch, 1))
            )
        except NotFound as error:
            remedy = f"Create it with `braid topics create {topic}`"
            raise NotFound(str(error), remedy=remedy) from None
        away.back()
        while left != 0 and (message := consumer.get(wait_s)) is not None:
            yield message
            left = left and left - 1


class _Printer:
    """Writes each message through before the next: whoever reads a pipe sees it at once, and what
    is acknowledged was printed."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._template: Template | None = None
        if form not in FORMATS:
            if "{" not in form:
                raise BadSetting(
                    f"{form!r} is not a format",
                    remedy="Use text, json, raw, or a template such as '{offset} {value}'",
                )
            self._template = Template(form)
            self._template.check(FIELDS)
        self._out = sys.stdout.buffer

    def stored(self, message: dict[str, Any]) -> None:
        if self._form in (TEXT, RAW):
            self._value(_bytes(message))
        else:
            self._fields(message)

    def delivered(self, message: "Message") -> None:
        if self._form in (TEXT, RAW):
            self._value(message.value)
        else:
            self._fields(_delivered(message))

    def _fields(self, found: dict[str, Any]) -> None:
        if self._template is not None:
            line = self._template.line(found)
        else:
            line = json.dumps(found, default=str, ensure_ascii=False)
        self._write(line.encode(errors="backslashreplace") + b"\n")

    def _value(self, value: bytes) -> None:
        if self._form == TEXT:
            value = printable(value.decode(errors="backslashreplace")).encode() + b"\n"
        self._write(value)

    def _write(self, data: bytes) -> None:
        self._out.write(data)
        self._out.flush()


def _bytes(message: dict[str, Any]) -> bytes:
    if "value_base64" in message:
        return base64.b64decode(message["value_base64"])
    return (message.get("value") or "").encode()


def _delivered(message: "Message") -> dict[str, Any]:
    from braidmq.client.metadata import KEY

    every = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp_ms": message.first_seen_ms,
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
        "type": message.type,
        "app_id": message.app_id,
        "user_id": message.user_id,
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
