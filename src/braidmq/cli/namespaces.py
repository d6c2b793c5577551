"""``braid namespaces``: the separate worlds of a running node, AMQP's virtual hosts."""

from typing import Annotated, Literal

import typer

from braidmq.cli.api import PAGE
from braidmq.cli.commands import AnyNode, Commands, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.output import counted

app = Commands(
    name="namespaces", help="Namespaces of a node: AMQP's virtual hosts.", no_args_is_help=True
)

COLUMNS = ("name", "storage", "max_connections", "max_queues", "max_topics", "max_storage_bytes")
QUOTA_COLUMNS = ("quota", "limit", "used", "near")
NO_LIMIT = -1

Name = Annotated[
    str, typer.Argument(help="The namespace's name.", autocompletion=complete("namespaces"))
]
MaxConnections = Annotated[
    int | None, typer.Option(min=NO_LIMIT, help="Most connections at a time; -1 is no limit.")
]
MaxQueues = Annotated[int | None, typer.Option(min=NO_LIMIT, help="Most queues; -1 is no limit.")]
MaxTopics = Annotated[
    int | None, typer.Option(min=NO_LIMIT, help="Most topics, queues among them; -1 is no limit.")
]
MaxChannels = Annotated[
    int | None, typer.Option(min=NO_LIMIT, help="Most channels of AMQP; -1 is no limit.")
]
MaxConsumers = Annotated[
    int | None, typer.Option(min=NO_LIMIT, help="Most consumers; -1 is no limit.")
]
MaxStorage = Annotated[
    int | None,
    typer.Option(min=NO_LIMIT, help="Most bytes that its topics store; -1 is no limit."),
]
MaxIn = Annotated[
    int | None,
    typer.Option(min=NO_LIMIT, help="Most messages published in a second; -1 is no limit."),
]
MaxOut = Annotated[
    int | None,
    typer.Option(min=NO_LIMIT, help="Most messages delivered in a second; -1 is no limit."),
]
MaxRetained = Annotated[
    int | None, typer.Option(min=NO_LIMIT, help="Most retained messages; -1 is no limit.")
]
MaxTransactions = Annotated[
    int | None, typer.Option(min=NO_LIMIT, help="Most open transactions; -1 is no limit.")
]
Storage = Annotated[
    Literal["disk", "memory"],
    typer.Option(
        help="Where all records are, for good. In memory: a restart leaves topics, queues, bindings"
        " and subscriptions, and none of their messages."
    ),
]


@app.command("list")
def list_namespaces(
    node: AnyNode,
    out: Out,
) -> None:
    """Show all namespaces and their limits.

    Example: braid namespaces list
    """
    out.show(node.global_api().every("namespaces"), COLUMNS)


@app.command()
def add(
    node: AnyNode,
    out: Out,
    name: Name,
    max_connections: MaxConnections = None,
    max_queues: MaxQueues = None,
    max_topics: MaxTopics = None,
    max_channels: MaxChannels = None,
    max_consumers: MaxConsumers = None,
    max_storage_bytes: MaxStorage = None,
    max_messages_in_per_s: MaxIn = None,
    max_messages_out_per_s: MaxOut = None,
    max_retained_messages: MaxRetained = None,
    max_transactions: MaxTransactions = None,
    storage: Storage = "disk",
) -> None:
    """Add a namespace. Nobody can use it until `braid permissions set` grants something there.

    Example: braid namespaces add shop --max-connections 100
    """
    limits = _limits(
        max_connections=max_connections,
        max_queues=max_queues,
        max_topics=max_topics,
        max_channels=max_channels,
        max_consumers=max_consumers,
        max_storage_bytes=max_storage_bytes,
        max_messages_in_per_s=max_messages_in_per_s,
        max_messages_out_per_s=max_messages_out_per_s,
        max_retained_messages=max_retained_messages,
        max_transactions=max_transactions,
    )
    body = {**limits, "storage": storage}
    node.global_api().put("namespaces", name, body=body, only_new=True)
    out.quiet({"name": name, **body})


@app.command("limits")
def set_limits(
    node: AnyNode,
    out: Out,
    name: Name,
    max_connections: MaxConnections = None,
    max_queues: MaxQueues = None,
    max_topics: MaxTopics = None,
    max_channels: MaxChannels = None,
    max_consumers: MaxConsumers = None,
    max_storage_bytes: MaxStorage = None,
    max_messages_in_per_s: MaxIn = None,
    max_messages_out_per_s: MaxOut = None,
    max_retained_messages: MaxRetained = None,
    max_transactions: MaxTransactions = None,
) -> None:
    """Change a namespace's limits; those not given stay.

    Example: braid namespaces limits shop --max-queues -1
    """
    body = _limits(
        max_connections=max_connections,
        max_queues=max_queues,
        max_topics=max_topics,
        max_channels=max_channels,
        max_consumers=max_consumers,
        max_storage_bytes=max_storage_bytes,
        max_messages_in_per_s=max_messages_in_per_s,
        max_messages_out_per_s=max_messages_out_per_s,
        max_retained_messages=max_retained_messages,
        max_transactions=max_transactions,
    )
    node.global_api().put("namespaces", name, "limits", body=body)
    out.quiet({"name": name, **body})


@app.command("quotas")
def show_quotas(
    node: AnyNode,
    out: Out,
    name: Name,
) -> None:
    """Show what a namespace uses of each of its quotas.

    Example: braid namespaces quotas shop
    """
    out.show(node.global_api().every("namespaces", name, "quotas"), QUOTA_COLUMNS)


@app.command()
def delete(
    node: AnyNode,
    out: Out,
    name: Name,
    yes: Yes = False,
) -> None:
    """Delete a namespace with everything in it, and all permissions on it.

    Example: braid namespaces delete shop --yes
    """
    seen(node.global_api(), "namespaces", name)
    topics = seen(node._replace(given_namespace=name).api(), "topics", limit=PAGE)
    has = "" if topics is None else f" with {_at_least(len(topics))}"
    confirm(yes, f"Delete namespace {name!r}{has}?")
    node.global_api().delete("namespaces", name)
    out.done(f"deleted namespace {name!r}{has}", {"deleted": name})


def _at_least(topics: int) -> str:
    return f"{PAGE} topics or more" if topics == PAGE else counted(topics, "topic")


def _limits(**given: int | None) -> dict[str, object]:
    return {
        name: None if value == NO_LIMIT else value
        for name, value in given.items()
        if value is not None
    }
