"""``braid groups``: who reads which topic, and how far behind they are.

A group is a subscription of each topic it reads. One whose members share out partitions also has a
record of its own; one of AMQP consumers, or of single calls over HTTP, has not.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from braidmq.cli.api import Api
from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm
from braidmq.cli.output import counted, print_table, printable
from braidmq.cli.topics import READER_COLUMNS, ages
from braidmq.cli.units import span_text, wire_position
from braidmq.model.errors import NotFound

app = Commands(
    name="groups",
    help="Groups: who reads which topic, and how far behind they are.",
    no_args_is_help=True,
)

COLUMNS = ("group", "topic", "mode", "consumers", "lag", *READER_COLUMNS[4:])
LESSER = ("mode", "oldest_in_flight", "ready", "consumers")
LAG_LESSER = ("committed", "end")
LAG_COLUMNS = ("topic", "partition", "committed", "end", "lag", "in_flight", "member")
ASSIGNED = "assigned"
"""The mode of a subscription whose group shares out partitions."""

Name = Annotated[str, typer.Argument(help="The group's name.", autocompletion=complete("groups"))]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        help="Only this one.",
        show_default="all it reads",
        autocompletion=complete("topics"),
    ),
]


@app.command("list")
def list_groups(
    node: InNamespace,
    out: Out,
    topic: Topic = None,
) -> None:
    """Show all groups by topic, with their lag: messages of the topic they have not settled.

    `oldest ready` is how long a message has waited for a consumer, `oldest in flight` how long a
    consumer has not answered. The group called `queue` is an AMQP queue's own.

    Example: braid groups list --topic orders
    """
    path = ["subscriptions"] if topic is None else ["topics", topic, "subscriptions"]
    found = node.api().every(*path)
    rows = [{"group": each.pop("name"), **each} for each in found]
    if not out.is_data:
        rows = [each | ages(each) for each in rows]
    out.show(rows, COLUMNS, LESSER)


@app.command("show")
def show_group(
    node: InNamespace,
    out: Out,
    name: Name,
    topic: Topic = None,
) -> None:
    """Show a group's lag in each partition, and which member has it.

    Example: braid groups show billing
    """
    api = node.api()
    subscriptions = _subscriptions(api, name, topic)
    members: list[dict[str, Any]] = []
    if any(each["mode"] == ASSIGNED for each in subscriptions):
        members = api.get("groups", name)["members"]
    if out.is_data:
        out.data({"group": name, "members": members, "subscriptions": subscriptions})
        return
    owners = {
        (topic, partition): member["member_id"]
        for member in members
        for topic, partitions in member["assigned"].items()
        for partition in partitions
    }
    rows = [
        {
            **lag,
            "topic": each["topic"],
            "member": owners.get((each["topic"], lag["partition"])),
        }
        for each in subscriptions
        for lag in each["partitions"]
    ]
    print_table(rows, LAG_COLUMNS if members else LAG_COLUMNS[:-1], LAG_LESSER)
    total = sum(row["lag"] for row in rows)
    consumers = sum(each["consumers"] for each in subscriptions)
    print(f"\n{printable(name)}: lag {total}, consumers {consumers}{_oldest(subscriptions)}")


def _oldest(subscriptions: list[dict[str, Any]]) -> str:
    said = ""
    for name in ("oldest_ready", "oldest_in_flight"):
        found = [each[f"{name}_ms"] for each in subscriptions if each[f"{name}_ms"] is not None]
        if found:
            said += f", {name.replace('_', ' ')} {span_text(max(found))}"
    return said


@app.command()
def seek(
    node: InNamespace,
    out: Out,
    name: Name,
    to: Annotated[
        str,
        typer.Argument(
            help="earliest, latest, an offset, a time such as 2026-05-01T12:00, or 10m for ten"
            " minutes ago."
        ),
    ],
    topic: Topic = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Only this one.", show_default="all"),
    ] = None,
    yes: Yes = False,
) -> None:
    """Move a group to another position, in all partitions or in one.

    Example: braid groups seek billing 2h --topic orders --yes
    """
    api = node.api()
    body: dict[str, Any] = {"to": wire_position(to, datetime.now(UTC))}
    if partition is not None:
        body["partition"] = partition
    subscriptions = _subscriptions(api, name, topic)
    where = (
        _topics(subscriptions)
        if partition is None
        else f"partition {partition} of {_topics(subscriptions)}"
    )
    confirm(
        yes,
        f"Move group {name!r} to {to} in {where}? Messages come again, or are passed over.",
    )
    for each in subscriptions:
        if each["mode"] == ASSIGNED:
            api.post("groups", name, "seek", body={"topic": each["topic"], **body})
        else:
            path = ("topics", each["topic"], "subscriptions", name, "seek")
            api.post(*path, body=body)
    topics = [each["topic"] for each in subscriptions]
    moved = {"group": name, "to": body["to"], "topics": topics, "partition": partition}
    out.done(f"moved group {name!r} to {to} in {where}", moved)


def _topics(subscriptions: list[dict[str, Any]]) -> str:
    if len(subscriptions) == 1:
        return f"topic {subscriptions[0]['topic']!r}"
    return counted(len(subscriptions), "topic")


@app.command()
def delete(
    node: InNamespace,
    out: Out,
    name: Name,
    topic: Topic = None,
    yes: Yes = False,
) -> None:
    """Delete a group and its positions. One with members is refused (exit 6).

    Example: braid groups delete billing --yes
    """
    api = node.api()
    subscriptions = _subscriptions(api, name, topic)
    lag = sum(each["lag"] for each in subscriptions)
    what = f"group {name!r} of {_topics(subscriptions)}, with a lag of {counted(lag, 'message')}"
    topics = [each["topic"] for each in subscriptions]
    confirm(yes, f"Delete {what}?")
    if topic is None and any(each["mode"] == ASSIGNED for each in subscriptions):
        api.delete("groups", name)
        subscriptions = [each for each in subscriptions if each["mode"] != ASSIGNED]
    for each in subscriptions:
        api.delete("topics", each["topic"], "subscriptions", name)
    out.done(f"deleted {what}", {"deleted": name, "topics": topics, "lag": lag})


def _subscriptions(api: Api, name: str, topic: str | None) -> list[dict[str, Any]]:
    if topic is not None:
        return [api.get("topics", topic, "subscriptions", name)]
    found = [each for each in api.every("subscriptions") if each["name"] == name]
    if not found:
        raise NotFound(f"there is no group {name!r}", remedy="`braid groups list` has all names")
    return found
