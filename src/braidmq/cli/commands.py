"""What all commands have in common: the options that say which node, who asks and how to print.

A command names what it wants, and is given it:

    @app.command("list")
    def list_topics(node: InNamespace, out: Out, prefix: ... = "") -> None:

``Commands`` turns such a parameter into the options behind it.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import typer

from braidmq.cli.api import DEFAULT_URL, GUEST, ROOT
from braidmq.cli.completion import complete
from braidmq.cli.context_file import context_names
from braidmq.cli.node import AMQP_PORT, Node, resolve_options
from braidmq.cli.output import Output, Template

NODE_PANEL = "The node, and who asks"
OUTPUT_PANEL = "Output"


def _of_node(
    kind: type, *names: str, envvar: str, help: str, default: str, **more: Any
) -> inspect.Parameter:
    option = typer.Option(
        *names, envvar=envvar, help=help, show_default=default, rich_help_panel=NODE_PANEL, **more
    )
    name = names[0].removeprefix("--").replace("-", "_")
    return _parameter(name, Annotated[kind | None, option], None)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


OPTIONS = {
    each.name: each
    for each in (
        _of_node(
            str,
            "--namespace",
            "-n",
            envvar="BRAID_NAMESPACE",
            help="Namespace of the names.",
            default=ROOT,
            autocompletion=complete("namespaces"),
        ),
        _of_node(
            str,
            "--context",
            envvar="BRAID_CONTEXT",
            help="Take the rest of these from a context of `braid context list`.",
            default="the one in use",
            autocompletion=context_names,
        ),
        _of_node(
            str,
            "--url",
            envvar="BRAID_URL",
            help="HTTP address of a running node.",
            default=DEFAULT_URL,
        ),
        _of_node(
            int,
            "--amqp-port",
            envvar="BRAID_AMQP_PORT",
            help="AMQP port of the node, at the host of --url.",
            default=str(AMQP_PORT),
        ),
        _of_node(str, "--user", envvar="BRAID_USER", help="User to log in as.", default=GUEST),
        _of_node(
            str,
            "--password",
            envvar="BRAID_PASSWORD",
            help="Its password; asked for if missing. The environment or a context is safer: other"
            " users of this machine can see flags.",
            default="guest, for guest",
        ),
        _of_node(
            str,
            "--token",
            envvar="BRAID_TOKEN",
            help="Log in with this token, not as a user with a password.",
            default="none",
        ),
    )
}
LOGIN = ("context", "url", "user", "password", "token")

JSON_FLAG = typer.Option(
    "--json",
    help="Print JSON: everything, under the names of the HTTP API.",
    rich_help_panel=OUTPUT_PANEL,
)
FORMAT_FLAG = typer.Option(
    "--format",
    help="Print a line for each by a template of JSON's fields, such as '{name} {depth:>8}'.",
    show_default="a table",
    rich_help_panel=OUTPUT_PANEL,
)
Json = Annotated[bool, JSON_FLAG]
"""For commands that print an object again and again, or a document."""


class Wants(NamedTuple):
    """The options behind a parameter."""

    options: tuple[inspect.Parameter, ...]
    make: Callable[[typer.Context, Mapping[str, Any]], object]


def _make_output(_: typer.Context, given: Mapping[str, Any]) -> Output:
    text = given["template"]
    return Output(given["as_json"], None if text is None or given["as_json"] else Template(text))


def _node(*more: str) -> Wants:
    return Wants(tuple(OPTIONS[name] for name in (*more, *LOGIN)), resolve_options)


AnyNode = Annotated[Node, _node()]
"""For what has no namespace, or where it is an argument."""
InNamespace = Annotated[Node, _node("namespace")]
WithAmqp = Annotated[Node, _node("namespace", "amqp_port")]
Out = Annotated[
    Output,
    Wants(
        (
            _parameter("as_json", Json, False),
            _parameter("template", Annotated[str | None, FORMAT_FLAG], None),
        ),
        _make_output,
    ),
]


Function = TypeVar("Function", bound=Callable[..., Any])


class Commands(typer.Typer):
    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        register = super().command(name, **options)

        def add(function: Function) -> Function:
            register(_expanded(function))
            return function

        return add


def _flowing(text: str | None) -> str | None:
    """Paragraphs without the line breaks of the source: a terminal has its own width."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(re.sub(r"\n(?!Example: )", " ", each) for each in paragraphs)


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with options in place of what it wants."""
    wanted: dict[str, Wants] = {}
    plain: list[inspect.Parameter] = []
    for each in inspect.signature(function).parameters.values():
        marker = next((m for m in get_args(each.annotation) if isinstance(m, Wants)), None)
        if marker is None:
            plain.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            wanted[each.name] = marker
    # Output before the node: what is changed from one call to the next comes first in --help.
    behind = [option for want in reversed(wanted.values()) for option in want.options]
    context = _parameter("typer_context", typer.Context, inspect.Parameter.empty)

    @wraps(function)
    def call(*, typer_context: typer.Context, **given: Any) -> None:
        for name, want in wanted.items():
            said = {option.name: given.pop(option.name) for option in want.options}
            given[name] = want.make(typer_context, said)
        function(**given)

    parameters = [context, *plain, *behind]
    call.__doc__ = _flowing(function.__doc__)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call
