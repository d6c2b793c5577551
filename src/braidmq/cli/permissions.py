"""``braid permissions``: what users may do in a namespace of a running node."""

from typing import Annotated

import typer

from braidmq.cli.api import DEFAULT_URL, GUEST, Api, Json, Secret, Url, User, show

app = typer.Typer(
    name="permissions", help="What users may do in a namespace.", no_args_is_help=True
)

COLUMNS = ("namespace", "user", "configure", "write", "read")

Name = Annotated[str, typer.Argument(help="The user's name.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace it applies to.")]


@app.command("list")
def list_permissions(
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Only in this namespace.", show_default="all"),
    ] = None,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show what has been granted.

    Example: braid permissions list --namespace shop
    """
    path = ["permissions"] if namespace is None else ["permissions", namespace]
    show(Api(url, user, password).get(*path), COLUMNS, as_json)


@app.command("set")
def set_permission(
    name: Name,
    configure: Annotated[str, typer.Argument(help="What it may make and delete.")],
    write: Annotated[str, typer.Argument(help="What it may publish to.")],
    read: Annotated[str, typer.Argument(help="What it may consume from.")],
    namespace: Namespace = "/",
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Grant a user what three regular expressions match.

    They are searched for in a name: `.*` is everything, `^orders` what begins so, and the empty
    one nothing. AMQP's default exchange is called `amq.default`.

    Example: braid permissions set ann '^ann-' '.*' '.*' --namespace shop
    """
    body: dict[str, object] = {"configure": configure, "write": write, "read": read}
    Api(url, user, password).put("permissions", namespace, name, body=body)


@app.command()
def clear(
    name: Name,
    namespace: Namespace = "/",
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Revoke all permissions of a user in a namespace.

    Example: braid permissions clear ann --namespace shop
    """
    Api(url, user, password).delete("permissions", namespace, name)
