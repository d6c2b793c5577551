"""``braid stats``: reliability, delays, priorities and transactions in figures."""

from typing import Annotated, Any

import typer

from braidmq.cli.api import LIMIT, Limit
from braidmq.cli.commands import AnyNode, Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import seen
from braidmq.cli.units import span_text, time_text

app = Commands(
    name="stats",
    help="Figures of reliability, delays, priorities and transactions.",
    no_args_is_help=True,
)

RELIABILITY = (
    *("topics", "subscriptions", "consumers", "ready", "in_flight", "retrying", "delivered"),
    *("redelivered", "acked", "nacked", "rejected", "timed_out", "expired", "dead_lettered"),
)
LANES = (
    *("topic", "subscription", "partition", "lane", "weight", "ready", "in_flight", "served"),
    *("per_second", "last_served"),
)


@app.command()
def reliability(
    node: InNamespace,
    out: Out,
) -> None:
    """Show what is in flight and retried, and what became of messages since the node started.

    Example: braid stats reliability
    """
    out.show_one(node.api().get("reliability", "stats"), RELIABILITY)


@app.command()
def delays(
    node: InNamespace,
    out: Out,
) -> None:
    """Show how many messages wait for their time, where, and what became of others.

    Example: braid stats delays
    """
    found = node.api().get("delay", "stats")
    if out.is_data:
        out.data(found)
        return
    next_ms = found.get("next_timer_ms")
    told = {
        **{name: found[name] for name in ("pending", "delivered", "cancelled", "expired")},
        "timers": found["timers"],
        "next_timer": None if next_ms is None else time_text(next_ms),
        "topics": [f"{each['topic']} {each['pending']}" for each in found["topics"]],
    }
    out.show_one(told, tuple(told))


@app.command()
def priorities(
    node: InNamespace,
    out: Out,
    topic: Annotated[
        str | None, typer.Argument(help="Only this topic.", autocompletion=complete("topics"))
    ] = None,
    limit: Limit = LIMIT,
) -> None:
    """Show the lanes of partitions: what is ready and in flight, and how they are served.

    Example: braid stats priorities orders
    """
    api = node.api()
    if topic is not None:
        seen(api, "topics", topic)
    found = api.first("priority", "stats", limit=limit, key="partitions", topic=topic)
    if out.is_data:
        out.data({"partitions": found})
        return
    out.show([row for each in found for row in _rows(each)], LANES)


def _rows(partition: dict[str, Any]) -> list[dict[str, Any]]:
    where = {name: partition[name] for name in ("topic", "subscription", "partition")}
    return [
        {
            **where,
            **each,
            "weight": each.get("weight"),
            "per_second": each["served_per_second"],
            "last_served": time_text(each["last_served_ms"]) if "last_served_ms" in each else None,
        }
        for each in partition["lanes"]
    ]


@app.command()
def transactions(
    node: AnyNode,
    out: Out,
) -> None:
    """Show how many transactions are open, were committed and aborted, on the whole node.

    Example: braid stats transactions
    """
    found = node.global_api().get("transactions", "stats")
    if out.is_data:
        out.data(found)
        return
    age_ms = found.get("oldest_age_ms")
    told = {**found, "oldest": None if age_ms is None else span_text(age_ms)}
    out.show_one(told, ("open", "oldest", "records", "committed", "aborted", "producers"))
