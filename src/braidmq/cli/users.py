"""``braid users``: who may log in to a running node."""

from typing import Annotated

import typer

from braidmq.cli.api import DEFAULT_URL, GUEST, Api, Json, Secret, Url, User, ask_password, show

app = typer.Typer(name="users", help="Who may log in to a running node.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The user's name.")]
NewPassword = Annotated[
    str | None,
    typer.Argument(help="The new password; asked for, or read from a pipe, if missing."),
]


@app.command("list")
def list_users(
    as_json: Json = False, url: Url = DEFAULT_URL, user: User = GUEST, password: Secret = None
) -> None:
    """Show all users and their tags.

    Example: braid users list
    """
    show(Api(url, user, password).get("users"), ("name", "tags"), as_json)


@app.command()
def add(
    name: Name,
    new_password: NewPassword = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="`administrator`, `monitoring` or your own; may be given again."),
    ] = None,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Add a user. It may do nothing until `braid permissions set` grants something.

    Example: braid users add ann --tag monitoring
    """
    api = Api(url, user, password)
    body: dict[str, object] = {"password": _new(name, new_password), "tags": tag or []}
    api.put("users", name, body=body, only_new=True)


@app.command("password")
def change_password(
    name: Name,
    new_password: NewPassword = None,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Change a user's password. Connections that use the old one are closed.

    Example: braid users password ann
    """
    api = Api(url, user, password)
    api.put("users", name, "password", body={"password": _new(name, new_password)})


@app.command("tags")
def set_tags(
    name: Name,
    tags: Annotated[list[str] | None, typer.Argument(help="All its tags; none takes all.")] = None,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Replace a user's tags. `administrator` may change users and permissions, `monitoring` see the
    figures of the whole node.

    Example: braid users tags ann administrator monitoring
    """
    Api(url, user, password).put("users", name, "tags", body={"tags": tags or []})


@app.command()
def delete(name: Name, url: Url = DEFAULT_URL, user: User = GUEST, password: Secret = None) -> None:
    """Delete a user and all its permissions.

    Example: braid users delete ann
    """
    Api(url, user, password).delete("users", name)


def _new(name: str, given: str | None) -> str:
    return given if given is not None else ask_password(f"New password of {name}", confirm=True)
