"""``braid tokens``: how programs log in without a password."""

from typing import Annotated

import typer

from braidmq.cli.commands import AnyNode, Commands, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm
from braidmq.cli.units import duration_ms, time_text
from braidmq.model.errors import NotFound

app = Commands(name="tokens", help="Tokens: programs log in with them.", no_args_is_help=True)

COLUMNS = ("id", "user", "name", "scopes", "created", "expires", "last_used", "description")
TIMES = ("created", "expires", "last_used")

Owner = Annotated[
    str | None,
    typer.Option(
        "--for", help="Another user; administrators only.", autocompletion=complete("users")
    ),
]


@app.command("list")
def list_tokens(
    node: AnyNode,
    out: Out,
    owner: Owner = None,
) -> None:
    """Show tokens: one's own, or for administrators everybody's. Their secrets are not kept.

    Example: braid tokens list
    """
    rows = node.global_api().every("tokens", user=owner)
    if not out.is_data:
        rows = [
            row
            | {each: time_text(row[f"{each}_ms"]) for each in TIMES}
            | {"scopes": "all" if row["scopes"] is None else " ".join(row["scopes"])}
            for row in rows
        ]
    out.show(rows, COLUMNS, TIMES)


@app.command()
def create(
    node: AnyNode,
    out: Out,
    name: Annotated[
        str, typer.Option(help="What it is called; no two of a user have the same name.")
    ] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may of what its user may, such as read:%2F/orders* (%2F is the"
            " namespace /); may be given several times.",
            show_default="all that its user may",
        ),
    ] = None,
    description: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires: Annotated[
        str | None, typer.Option(help="How long it is valid, such as 30d.", show_default="never")
    ] = None,
    owner: Owner = None,
) -> None:
    """Issue a token and print it. It is shown this once only.

    It is for Authorization: Bearer in HTTP, and a password in AMQP and MQTT.

    Example: braid tokens create --name thermometer --scope 'write:%2F/sensors*' --expires 30d
    """
    body: dict[str, object] = {"name": name, "description": description}
    if scope:
        body["scopes"] = scope
    if expires is not None:
        body["expires_in_ms"] = duration_ms(expires)
    if owner is not None:
        body["user"] = owner
    issued = node.global_api().post("tokens", body=body)
    if out.is_data:
        out.data(issued)
    else:
        print(issued["token"])


@app.command()
def revoke(
    node: AnyNode,
    out: Out,
    token_id: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN",
            help="Its id, as `braid tokens list` shows.",
            autocompletion=complete("tokens"),
        ),
    ],
    yes: Yes = False,
) -> None:
    """Revoke a token: it can no longer be used to log in, and what was opened with it is closed.

    Example: braid tokens revoke f86f044e60de9291 --yes
    """
    api = node.global_api()
    about = [each for each in api.every("tokens") if each["id"] == token_id]
    if not about:
        raise NotFound(f"there is no token {token_id!r}", remedy="`braid tokens list` has all ids")
    what = f"token {token_id!r} of user {about[0]['user']!r}"
    confirm(yes, f"Revoke {what}? Nobody can log in with it any more.")
    api.delete("tokens", token_id)
    out.done(f"revoked {what}", {"revoked": token_id, "user": about[0]["user"]})
