"""Lines over time as SVG, for reports: no library, and nothing from the internet.

A line is a list of points, each a time and a number: ``collect_list(struct(at, value))`` of SQL.
"""

import html
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

WIDTH, HEIGHT = 960, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 12, 30
"""Room for the labels of the axes."""

COLOURS = ("#3b6ea8", "#c8553d", "#4f8f4f", "#8a5a9e", "#b8892f", "#3f9aa0", "#7a6a5a", "#c46a96")
LINES_MAX = len(COLOURS)
TICKS = 5

Point = tuple[float, float]
STEPS_S = (1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800, 2_592_000)


class Line(NamedTuple):
    label: str
    points: list[Point]
    dashed: list[Point]
    """What is expected: goes on from the points."""


def line_of(label: str, points: Any, dashed: Any = None) -> Line:
    return Line(label, _points(points), _points(dashed))


def _points(given: Any) -> list[Point]:
    found = [(_seconds(at), float(value)) for at, value in given or () if value is not None]
    return sorted(found)


def _seconds(at: datetime) -> float:
    # Spark gives times without a zone, as its session shows them.
    return at.replace(tzinfo=UTC).timestamp() if at.tzinfo is None else at.timestamp()


def draw(lines: Sequence[Line]) -> str:
    """The first ones, with axes and a legend; empty where there is no point at all."""
    shown = lines[:LINES_MAX]
    points = [point for line in shown for point in line.points + line.dashed]
    if not points:
        return ""
    across = _Axis.over([at for at, _ in points], LEFT, WIDTH - RIGHT)
    upward = _Axis.over([0.0, *(value for _, value in points)], HEIGHT - BOTTOM, TOP)
    parts = [*_rows(upward), *_columns(across)]
    for line, colour in zip(shown, COLOURS, strict=False):
        parts += _drawn(line, colour, across, upward)
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="plot">' + "".join(parts) + "</svg>"
    )
    return svg + _legend(shown, len(lines))


class _Axis(NamedTuple):
    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float) -> "_Axis":
        low, high = min(values), max(values)
        return cls(low, high if high > low else low + 1.0, begin, end)

    def place(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.begin + share * (self.end - self.begin), 1)


def _rows(axis: _Axis) -> list[str]:
    parts = []
    step = _round_step((axis.high - axis.low) / TICKS)
    value = math.ceil(axis.low / step) * step
    while value <= axis.high:
        y = axis.place(value)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" class="grid"/>'
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{_number(value)}</text>'
        )
        value += step
    return parts


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * each for each in (1, 2, 5, 10) if power * each >= least)


def _number(value: float) -> str:
    return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"


def _columns(axis: _Axis) -> list[str]:
    wanted = (axis.high - axis.low) / TICKS
    step = next((each for each in STEPS_S if each >= wanted), math.ceil(wanted / 86_400) * 86_400)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43_200 else "%d %b"
    if step < 43_200 and axis.high - axis.low > 86_400:
        form = "%d %b %H:%M"
    parts = []
    at = math.ceil(axis.low / step) * step
    while at <= axis.high:
        x = axis.place(at)
        said = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)).strftime(form)
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="grid"/>'
            f'<text x="{x}" y="{HEIGHT - 10}" text-anchor="middle">{said}</text>'
        )
        at += step
    return parts


def _drawn(line: Line, colour: str, across: _Axis, upward: _Axis) -> list[str]:
    parts = []
    for points, style in ((line.points, ""), (line.dashed, ' stroke-dasharray="6 5"')):
        if len(points) == 1:
            x, y = across.place(points[0][0]), upward.place(points[0][1])
            parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        elif points:
            path = " ".join(f"{across.place(at)},{upward.place(value)}" for at, value in points)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{style}/>'
            )
    return parts


def _legend(shown: Sequence[Line], every: int) -> str:
    items = "".join(
        f'<span><i style="background:{colour}"></i>{html.escape(line.label)}</span>'
        for line, colour in zip(shown, COLOURS, strict=False)
    )
    more = f"<span>and {every - len(shown)} more below</span>" if every > len(shown) else ""
    return f'<p class="legend">{items}{more}</p>'
