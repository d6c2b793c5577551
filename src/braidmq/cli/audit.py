"""``braid audit``: who did what from where."""

from typing import Annotated, Any

import typer

from braidmq.audit.events import KINDS
from braidmq.cli.commands import AnyNode, Out
from braidmq.cli.completion import complete
from braidmq.cli.units import moment_ms, time_text
from braidmq.model.errors import BadSetting

COLUMNS = ("time", "user", "peer", "protocol", "operation", "object", "namespace", "count", "facts")
LESSER = ("namespace", "count", "facts")

OF_LOG = ("connection", "request", "request_id", "status")
"""Where else to look for it: only in JSON."""

Moment = "a time such as 2026-05-01T12:00, 7d for a week ago, or milliseconds since 1970."


def audit(
    node: AnyNode,
    out: Out,
    last: Annotated[int, typer.Option(min=1, help="So many events, the newest.")] = 50,
    kind: Annotated[
        str | None, typer.Option(help=f"Only these: {', '.join(KINDS)}.", show_default="all")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Only this user's.", show_default="all", autocompletion=complete("users")
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="Only by this: amqp, mqtt, http, signal or node.", show_default="all"),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only in this one.", show_default="all")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Part of operation, object or peer.", show_default="any"),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help=f"From then on: {Moment}", show_default="all there is"),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help=f"Before then: {Moment}", show_default="now")
    ] = None,
) -> None:
    """Show who did what from where: log-ins, refused ones, and every change. For administrators.

    The newest come last. Of log-ins that come in floods the first are shown singly, the rest as a
    number.

    Examples: braid audit --kind refused --from 1d; braid audit --by ann --text /v1/permissions
    """
    if kind is not None and kind not in KINDS:
        raise BadSetting(f"there is no kind {kind!r}", remedy=f"Use one of {', '.join(KINDS)}")
    found = node.global_api().first(
        "audit",
        limit=last,
        key="events",
        kind=kind,
        user=by,
        protocol=protocol,
        namespace=namespace,
        text=text,
        from_ms=_ms(start),
        to_ms=_ms(end),
    )
    rows = found[::-1]
    if not out.is_data:
        rows = [_shown(row) for row in rows]
    out.show(rows, COLUMNS, LESSER)


def _ms(text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.isdecimal() else moment_ms(text)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in row["facts"].items() if name not in OF_LOG}
    facts = ", ".join(f"{name}={value}" for name, value in known.items())
    return row | {"time": time_text(row["at_ms"]), "facts": facts}
