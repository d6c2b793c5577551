"""``braid topics``: the logs of a running node."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from braidmq.cli.api import LIMIT, Limit
from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.output import Output, counted, print_table
from braidmq.cli.units import measured, settings, size_text, span_text, time_text
from braidmq.model.errors import BadSetting

app = Commands(
    name="topics",
    help="Topics: logs of messages. An AMQP queue is a topic of the same name.",
    no_args_is_help=True,
)

COLUMNS = ("name", "partitions", "published", "depth", "size", "subscriptions", "consumers")
LESSER = ("subscriptions", "published", "partitions")
FIELDS = (
    *("name", "namespace", "created", "durable", "messages", "size", "depth", "depth_size"),
    *("oldest_ready", "oldest_in_flight", "kept", "published"),
)
CONSUMER_COLUMNS = (
    *("id", "subscription", "protocol", "user", "connection", "peer", "tag", "in_flight"),
    *("prefetch", "credit", "active"),
)
READER_COLUMNS = (
    *("name", "mode", "consumers", "lag", "ready", "oldest_ready", "in_flight", "oldest_in_flight"),
)
READERS_LESSER = ("mode",)
PARTITION_COLUMNS = ("partition", "start_offset", "next_offset", "messages", "size")
CONSUMERS_LESSER = ("peer", "tag", "credit", "active", "prefetch", "user", "protocol", "connection")

Name = Annotated[str, typer.Argument(help="The topic's name.", autocompletion=complete("topics"))]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting, such as ttl_ms=2h, retention.bytes=1GiB or retry.attempts=5; may be"
        " given again."
        " `braid topics show` has all names.",
    ),
]


@app.command("list")
def list_topics(
    node: InNamespace,
    out: Out,
    prefix: Annotated[str, typer.Option(help="Only names with this prefix.")] = "",
) -> None:
    """Show all topics: what was ever published, and what nobody has settled yet (depth).

    Example: braid topics list --prefix orders
    """
    rows = node.api().every("topics", prefix=prefix)
    if not out.is_data:
        rows = [row | {"size": size_text(row["depth_bytes"])} for row in rows]
    out.show(rows, COLUMNS, LESSER)


@app.command("show")
def show_topic(
    node: InNamespace,
    out: Out,
    name: Name,
) -> None:
    """Show a topic: what it has, its settings, its partitions and who reads it.

    `messages` and `size` are what the log still has, settled or not; `depth` is what the furthest
    behind of its subscriptions has not settled. `oldest ready` is how long a message has waited for
    a consumer, `oldest in flight` how long a consumer has not answered. `published` counts since
    the node started.

    Example: braid topics show orders
    """
    api = node.api()
    topic = api.get("topics", name)
    if out.is_data:
        out.data(topic)
        return
    readers = api.every("topics", name, "subscriptions")
    described = {
        **topic,
        "created": time_text(topic["created_ms"]),
        "size": size_text(topic["bytes"]),
        "depth_size": size_text(topic["depth_bytes"]),
        **ages(topic),
    }
    out.show_one(described, FIELDS)
    partitions = [each | {"size": size_text(each["bytes"])} for each in topic["partitions"]]
    print()
    print_table(partitions, PARTITION_COLUMNS)
    if readers:
        print()
        print_table([each | ages(each) for each in readers], READER_COLUMNS, READERS_LESSER)
    own = dict(_flat(topic["settings"]))
    rows = [
        {"setting": name, "value": measured(name, value), "set": "here" if name in own else ""}
        for name, value in _flat(topic["policy"])
    ]
    print()
    print_table(rows, ("setting", "value", "set"))


def ages(found: dict[str, Any]) -> dict[str, str | None]:
    """How long what is ready has waited, and what is in flight is unanswered; None: nothing is."""
    return {
        name: None if (age_ms := found[f"{name}_ms"]) is None else span_text(age_ms)
        for name in ("oldest_ready", "oldest_in_flight")
    }


def _flat(found: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """With the names that ``--set`` takes."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


@app.command()
def consumers(
    node: InNamespace,
    out: Out,
    name: Name,
    limit: Limit = LIMIT,
) -> None:
    """Show who consumes from a topic or queue: their clients, what they have and may still get.

    Example: braid topics consumers orders
    """
    show_consumers(out, node.api().first("topics", name, "consumers", limit=limit), ())


def show_consumers(out: Output, found: list[dict[str, Any]], before: tuple[str, ...]) -> None:
    """``before``: columns in front of what is known of every consumer."""
    if not out.is_data:
        nobody = dict.fromkeys(("user", "tag", "connection", "peer"))
        found = [
            {"credit": None, "prefetch": None, **nobody, **each, **each.get("client", {})}
            for each in found
        ]
        found = [each | {"tag": each["tag"] or None} for each in found]  # MQTT's have none
    out.show(found, (*before, *CONSUMER_COLUMNS), CONSUMERS_LESSER)


@app.command()
def create(
    node: InNamespace,
    out: Out,
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of partitions.",
            show_default="3, unless a template says otherwise",
        ),
    ] = None,
    changes: Set = None,
) -> None:
    """Create a topic. Fails (exit 6) if it exists with other settings.

    Example: braid topics create orders --partitions 6 --set retention.time_ms=7d
    """
    meant = settings(changes or [])
    if partitions is not None:
        meant["partitions"] = partitions
    made = node.api().put("topics", name, body={"settings": meant})
    out.quiet(made)


@app.command()
def alter(
    node: InNamespace,
    out: Out,
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Number of partitions: more, or fewer.", show_default=False),
    ] = None,
    changes: Set = None,
) -> None:
    """Change settings of a topic; those not given stay.

    Example: braid topics alter orders --set ttl_ms=1h --set retry.attempts=10
    """
    meant = settings(changes or [])
    if partitions is not None:
        meant["partitions"] = partitions
    if not meant:
        raise BadSetting("nothing to change", remedy="Give --set NAME=VALUE, or --partitions")
    body: dict[str, object] = {"settings": meant}
    changed = node.api().patch("topics", name, body=body)
    out.quiet(changed)


@app.command()
def delete(
    node: InNamespace,
    out: Out,
    name: Name,
    yes: Yes = False,
) -> None:
    """Delete a topic with all its messages; its consumers are told.

    Example: braid topics delete orders --yes
    """
    api = node.api()
    topic = seen(api, "topics", name)
    what = f"topic {name!r}{_contents(topic)}"
    confirm(yes, f"Delete {what}?")
    api.delete("topics", name)
    data: dict[str, Any] = {"deleted": name}
    if topic is not None:
        data |= {"messages": topic["messages"], "partitions": len(topic["partitions"])}
    out.done(f"deleted {what}", data)


def _contents(topic: dict[str, Any] | None) -> str:
    if topic is None:
        return ""
    partitions = counted(len(topic["partitions"]), "partition")
    return f" with {counted(topic['messages'], 'message')} in {partitions}"


@app.command()
def purge(
    node: InNamespace,
    out: Out,
    name: Name,
    yes: Yes = False,
) -> None:
    """Remove every message that is not in flight at a consumer.

    Example: braid topics purge orders --yes
    """
    api = node.api()
    topic = seen(api, "topics", name)
    confirm(yes, f"Remove the messages of topic {name!r}{_unsettled(topic)}?")
    purged = api.post("topics", name, "purge")
    out.done(f"purged {counted(purged['messages'], 'message')} of topic {name!r}", purged)


def _unsettled(topic: dict[str, Any] | None) -> str:
    return "" if topic is None else f", of which {topic['depth']} are not settled"
