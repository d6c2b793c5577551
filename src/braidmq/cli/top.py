"""``braid top``: what a node is doing, live."""

import os
import select
import sys
import termios
import time
import tty
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq.cli.api import NodeUnreachable
from braidmq.cli.away import AWAY, Away
from braidmq.cli.commands import InNamespace, Out
from braidmq.cli.node import Node
from braidmq.cli.output import Output, console, table_of
from braidmq.cli.units import size_text, span_s, span_text

if TYPE_CHECKING:
    from rich.console import Group

TOPIC_COLUMNS = ("topic", "published_/s", "published", "depth", "size", "groups", "consumers")
TOPIC_LESSER = ("groups", "published", "size", "consumers")
GROUP_LESSER = ("in_flight", "consumers", "ready")
GROUP_COLUMNS = ("group", "topic", "acked_/s", "lag", "ready", "in_flight", "consumers")

INTERVAL_S_MIN = 0.1
KEYS_BYTES = 64

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """What the node said, and when."""

    at_s: float
    overview: Row
    topics: list[Row]
    groups: list[Row]

    def as_dict(self) -> Row:
        return {"overview": self.overview, "topics": self.topics, "groups": self.groups}


def top(
    node: InNamespace,
    out: Out,
    interval: Annotated[
        str, typer.Option(help="Between updates, such as 500ms; a number alone is seconds.")
    ] = "1s",
    rows: Annotated[int, typer.Option(min=1, help="Most topics, and most groups, to show.")] = 15,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit; the default in a pipe.")
    ] = False,
) -> None:
    """Watch a node: rates, what waits (depth), and how far groups are behind (lag). `q` ends it.

    The topics with the most that waits come first. Rates of a topic or a group are those between
    two looks, so one look has none. With --json an object for each look. It goes on when the node
    is back after a restart.

    Examples: braid top; braid top --once --json
    """
    interval_s = max(span_s(interval), INTERVAL_S_MIN)
    first = _look(node)
    with suppress(KeyboardInterrupt):
        if out.is_data:
            _print_looks(node, first, interval_s, out, once=once)
        elif once or not sys.stdout.isatty():
            console().print(_frame(first, first, rows))
        else:
            _watch(node, first, interval_s, rows)


def _print_looks(node: Node, now: Look, interval_s: float, out: Output, *, once: bool) -> None:
    if once:
        out.data(now.as_dict())
        return
    away = Away()
    while True:
        out.line(now.as_dict())
        time.sleep(interval_s)
        while (look := _look_again(node)) is None:
            away.wait()
        away.back()
        now = look


def _watch(node: Node, now: Look, interval_s: float, rows: int) -> None:
    from rich.live import Live

    frame = _frame(now, now, rows)
    with Keys() as keys, Live(frame, screen=True, auto_refresh=False) as live:
        while not keys.quit_within(interval_s):
            look = _look_again(node)
            if look is None:
                live.update(_with_note(AWAY, frame), refresh=True)
                continue
            frame = _frame(now, look, rows)
            now = look
            live.update(frame, refresh=True)


class Keys:
    """What is typed while it runs, one key at a time and unseen."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> "Keys":
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            # What was typed before is kept.
            tty.setcbreak(sys.stdin, termios.TCSADRAIN)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def quit_within(self, seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        if self._before is None:
            time.sleep(seconds)
            return False
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left_s)[0]:
                typed = os.read(sys.stdin.fileno(), KEYS_BYTES)
                # No bytes: the terminal is gone.
                if not typed or b"q" in typed.lower():
                    return True
        return False


def _look_again(node: Node) -> Look | None:
    """None while the node is away."""
    try:
        return _look(node)
    except NodeUnreachable:
        return None


def _with_note(note: str, frame: "Group") -> "Group":
    from rich.console import Group
    from rich.text import Text

    return Group(Text(note, style="bold red"), frame)


def _look(node: Node) -> Look:
    # The overview is the node's: no namespace has it.
    overview, api = node.global_api().get("overview"), node.api()
    return Look(time.monotonic(), overview, api.every("topics"), api.every("subscriptions"))


def _frame(before: Look, now: Look, rows: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    return Group(
        *_head(now.overview),
        Text(),
        table_of(topic_rows(before, now)[:rows], TOPIC_COLUMNS, TOPIC_LESSER),
        Text(),
        table_of(group_rows(before, now)[:rows], GROUP_COLUMNS, GROUP_LESSER),
    )


def _head(node: Row) -> list[Any]:
    from rich.text import Text

    rates, totals = node["rates"], node["totals"]
    pressure = Text(node["pressure"], style="green" if node["pressure"] == "normal" else "bold red")
    return [
        Text.assemble(
            (node["node"], "bold"),
            f"  BraidMQ {node['version']}  up {span_text(node['uptime_ms'])}  publishers: ",
            pressure,
        ),
        Text(
            f"published {rates['published']:,.0f}/s  delivered {rates['delivered']:,.0f}/s"
            f"  acked {rates['acked']:,.0f}/s"
        ),
        Text(
            f"ready {node['ready']:,}  in flight {node['in_flight']:,}"
            f"  dead letters {totals['dead_lettered']:,}  redelivered {totals['redelivered']:,}"
        ),
        Text(
            f"topics {node['topics']:,}  groups {node['subscriptions']:,}"
            f"  consumers {node['consumers']:,}  connections {node['connections']:,}"
            f"  memory {size_text(node['memory_bytes'])}"
        ),
    ]


def topic_rows(before: Look, now: Look) -> list[Row]:
    then = {each["name"]: each["published"] for each in before.topics}
    found = [
        {
            "topic": each["name"],
            "published_/s": _rate(before, now, then.get(each["name"]), each["published"]),
            "published": each["published"],
            "depth": each["depth"],
            "size": size_text(each["depth_bytes"]),
            "groups": each["subscriptions"],
            "consumers": each["consumers"],
        }
        for each in now.topics
    ]
    return sorted(found, key=lambda row: (-row["depth"], -(row["published_/s"] or 0), row["topic"]))


def group_rows(before: Look, now: Look) -> list[Row]:
    then = {(each["topic"], each["name"]): each["acked"] for each in before.groups}
    found = [
        {
            "group": each["name"],
            "topic": each["topic"],
            "acked_/s": _rate(before, now, then.get((each["topic"], each["name"])), each["acked"]),
            "lag": each["lag"],
            "ready": each["ready"],
            "in_flight": each["in_flight"],
            "consumers": each["consumers"],
        }
        for each in now.groups
    ]
    return sorted(found, key=lambda row: (-row["lag"], row["topic"], row["group"]))


def _rate(before: Look, now: Look, then: int | None, count: int) -> int | None:
    """None where nothing is known to compare with, or it was made anew."""
    if then is None or now is before or count < then:
        return None
    return round((count - then) / (now.at_s - before.at_s))
