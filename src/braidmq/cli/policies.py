"""``braid policies``: settings for queues and exchanges of a running node, by name."""

import json
from typing import Annotated

import typer

from braidmq.cli.api import DEFAULT_URL, GUEST, Api, Json, Secret, Url, User, show
from braidmq.model.errors import BadSetting

app = typer.Typer(
    name="policies", help="Settings for queues and exchanges, by name.", no_args_is_help=True
)

COLUMNS = ("namespace", "name", "pattern", "apply_to", "definition", "priority")

Name = Annotated[str, typer.Argument(help="The policy's name.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace it applies to.")]


@app.command("list")
def list_policies(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Only in this namespace.", show_default="all"),
    ] = None,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show all policies.

    Example: braid policies list --namespace shop
    """
    path = ["policies"] if namespace is None else ["policies", namespace]
    rows = Api(url, user, password).get(*path)
    if not as_json:
        rows = [row | {"definition": json.dumps(row["definition"])} for row in rows]
    show(rows, COLUMNS, as_json)


@app.command("set")
def set_policy(
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
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Create or replace a policy. It applies to existing queues and exchanges at once.

    Keys are RabbitMQ's: message-ttl, expires, max-length, max-length-bytes, overflow,
    dead-letter-exchange, dead-letter-routing-key, delivery-limit, alternate-exchange. What a queue
    was declared with wins over its policy; of two limits the smaller holds.

    Example: braid policies set short '^log' '{"max-length": 1000}' --apply-to queues
    """
    try:
        meant = json.loads(definition)
    except ValueError as error:
        raise BadSetting(f"the definition is not JSON: {error}") from None
    body: dict[str, object] = {
        "pattern": pattern,
        "definition": meant,
        "priority": priority,
        "apply_to": apply_to,
    }
    Api(url, user, password).put("policies", namespace, name, body=body)


@app.command()
def delete(
    name: Name,
    namespace: Namespace = "/",
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Delete a policy. What it applied to goes back to its own settings, or to another policy.

    Example: braid policies delete short
    """
    Api(url, user, password).delete("policies", namespace, name)
