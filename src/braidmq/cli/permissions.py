"""``braid permissions``: what users may do in a namespace of a running node."""

from typing import Annotated

import typer

from braidmq.cli.commands import AnyNode, Commands, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen

app = Commands(name="permissions", help="What users may do in a namespace.", no_args_is_help=True)

COLUMNS = ("namespace", "user", "configure", "write", "read")

Name = Annotated[str, typer.Argument(help="The user's name.", autocompletion=complete("users"))]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", "-n", help="Namespace it applies to.", autocompletion=complete("namespaces")
    ),
]


@app.command("list")
def list_permissions(
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
    """Show what has been granted.

    Example: braid permissions list --namespace shop
    """
    path = ["permissions"] if namespace is None else ["permissions", namespace]
    out.show(node.global_api().every(*path), COLUMNS)


@app.command("set")
def set_permission(
    node: AnyNode,
    out: Out,
    name: Name,
    configure: Annotated[str, typer.Argument(help="What it may make and delete.")],
    write: Annotated[str, typer.Argument(help="What it may publish to.")],
    read: Annotated[str, typer.Argument(help="What it may consume from.")],
    namespace: Namespace = "/",
) -> None:
    """Grant a user what three regular expressions match.

    They are searched for in a name: `.*` is everything, `^orders` what begins so, and the empty
    one nothing. AMQP's default exchange is called `amq.default`.

    Example: braid permissions set ann '^ann-' '.*' '.*' --namespace shop
    """
    body: dict[str, object] = {"configure": configure, "write": write, "read": read}
    node.global_api().put("permissions", namespace, name, body=body)
    out.quiet({"namespace": namespace, "user": name, **body})


@app.command()
def clear(
    node: AnyNode,
    out: Out,
    name: Name,
    namespace: Namespace = "/",
    yes: Yes = False,
) -> None:
    """Revoke all permissions of a user in a namespace.

    Example: braid permissions clear ann --namespace shop --yes
    """
    api = node.global_api()
    seen(api, "permissions", namespace, name)
    confirm(yes, f"Revoke all permissions of user {name!r} in namespace {namespace!r}?")
    api.delete("permissions", namespace, name)
    out.done(
        f"revoked the permissions of user {name!r} in namespace {namespace!r}",
        {"revoked": name, "namespace": namespace},
    )
