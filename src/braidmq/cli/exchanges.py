"""``braid exchanges`` and ``braid bindings``: how messages find their topics."""

import json
from typing import Annotated, Any

import typer

from braidmq.cli.api import Query
from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.output import Output
from braidmq.cli.units import values

app = Commands(
    name="exchanges", help="Exchanges: how AMQP routes messages to topics.", no_args_is_help=True
)
bindings_app = Commands(
    name="bindings", help="Bindings: which topics an exchange routes to.", no_args_is_help=True
)

COLUMNS = ("name", "kind", "durable", "auto_delete", "internal", "alternate_exchange", "arguments")
LESSER = ("internal", "auto_delete", "durable", "destination_kind")
BINDING_COLUMNS = ("source", "routing_key", "destination", "destination_kind", "arguments")

Name = Annotated[
    str, typer.Argument(help="The exchange's name.", autocompletion=complete("exchanges"))
]
Source = Annotated[
    str,
    typer.Argument(help="The exchange messages come from.", autocompletion=complete("exchanges")),
]
Destination = Annotated[
    str,
    typer.Argument(help="The topic or exchange they go to.", autocompletion=complete("queues")),
]
RoutingKey = Annotated[
    str,
    typer.Option(
        "--key", "-k", help="Routing key, or a pattern such as orders.*.eu of a topic exchange."
    ),
]
ToExchange = Annotated[bool, typer.Option("--to-exchange", help="The destination is an exchange.")]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--argument", help="name=value, such as x-match=all; may be given again."),
]


@app.command("list")
def list_exchanges(
    node: InNamespace,
    out: Out,
) -> None:
    """Show all exchanges. The default one is shown as `amq.default`.

    Example: braid exchanges list
    """
    _show(node.api().every("exchanges"), COLUMNS, out)


@app.command()
def create(
    node: InNamespace,
    out: Out,
    name: Name,
    kind: Annotated[str, typer.Option(help="direct, fanout, topic or headers.")] = "direct",
    durable: Annotated[bool, typer.Option(help="Keep it across restarts.")] = True,
    auto_delete: Annotated[
        bool, typer.Option("--auto-delete", help="Delete it with its last binding.")
    ] = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Only other exchanges publish to it.")
    ] = False,
    alternate: Annotated[
        str | None, typer.Option(help="Exchange for what matches no binding.")
    ] = None,
    argument: Arguments = None,
) -> None:
    """Create an exchange. Fails (exit 6) if it exists with other settings.

    Example: braid exchanges create events --kind topic
    """
    body: dict[str, object] = {
        "kind": kind,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "alternate_exchange": alternate,
        "arguments": values(argument or []),
    }
    made = node.api().put("exchanges", name, body=body)
    out.quiet(made)


@app.command()
def delete(
    node: InNamespace,
    out: Out,
    name: Name,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if it has no bindings.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Delete an exchange, with all bindings from and to it.

    Example: braid exchanges delete events --if-unused --yes
    """
    api = node.api()
    seen(api, "exchanges", name)
    confirm(yes, f"Delete exchange {name!r} and all its bindings?")
    api.delete("exchanges", name, if_unused="true" if if_unused else None)
    out.done(f"deleted exchange {name!r}", {"deleted": name})


@bindings_app.command("list")
def list_bindings(
    node: InNamespace,
    out: Out,
    source: Annotated[
        str | None,
        typer.Option(help="Only from this exchange.", autocompletion=complete("exchanges")),
    ] = None,
) -> None:
    """Show all bindings. Every topic is bound to `amq.default` by its name besides.

    Example: braid bindings list --source events
    """
    found = node.api().every("bindings", source=source)
    _show(found, BINDING_COLUMNS, out)


@bindings_app.command("create")
def create_binding(
    node: InNamespace,
    out: Out,
    source: Source,
    destination: Destination,
    key: RoutingKey = "",
    to_exchange: ToExchange = False,
    argument: Arguments = None,
) -> None:
    """Route messages of an exchange to a topic or another exchange.

    Example: braid bindings create events orders --key 'orders.#'
    """
    body: dict[str, object] = {
        "source": source,
        "destination": destination,
        "destination_kind": "exchange" if to_exchange else "topic",
        "routing_key": key,
        "arguments": values(argument or []),
    }
    made = node.api().post("bindings", body=body)
    out.quiet(made)


@bindings_app.command("delete")
def delete_binding(
    node: InNamespace,
    out: Out,
    source: Source,
    destination: Destination,
    key: RoutingKey = "",
    to_exchange: ToExchange = False,
    argument: Arguments = None,
    yes: Yes = False,
) -> None:
    """Remove a binding, named by all it was made with. One that is not there is removed already.

    Example: braid bindings delete events orders --key 'orders.#' --yes
    """
    named: Query = {
        "source": source,
        "destination": destination,
        "destination_kind": "exchange" if to_exchange else "topic",
        "routing_key": key,
    }
    by = f" by key {key!r}" if key else ""
    confirm(yes, f"Route no more from {source!r} to {destination!r}{by}?")
    node.api().delete(
        "bindings", **named, arguments=json.dumps(values(argument)) if argument else None
    )
    out.done(f"deleted the binding from {source!r} to {destination!r}{by}", {"deleted": named})


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], out: Output) -> None:
    if not out.is_data:
        rows = [row | {"arguments": _arguments(row["arguments"])} for row in rows]
    out.show(rows, columns, LESSER)


def _arguments(found: dict[str, Any]) -> list[str] | None:
    return [f"{name}={value}" for name, value in found.items()] or None
