"""``braid groups``: who reads which topic, and how far behind they are.

A group is a subscription of each topic it reads. One whose members share out partitions also has a
record of its own; one of AMQP consumers, or of single calls over HTTP, has not.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

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
    show,
    table_of,
)
from braidmq.cli.units import wire_position
from braidmq.model.errors import NotFound

app = typer.Typer(
    name="groups",
    help="Groups: who reads which topic, and how far behind they are.",
    no_args_is_help=True,
)

COLUMNS = ("group", "topic", "mode", "consumers", "lag", "ready", "in_flight")
LAG_COLUMNS = ("topic", "partition", "committed", "end", "lag", "in_flight", "member")
ASSIGNED = "assigned"
"""The mode of a subscription whose group shares out partitions."""

Name = Annotated[str, typer.Argument(help="The group's name.")]
Topic = Annotated[
    str | None, typer.Option("--topic", "-t", help="Only this one.", show_default="all it reads")
]


@app.command("list")
def list_groups(
    topic: Topic = None,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show all groups by topic, with their lag: messages of the topic they have not settled.

    The group called `queue` is an AMQP queue's own.

    Example: braid groups list --topic orders
    """
    path = ["subscriptions"] if topic is None else ["topics", topic, "subscriptions"]
    found = Api(url, user, password, namespace).get(*path)
    show([{"group": each.pop("name"), **each} for each in found], COLUMNS, as_json)


@app.command("show")
def show_group(
    name: Name,
    topic: Topic = None,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show a group's lag in each partition, and which member has it.

    Example: braid groups show billing
    """
    api = Api(url, user, password, namespace)
    subscriptions = _subscriptions(api, name, topic)
    members: list[dict[str, Any]] = []
    if any(each["mode"] == ASSIGNED for each in subscriptions):
        members = api.get("groups", name)["members"]
    if as_json:
        print_json({"group": name, "members": members, "subscriptions": subscriptions})
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
    out = console()
    out.print(table_of(rows, LAG_COLUMNS if members else LAG_COLUMNS[:-1]))
    total = sum(row["lag"] for row in rows)
    consumers = sum(each["consumers"] for each in subscriptions)
    out.print(f"\n{name}: lag {total}, consumers {consumers}", highlight=False, markup=False)


@app.command()
def seek(
    name: Name,
    to: Annotated[
        str,
        typer.Argument(
            help="earliest, latest, an offset, a time such as 2026-05-01T12:00, or 10m for ten"
            " minutes ago."
        ),
    ],
    topic: Topic = None,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Move a group to another position, in all partitions.

    Example: braid groups seek billing 2h --topic orders
    """
    api = Api(url, user, password, namespace)
    place = wire_position(to, datetime.now(UTC))
    for each in _subscriptions(api, name, topic):
        if each["mode"] == ASSIGNED:
            api.post("groups", name, "seek", body={"topic": each["topic"], "to": place})
        else:
            path = ("topics", each["topic"], "subscriptions", name, "seek")
            api.post(*path, body={"to": place})


@app.command()
def delete(
    name: Name,
    topic: Topic = None,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Delete a group and its positions. One with members is refused (exit 6).

    Example: braid groups delete billing
    """
    api = Api(url, user, password, namespace)
    subscriptions = _subscriptions(api, name, topic)
    if topic is None and any(each["mode"] == ASSIGNED for each in subscriptions):
        api.delete("groups", name)
        subscriptions = [each for each in subscriptions if each["mode"] != ASSIGNED]
    for each in subscriptions:
        api.delete("topics", each["topic"], "subscriptions", name)


def _subscriptions(api: Api, name: str, topic: str | None) -> list[dict[str, Any]]:
    if topic is not None:
        return [api.get("topics", topic, "subscriptions", name)]
    found = [each for each in api.get("subscriptions") if each["name"] == name]
    if not found:
        raise NotFound(f"there is no group {name!r}", remedy="`braid groups list` has all names")
    return found
