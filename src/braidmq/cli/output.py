"""What commands print: tables for people, JSON and templates for programs."""

import json
import os
import re
import shutil
import string
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from braidmq.model.errors import BadSetting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = dict[str, Any]

PIPE_COLUMNS = 10_000
"""A pipe has no width: names in it must not be folded."""

TEXT_COLUMNS_MIN = 16
"""A column of text is made no narrower; then it is left out."""

GAP = 2
"""Between two columns."""

SPECIFICATION = re.compile(r"(.?[<>^])?\d{0,3},?(\.\d{1,2})?[sdf]?")
"""Of a field of a template: no more of Python's than a table needs, and no width without end."""


class Template:
    """``{name} {depth:>8}``: the fields of JSON, as Python's ``str.format`` writes them.

    A dot goes into an object: ``{policy.ttl_ms}``. Nothing else of Python can be reached.
    """

    def __init__(self, text: str) -> None:
        text = text.replace("\\n", "\n").replace("\\t", "\t")
        try:
            self._parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise BadSetting(
                f"{text!r} is not a template: {error}", remedy="Use one such as '{name} {depth}'"
            ) from None
        for _, name, spec, conversion in self._parts:
            if name is None:
                continue
            if not all(part.replace("-", "_").isidentifier() for part in name.split(".")):
                raise BadSetting(
                    f"{{{name}}} names no field", remedy="Use names of --json, such as {name}"
                )
            if conversion is not None or not SPECIFICATION.fullmatch(spec or ""):
                raise BadSetting(
                    f"{{{name}}}: what follows the name is not understood",
                    remedy="Use an alignment and a width, such as {name:<20} or {depth:>8}",
                )

    def lines(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """A line for each. A field that one of them lacks is empty there."""
        if rows:
            self.check(sorted({field for row in rows for field in row}))
        return [self.line(row) for row in rows]

    def check(self, fields: Sequence[str]) -> None:
        """Raises BadSetting for one that nothing has."""
        for _, name, _, _ in self._parts:
            if name is not None and name.split(".")[0] not in fields:
                raise BadSetting(
                    f"there is no field {name!r} here", remedy=f"There are {', '.join(fields)}"
                )

    def line(self, row: Mapping[str, Any]) -> str:
        line = ""
        for literal, name, spec, _ in self._parts:
            line += literal
            if name is None:
                continue
            value = _at(row, name)
            number = type(value) in (int, float)
            try:
                line += format(value if number else _plain(value), spec or "")
            except ValueError as error:
                raise BadSetting(f"{{{name}:{spec}}}: {error}") from None
        return line


_MISSING = object()


def _at(row: object, dotted: str) -> Any:
    for part in dotted.split("."):
        if not isinstance(row, Mapping) or part not in row:
            return _MISSING
        row = row[part]
    return row


def _plain(value: object) -> str:
    if value is None or value is _MISSING:
        return ""
    # What others wrote is shown, not obeyed, as everywhere.
    return printable(value if isinstance(value, str) else json.dumps(value))


class Output(NamedTuple):
    """How a command was asked to print."""

    as_json: bool = False
    template: Template | None = None

    @property
    def is_data(self) -> bool:
        """For a program: everything, under the names of the HTTP API."""
        return self.as_json or self.template is not None

    def data(self, found: object) -> None:
        if self.template is None:
            print_json(found)
            return
        rows = found if isinstance(found, list) else [found]
        for line in self.template.lines([row for row in rows if isinstance(row, Mapping)]):
            print(line)

    def line(self, found: Row) -> None:
        """One of many objects, each on a line of its own."""
        text = json.dumps(found) if self.template is None else self.template.lines([found])[0]
        print(text, flush=True)

    def show(self, rows: Iterable[Row], columns: Sequence[str], lesser: Sequence[str] = ()) -> None:
        """``lesser`` are the columns that a narrow terminal does without first."""
        rows = list(rows)
        if self.is_data:
            self.data(rows)
        else:
            print_table(rows, columns, lesser)

    def show_one(self, found: Row, fields: Sequence[str]) -> None:
        """One thing: a line for each of its fields."""
        if self.is_data:
            self.data(found)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for field in fields:
            table.add_row(field.replace("_", " "), Text(cell(found.get(field)) or "-"))
        console().print(table)

    def show_lines(self, lines: Iterable[str], rows: list[Row]) -> None:
        """Names, one a line, for people."""
        if self.is_data:
            self.data(rows)
            return
        for each in lines:
            print(printable(each))

    def done(self, text: str, data: Row) -> None:
        """What a command did: a line for people."""
        if self.is_data:
            self.data(data)
        else:
            print(text)

    def quiet(self, data: Row) -> None:
        """What a command made, which only a program wants to hear."""
        if self.is_data:
            self.data(data)


def print_json(found: object) -> None:
    print(json.dumps(found, indent=2))


def console() -> "Console":
    from rich.console import Console

    return Console(width=width())


def width() -> int:
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return PIPE_COLUMNS


def print_table(rows: Sequence[Row], columns: Sequence[str], lesser: Sequence[str] = ()) -> None:
    # A name that is cut names nothing: it takes more lines.
    table, hidden = fitted_table(rows, columns, lesser, width(), overflow="fold")
    out = console()
    out.print(table)
    if hidden and rows:
        note = f"not shown at this width: {', '.join(hidden)}; --json has all"
        out.print(f"({note})", style="dim", highlight=False, markup=False)


def table_of(rows: Sequence[Row], columns: Sequence[str], lesser: Sequence[str] = ()) -> "Table":
    """As wide as the terminal at most."""
    return fitted_table(rows, columns, lesser, width())[0]


def fitted_table(
    rows: Sequence[Row],
    columns: Sequence[str],
    lesser: Sequence[str],
    columns_max: int,
    *,
    overflow: Literal["fold", "ellipsis"] = "ellipsis",
) -> "tuple[Table, list[str]]":
    """Numbers to the right, everything else to the left; and the columns that had no room.

    What is too wide is made to fit in this order: titles take two lines, prose is broken between
    words, and lesser columns are left out. Only where that is not enough names and times are
    broken too, or end in …, before lesser columns and then others, from the right, are left out.
    """
    from rich.table import Table
    from rich.text import Text

    cells = {name: [cell(row.get(name)) for row in rows] for name in columns}
    numbers = {name for name in columns if _is_of_numbers([row.get(name) for row in rows])}
    prose = {name for name in columns if name not in numbers and any(map(_is_prose, cells[name]))}
    others = {name for name in columns if name not in numbers}
    leaving = [name for name in lesser if name in columns]
    widths = _leave_out(columns, leaving, cells, prose, columns_max)
    if widths is None:
        leaving += [name for name in reversed(columns) if name not in lesser]
        widths = _leave_out(columns, leaving, cells, others, columns_max)
    assert widths is not None, "one column always fits"
    shown = [name for name in columns if name in widths]
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(
            _title(name),
            overflow=overflow,
            width=widths[name],
            justify="right" if name in numbers else "left",
        )
    for index in range(len(rows)):
        # Text and not markup: a pattern such as [a-z] would be taken for a style.
        table.add_row(*(Text(cells[name][index]) for name in shown))
    hidden = [_title(name) for name in columns if name not in shown]
    return table, hidden


def _leave_out(
    columns: Sequence[str],
    leaving: Sequence[str],
    cells: Mapping[str, list[str]],
    breakable: set[str],
    columns_max: int,
) -> dict[str, int] | None:
    """The widths of those there is room for, without as many of the ``leaving`` as it takes."""
    shown = list(columns)
    widths = _widths(shown, cells, breakable, columns_max)
    for name in leaving:
        if widths is not None or len(shown) == 1:
            break
        shown.remove(name)
        widths = _widths(shown, cells, breakable, columns_max)
    return widths


def _widths(
    shown: Sequence[str], cells: Mapping[str, list[str]], breakable: set[str], columns_max: int
) -> dict[str, int] | None:
    """None: there is no room for all of these."""
    room = columns_max - GAP * (len(shown) - 1)
    inside = {
        name: max((_wide(line) for each in cells[name] for line in each.split("\n")), default=0)
        for name in shown
    }
    found = {name: max(inside[name], _wide(_title(name))) for name in shown}
    if sum(found.values()) <= room:
        return found
    found = {name: max(inside[name], _in_two_lines(_title(name))) for name in shown}
    texts = [name for name in shown if name in breakable]
    # Half of the longest name: of what the others say one has to know whose it is.
    least = {shown[0]: -(-inside[shown[0]] // 2)}
    for cap in range(max(*found.values(), TEXT_COLUMNS_MIN), TEXT_COLUMNS_MIN - 1, -1):
        capped = found | {
            name: min(found[name], max(cap, least.get(name, 0), _longest_word(_title(name))))
            for name in texts
        }
        if sum(capped.values()) <= room:
            return capped
    # What stands alone is cut rather than left out.
    return {shown[0]: max(room, 1)} if len(shown) == 1 else None


TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d")


def _is_prose(text: str) -> bool:
    """Words, that may stand in lines below each other."""
    return " " in text and not TIME.match(text)


def _longest_word(text: str) -> int:
    return max((_wide(word) for word in text.split()), default=0)


def _in_two_lines(text: str) -> int:
    words = text.split()
    return min(
        (
            max(_wide(" ".join(words[:at])), _wide(" ".join(words[at:])))
            for at in range(1, len(words))
        ),
        default=_wide(text),
    )


def _title(column: str) -> str:
    return column.replace("_", " ")


def _is_of_numbers(values: Sequence[object]) -> bool:
    return any(value is not None for value in values) and all(
        value is None or type(value) in (int, float) for value in values
    )


def _wide(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def cell(value: object) -> str:
    if isinstance(value, list) and value:
        return ", ".join(map(cell, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None or value == [] else printable(str(value))


def printable(text: str) -> str:
    """What others wrote must not steer this terminal: control characters are shown, not obeyed."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\t\n" else repr(each)[1:-1] for each in text
    )


def counted(count: int, what: str, plural: str = "") -> str:
    """``1 message``, ``1 002 messages``: as logs and tables write numbers, without separators."""
    return f"{count} {what}" if count == 1 else f"{count} {plural or what + 's'}"
