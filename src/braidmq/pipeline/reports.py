"""Reports of a pipeline: a page of HTML with a table, and a chart where one is asked for: bars, or
lines where the column has lists of points."""

import html
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidmq.pipeline import plots
from braidmq.pipeline.definition import BadPipeline, SinkSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_MAX = 10_000
BARS_MAX = 30

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #222 }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums }}
.bar {{ display: grid; grid-template-columns: 16rem 1fr 7rem; gap: .6rem; margin: .2rem 0 }}
.bar i {{ background: #3b6ea8; height: 1.1rem; align-self: center; min-width: 1px }}
.bar span {{ overflow: hidden; text-overflow: ellipsis; white-space: nowrap }}
.plot {{ width: 100%; font-size: 12px; fill: #555 }}
.plot .grid {{ stroke: #e4e4e4 }}
.legend span {{ margin-right: 1.2rem; white-space: nowrap }}
.legend i {{ display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem }}
footer {{ color: #777; margin-top: 1rem }}
</style></head><body><h1>{title}</h1>
{chart}
<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table>
<footer>{rows} rows, {when}</footer></body></html>
"""


def write(frame: "DataFrame", sink: SinkSpec) -> int:
    rows = [tuple(row) for row in frame.limit(ROWS_MAX).collect()]
    page = render(sink.title or sink.label, frame.columns, rows, sink.chart)
    path = Path(sink.report)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page)
    return len(rows)


def render(title: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], chart: str) -> str:
    drawn = _chart(columns, rows, chart) if chart else ""
    columns, rows = _without_lines(columns, rows)
    numbers = [
        bool(rows) and all(isinstance(row[at], int | float) or row[at] is None for row in rows)
        for at in range(len(columns))
    ]
    classes = [' class="number"' if each else "" for each in numbers]
    head = "".join(
        f"<th{kind}>{html.escape(name.replace('_', ' '))}</th>"
        for name, kind in zip(columns, classes, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            f"<td{kind}>{html.escape(text(value))}</td>"
            for value, kind in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return PAGE.format(
        title=html.escape(title), chart=drawn, head=head, body=body, rows=len(rows), when=when
    )


def _without_lines(
    columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> tuple[Sequence[str], Sequence[tuple[Any, ...]]]:
    """Points are for drawings, not for tables."""
    kept = [at for at in range(len(columns)) if not any(isinstance(row[at], list) for row in rows)]
    return [columns[at] for at in kept], [tuple(row[at] for at in kept) for row in rows]


def _chart(columns: Sequence[str], rows: Sequence[tuple[Any, ...]], chart: str) -> str:
    names = [part.strip() for part in chart.split(",")]
    for name in names:
        if name not in columns:
            raise BadPipeline(f"chart: there is no column {name!r}")
    label, value, *more = (columns.index(name) for name in names)
    if any(isinstance(row[value], list) for row in rows):
        return plots.draw(
            [plots.line_of(text(row[label]), row[value], *(row[at] for at in more)) for row in rows]
        )
    if more:
        raise BadPipeline(f"chart: a third column is for lines, and {names[1]!r} has no points")
    return _bars(rows, label, value)


def _bars(rows: Sequence[tuple[Any, ...]], at: int, value: int) -> str:
    bars = sorted(rows, key=lambda row: row[value] or 0, reverse=True)[:BARS_MAX]
    top = max((row[value] or 0 for row in bars), default=0) or 1
    return "\n".join(
        f'<div class="bar"><span title="{html.escape(text(row[at]))}">{html.escape(text(row[at]))}'
        f'</span><i style="width:{100 * (row[value] or 0) / top:.1f}%"></i>'
        f"<span>{html.escape(text(row[value]))}</span></div>"
        for row in bars
    )


def text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


def show(title: str, columns: Sequence[str], rows: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(text(value)) for value in row))
    width = None if sys.stdout.isatty() else 200
    Console(width=width).print(table)
