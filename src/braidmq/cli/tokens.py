"""``braid tokens``: how programs log in over HTTP without a password."""

from typing import Annotated

import typer

from braidmq.cli.api import (
    DEFAULT_URL,
    GUEST,
    Api,
    Json,
    Secret,
    Url,
    User,
    print_json,
    show,
)
from braidmq.cli.units import duration_ms, time_text

app = typer.Typer(
    name="tokens", help="Tokens: programs log in over HTTP with them.", no_args_is_help=True
)

COLUMNS = ("id", "user", "description", "created", "expires")

Owner = Annotated[str | None, typer.Option("--for", help="Another user; administrators only.")]


@app.command("list")
def list_tokens(
    owner: Owner = None,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show tokens: one's own, or for administrators everybody's. Their secrets are not kept.

    Example: braid tokens list
    """
    rows = Api(url, user, password).get("tokens", user=owner)
    if not as_json:
        rows = [
            row | {"created": time_text(row["created_ms"]), "expires": time_text(row["expires_ms"])}
            for row in rows
        ]
    show(rows, COLUMNS, as_json)


@app.command()
def create(
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires: Annotated[
        str | None, typer.Option(help="How long it is valid, such as 30d.", show_default="never")
    ] = None,
    owner: Owner = None,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Issue a token and print it. It is shown this once only.

    Example: braid tokens create --description 'build server' --expires 30d
    """
    body: dict[str, object] = {"description": description}
    if expires is not None:
        body["expires_in_ms"] = duration_ms(expires)
    if owner is not None:
        body["user"] = owner
    issued = Api(url, user, password).post("tokens", body=body)
    if as_json:
        print_json(issued)
    else:
        print(issued["token"])


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(help="Its id, as `braid tokens list` shows.")],
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Revoke a token: it can no longer be used to log in.

    Example: braid tokens revoke f86f044e60de9291
    """
    Api(url, user, password).delete("tokens", token)
