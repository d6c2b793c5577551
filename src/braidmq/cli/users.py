"""``braid users``: who may log in to a running node."""

from typing import Annotated

import typer

from braidmq.cli.api import ask_password
from braidmq.cli.commands import AnyNode, Commands, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen

app = Commands(name="users", help="Who may log in to a running node.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The user's name.", autocompletion=complete("users"))]
NewName = Annotated[str, typer.Argument(help="The user's name.")]
NewPassword = Annotated[
    str | None,
    typer.Argument(help="The new password; asked for, or read from a pipe, if missing."),
]


@app.command("list")
def list_users(
    node: AnyNode,
    out: Out,
) -> None:
    """Show all users and their tags.

    Example: braid users list
    """
    out.show(node.global_api().every("users"), ("name", "tags"))


@app.command()
def add(
    node: AnyNode,
    out: Out,
    name: NewName,
    new_password: NewPassword = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            help="`administrator`, `monitoring`, `management` or your own; may be given again."
        ),
    ] = None,
) -> None:
    """Add a user. It may do nothing until `braid permissions set` grants something.

    Example: braid users add ann --tag monitoring
    """
    api = node.global_api()
    body: dict[str, object] = {"password": _new(name, new_password), "tags": tag or []}
    api.put("users", name, body=body, only_new=True)
    out.quiet({"name": name, "tags": tag or []})


@app.command("password")
def change_password(
    node: AnyNode,
    out: Out,
    name: Name,
    new_password: NewPassword = None,
) -> None:
    """Change a user's password. Connections that use the old one are closed.

    Example: braid users password ann
    """
    api = node.global_api()
    api.put("users", name, "password", body={"password": _new(name, new_password)})
    out.quiet({"name": name})


@app.command("tags")
def set_tags(
    node: AnyNode,
    out: Out,
    name: Name,
    tags: Annotated[list[str] | None, typer.Argument(help="All its tags; none takes all.")] = None,
) -> None:
    """Replace a user's tags. `administrator` may change users and permissions, `monitoring` see the
    figures and clients of the whole node, `management` see what is set in the namespaces it enters.

    Example: braid users tags ann administrator monitoring
    """
    node.global_api().put("users", name, "tags", body={"tags": tags or []})
    out.quiet({"name": name, "tags": tags or []})


@app.command()
def delete(
    node: AnyNode,
    out: Out,
    name: Name,
    yes: Yes = False,
) -> None:
    """Delete a user and all its permissions.

    Example: braid users delete ann --yes
    """
    api = node.global_api()
    seen(api, "users", name)
    confirm(yes, f"Delete user {name!r} with all permissions and tokens?")
    api.delete("users", name)
    out.done(f"deleted user {name!r}", {"deleted": name})


def _new(name: str, given: str | None) -> str:
    return given if given is not None else ask_password(f"New password of {name}", confirm=True)
