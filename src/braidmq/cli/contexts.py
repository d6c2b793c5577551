"""``braid context``: nodes by name, with whom to log in as, so that no command has to say it."""

from typing import Annotated, Any

import typer

from braidmq.cli.api import ask_password
from braidmq.cli.commands import Commands, Out
from braidmq.cli.confirm import Yes, confirm
from braidmq.cli.context_file import (
    Context,
    Contexts,
    context_names,
    read_contexts,
    write_contexts,
)
from braidmq.model.errors import BadSetting, Conflict

app = Commands(
    name="context",
    help="Contexts: nodes by name, with the login for each.",
    no_args_is_help=True,
)


Name = Annotated[str, typer.Argument(help="The context's name.", autocompletion=context_names)]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="The new context's name.")],
    url: Annotated[
        str | None, typer.Option(help="HTTP address of the node.", show_default="none")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="User to log in as.", show_default="none")
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            help="Its password; `-` asks for it, or reads it from a pipe. Without, commands ask."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help="Log in with this token instead; `-` asks, or reads it from a pipe."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of the names.", show_default="none"),
    ] = None,
    amqp_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="AMQP port.", show_default="none")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Change it if it exists.")] = False,
) -> None:
    """Remember a node by name, in contexts.toml, which only its owner can read.

    Example: braid context add prod --url https://braid.example --user ann --password - --use
    """
    every = read_contexts()
    if not name:
        raise BadSetting("a context needs a name")
    if name in every.contexts and not replace:
        raise Conflict(f"there is a context {name!r} already", remedy="Give --replace to change it")
    if token is not None and (user is not None or password is not None):
        raise BadSetting("a token is a login of its own", remedy="Leave out --user and --password")
    if password is not None and user is None:
        raise BadSetting("a password belongs to a user", remedy="Give --user")
    if url is not None and not url.startswith(("http://", "https://")):
        raise BadSetting(
            f"{url!r} is not the URL of a node", remedy="Give one such as http://127.0.0.1:8080"
        )
    every.contexts[name] = Context(
        url,
        user,
        _secret(password, f"Password of {user}"),
        _secret(token, "Token"),
        namespace,
        amqp_port,
    )
    if use:
        every.current = name
    write_contexts(every)
    print(f"added context {name!r}" + (" and use it from now on" if use else ""))


def _secret(given: str | None, prompt: str) -> str | None:
    return ask_password(prompt) if given == "-" else given


@app.command()
def use(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The context's name.", show_default=False, autocompletion=context_names
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context from now on.")] = False,
) -> None:
    """Have all commands use a context from now on, or none.

    Example: braid context use prod
    """
    if (name is None) != none:
        raise BadSetting("no context was named", remedy="Give a name, or --none")
    every = read_contexts()
    if name is not None:
        every.named(name)
    every.current = name
    write_contexts(every)
    print("no context is used from now on" if name is None else f"context {name!r} is used now")


@app.command("list")
def list_contexts(out: Out) -> None:
    """Show all contexts. Passwords and tokens are not printed.

    Example: braid context list
    """
    every = read_contexts()
    rows = [_row(every, name) for name in sorted(every.contexts)]
    out.show(rows, ("name", "used", "url", "login", "namespace", "amqp_port"))


@app.command("show")
def show_context(name: Name, out: Out) -> None:
    """Show a context. Its password or token is not printed.

    Example: braid context show prod
    """
    every = read_contexts()
    every.named(name)
    out.show_one(_row(every, name), ("name", "used", "url", "login", "namespace", "amqp_port"))


def _row(every: Contexts, name: str) -> dict[str, Any]:
    found = every.named(name)
    login = None
    if found.token is not None:
        login = "token"
    elif found.user is not None:
        kept = "" if found.password is not None else ", password is asked for"
        login = f"user {found.user}{kept}"
    return {
        "name": name,
        "used": name == every.current,
        "url": found.url,
        "user": found.user,
        "has_password": found.password is not None,
        "has_token": found.token is not None,
        "login": login,
        "namespace": found.namespace,
        "amqp_port": found.amqp_port,
    }


@app.command()
def remove(name: Name, out: Out, yes: Yes = False) -> None:
    """Forget a context, with its password or token.

    Example: braid context remove prod
    """
    every = read_contexts()
    every.named(name)
    confirm(yes, f"Forget context {name!r} and its login?")
    del every.contexts[name]
    if every.current == name:
        every.current = None
    write_contexts(every)
    out.done(f"removed context {name!r}", {"removed": name})
