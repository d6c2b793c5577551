"""``braid policies``: settings for queues and exchanges of a running node, by name."""

import json
from typing import Annotated

import typer

from braidmq.cli.commands import AnyNode, Commands, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.units import duration_ms, size_bytes
from braidmq.model.errors import BadSetting

app = Commands(
    name="policies", help="Settings for queues and exchanges, by name.", no_args_is_help=True
)

COLUMNS = ("namespace", "name", "pattern", "apply_to", "definition", "priority")

Name = Annotated[
    str, typer.Argument(help="The policy's name.", autocompletion=complete("policies"))
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", help="Namespace it applies to.", autocompletion=complete("namespaces")
    ),
]


@app.command("list")
def list_policies(
    node: AnyNode,
    out: Out,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Only in this namespace.",
            show_default="all",
            autocompletion=complete("namespaces"),
        ),
    ] = None,
) -> None:
    """Show all policies.

    Example: braid policies list --namespace shop
    """
    path = ["policies"] if namespace is None else ["policies", namespace]
    rows = node.global_api().every(*path)
    if not out.is_data:
        rows = [row | {"definition": json.dumps(row["definition"])} for row in rows]
    out.show(rows, COLUMNS, ("namespace", "priority", "apply_to"))


@app.command("set")
def set_policy(
    node: AnyNode,
    out: Out,
    name: Name,
    pattern: Annotated[str, typer.Argument(help="Regular expression, searched for in names.")],
    definition: Annotated[str, typer.Argument(help='JSON, such as {"max-length": 1000}.')],
    priority: Annotated[int, typer.Option(help="The highest that matches applies, alone.")] = 0,
    apply_to: Annotated[
        str,
        typer.Option(
            help="queues, exchanges, all, or only classic_queues, quorum_queues or streams."
        ),
    ] = "all",
    namespace: Namespace = "/",
) -> None:
    """Create or replace a policy. It applies to existing queues and exchanges at once.

    Keys are RabbitMQ's: message-ttl, expires, max-length, max-length-bytes, overflow,
    dead-letter-exchange, dead-letter-routing-key, delivery-limit, max-age, alternate-exchange; and
    consumer-prefetch-max, unanswered messages that one consumer may have,
    dead-letter-alert-webhook, keep-acknowledged-ms and keep-acknowledged-bytes. What a queue was
    declared with wins over its policy; of two limits the smaller holds. Times and sizes may be
    texts with a unit, such as "message-ttl": "1h".

    Example: braid policies set short '^log' '{"max-length": 1000}' --apply-to queues
    """
    try:
        meant = json.loads(definition)
    except ValueError as error:
        raise BadSetting(f"the definition is not JSON: {error}") from None
    if isinstance(meant, dict):
        meant = {name: _with_unit(name, value) for name, value in meant.items()}
    body: dict[str, object] = {
        "pattern": pattern,
        "definition": meant,
        "priority": priority,
        "apply_to": apply_to,
    }
    made = node.global_api().put("policies", namespace, name, body=body)
    out.quiet(made)


@app.command()
def delete(
    node: AnyNode,
    out: Out,
    name: Name,
    namespace: Namespace = "/",
    yes: Yes = False,
) -> None:
    """Delete a policy. What it applied to goes back to its own settings, or to another policy.

    Example: braid policies delete short --yes
    """
    api = node.global_api()
    seen(api, "policies", namespace, name)
    confirm(yes, f"Delete policy {name!r} of namespace {namespace!r}?")
    api.delete("policies", namespace, name)
    out.done(
        f"deleted policy {name!r} of namespace {namespace!r}",
        {"deleted": name, "namespace": namespace},
    )


SPANS = ("message-ttl", "expires", "keep-acknowledged-ms")
SIZES = ("max-length-bytes", "keep-acknowledged-bytes")


def _with_unit(name: str, value: object) -> object:
    """RabbitMQ's keys do not say that they count milliseconds or bytes."""
    if not isinstance(value, str):
        return value
    return duration_ms(value) if name in SPANS else size_bytes(value) if name in SIZES else value
