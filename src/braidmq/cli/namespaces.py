"""``braid namespaces``: the separate worlds of a running node, AMQP's virtual hosts."""

from typing import Annotated

import typer

from braidmq.cli.api import DEFAULT_URL, GUEST, Api, Json, Secret, Url, User, show

app = typer.Typer(
    name="namespaces", help="Namespaces of a node: AMQP's virtual hosts.", no_args_is_help=True
)

COLUMNS = ("name", "max_connections", "max_queues")
NO_LIMIT = -1

Name = Annotated[str, typer.Argument(help="The namespace's name.")]
MaxConnections = Annotated[
    int | None, typer.Option(min=NO_LIMIT, help="Most connections at a time; -1 is no limit.")
]
MaxQueues = Annotated[int | None, typer.Option(min=NO_LIMIT, help="Most queues; -1 is no limit.")]


@app.command("list")
def list_namespaces(
    as_json: Json = False, url: Url = DEFAULT_URL, user: User = GUEST, password: Secret = None
) -> None:
    """Show all namespaces and their limits.

    Example: braid namespaces list
    """
    show(Api(url, user, password).get("namespaces"), COLUMNS, as_json)


@app.command()
def add(
    name: Name,
    max_connections: MaxConnections = None,
    max_queues: MaxQueues = None,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Add a namespace. Nobody can use it until `braid permissions set` grants something there.

    Example: braid namespaces add shop --max-connections 100
    """
    body = _limits(max_connections, max_queues)
    Api(url, user, password).put("namespaces", name, body=body, only_new=True)


@app.command("limits")
def set_limits(
    name: Name,
    max_connections: MaxConnections = None,
    max_queues: MaxQueues = None,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Change a namespace's limits; those not given stay.

    Example: braid namespaces limits shop --max-queues -1
    """
    body = _limits(max_connections, max_queues)
    Api(url, user, password).put("namespaces", name, "limits", body=body)


@app.command()
def delete(name: Name, url: Url = DEFAULT_URL, user: User = GUEST, password: Secret = None) -> None:
    """Delete a namespace and all permissions on it.

    Example: braid namespaces delete shop
    """
    Api(url, user, password).delete("namespaces", name)


def _limits(max_connections: int | None, max_queues: int | None) -> dict[str, object]:
    given = {"max_connections": max_connections, "max_queues": max_queues}
    return {
        name: None if value == NO_LIMIT else value
        for name, value in given.items()
        if value is not None
    }
