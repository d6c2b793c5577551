"""``braid exchanges`` and ``braid bindings``: how messages find their topics."""

import json
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
    print_json,
    show,
)
from braidmq.cli.units import values

app = typer.Typer(
    name="exchanges", help="Exchanges: how AMQP routes messages to topics.", no_args_is_help=True
)
bindings_app = typer.Typer(
    name="bindings", help="Bindings: which topics an exchange routes to.", no_args_is_help=True
)

COLUMNS = ("name", "kind", "durable", "auto_delete", "internal", "alternate_exchange", "arguments")
BINDING_COLUMNS = ("source", "routing_key", "destination", "destination_kind", "arguments")

Name = Annotated[str, typer.Argument(help="The exchange's name.")]
Source = Annotated[str, typer.Argument(help="The exchange messages come from.")]
Destination = Annotated[str, typer.Argument(help="The topic or exchange they go to.")]
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
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show all exchanges. The default one is shown as `amq.default`.

    Example: braid exchanges list
    """
    _show(Api(url, user, password, namespace).get("exchanges"), COLUMNS, as_json)


@app.command()
def create(
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
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
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
    made = Api(url, user, password, namespace).put("exchanges", name, body=body)
    if as_json:
        print_json(made)


@app.command()
def delete(
    name: Name,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if it has no bindings.")
    ] = False,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Delete an exchange, with all bindings from and to it.

    Example: braid exchanges delete events --if-unused
    """
    api = Api(url, user, password, namespace)
    api.delete("exchanges", name, if_unused="true" if if_unused else None)


@bindings_app.command("list")
def list_bindings(
    source: Annotated[str | None, typer.Option(help="Only from this exchange.")] = None,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show all bindings. Every topic is bound to `amq.default` by its name besides.

    Example: braid bindings list --source events
    """
    found = Api(url, user, password, namespace).get("bindings", source=source)
    _show(found, BINDING_COLUMNS, as_json)


@bindings_app.command("create")
def create_binding(
    source: Source,
    destination: Destination,
    key: RoutingKey = "",
    to_exchange: ToExchange = False,
    argument: Arguments = None,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
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
    made = Api(url, user, password, namespace).post("bindings", body=body)
    if as_json:
        print_json(made)


@bindings_app.command("delete")
def delete_binding(
    source: Source,
    destination: Destination,
    key: RoutingKey = "",
    to_exchange: ToExchange = False,
    argument: Arguments = None,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Remove a binding, named by all it was made with. One that is not there is removed already.

    Example: braid bindings delete events orders --key 'orders.#'
    """
    Api(url, user, password, namespace).delete(
        "bindings",
        source=source,
        destination=destination,
        destination_kind="exchange" if to_exchange else "topic",
        routing_key=key,
        arguments=json.dumps(values(argument)) if argument else None,
    )


def _show(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    if not as_json:
        rows = [row | {"arguments": _arguments(row["arguments"])} for row in rows]
    show(rows, columns, as_json)


def _arguments(found: dict[str, Any]) -> list[str] | None:
    return [f"{name}={value}" for name, value in found.items()] or None
