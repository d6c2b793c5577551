"""``braid usage``: what was published and delivered, by namespace, protocol and hour."""

import csv
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from braidmq.cli.api import Api
from braidmq.cli.commands import AnyNode, Out
from braidmq.cli.units import moment_ms, size_text, time_text

COLUMNS = ("start", "namespace", "protocol", "published", "in", "delivered", "out")
FIELDS = (
    *("start_ms", "namespace", "protocol", "published", "published_bytes"),
    *("delivered", "delivered_bytes"),
)


def usage(
    node: AnyNode,
    out: Out,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only this one.", show_default="all")
    ] = None,
    daily: Annotated[bool, typer.Option("--daily", help="By day (UTC), not by hour.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            "--from-ms",
            help="From then on: a time such as 2026-05-01T12:00, 7d for a week ago, or milliseconds"
            " since 1970.",
            show_default="all there is",
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_lines: Annotated[bool, typer.Option("--ndjson", help="Print a JSON object a line.")] = False,
) -> None:
    """Show what was published and delivered: counted as it happened, not by what is still there.

    Examples: braid usage --daily --csv > usage.csv; braid usage --from 7d
    """
    by = "day" if daily else "hour"
    rows = list(_rows(node.global_api(), namespace=namespace, by=by, from_ms=_from_ms(start)))
    if out.is_data:
        out.data(rows)
    elif as_lines:
        for row in rows:
            print(json.dumps(row))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        out.show([_shown(row, daily=daily) for row in rows], COLUMNS)


def _from_ms(text: str | None) -> int:
    if text is None:
        return 0
    return int(text) if text.isdecimal() else moment_ms(text)


def _rows(api: Api, **query: str | int | None) -> Iterator[dict[str, Any]]:
    for page in api.pages("usage", limit=10_000, **query):
        yield from page["rows"]


def _shown(row: dict[str, Any], *, daily: bool) -> dict[str, Any]:
    date, clock = str(time_text(row["start_ms"])).split(" ")
    return row | {
        "start": date if daily else f"{date} {clock[:5]}",
        "in": size_text(row["published_bytes"]),
        "out": size_text(row["delivered_bytes"]),
    }
