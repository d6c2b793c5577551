"""``braid top``: what a node is doing, live."""

import json
import sys
import time
from dataclasses import dataclass
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
    print_json,
    table_of,
)
from braidmq.cli.topics import every_topic
from braidmq.cli.units import size_text, span_text

if TYPE_CHECKING:
    from rich.console import Group

TOPIC_COLUMNS = ("topic", "published_/s", "published", "depth", "size", "groups", "consumers")
GROUP_COLUMNS = ("group", "topic", "acked_/s", "lag", "ready", "in_flight", "consumers")

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
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 1.0,
    rows: Annotated[int, typer.Option(min=1, help="Most topics, and most groups, to show.")] = 15,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and exit; the default in a pipe.")
    ] = False,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Watch a node: rates, what waits (depth), and how far groups are behind (lag). Ctrl-C ends it.

    The topics with the most that waits come first. Rates of a topic or a group are those between
    two looks, so one look has none. With --json an object for each look.

    Examples: braid top; braid top --once --json
    """
    api = Api(url, user, password, namespace)
    first = _look(api)
    if once or not (as_json or sys.stdout.isatty()):
        if as_json:
            print_json(first.as_dict())
        else:
            console().print(_frame(first, first, rows))
        return
    try:
        _watch(api, first, interval, rows, as_json)
    except KeyboardInterrupt:
        return


def _watch(api: Api, now: Look, interval_s: float, rows: int, as_json: bool) -> None:
    from contextlib import nullcontext

    from rich.live import Live

    live = Live(_frame(now, now, rows), screen=True, auto_refresh=False)
    with nullcontext() if as_json else live:
        while True:
            if as_json:
                print(json.dumps(now.as_dict()), flush=True)
            time.sleep(interval_s)
            before, now = now, _look(api)
            if not as_json:
                live.update(_frame(before, now, rows), refresh=True)


def _look(api: Api) -> Look:
    return Look(time.monotonic(), api.get("overview"), every_topic(api), api.get("subscriptions"))


def _frame(before: Look, now: Look, rows: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    return Group(
        *_head(now.overview),
        Text(),
        table_of(topic_rows(before, now)[:rows], TOPIC_COLUMNS),
        Text(),
        table_of(group_rows(before, now)[:rows], GROUP_COLUMNS),
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
