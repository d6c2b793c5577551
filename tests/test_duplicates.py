"""No two places share so many lines of logic that they should be one.

A line is a logical one, however it is wrapped, within a function; names and values are folded, so
that a copy in other words is a copy. Imports, signatures, docstrings, declarations of types and
all that stands outside functions (tables, fields) do not count.
"""

import io
import keyword
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "bench", "scripts", "tests")
OTHERS = {"build", "node_modules"}
"""Folders of what tests install and generate there, beside what is ours."""
SHARED_LINES_MAX = 11

WORDS = {*keyword.kwlist, "cdef", "cpdef", "cimport", "class", "enum", "extern", "self", "struct"}
NO_FUNCTIONS = {"class", "enum", "extern", "struct"}
NO_LOGIC = {"import", "from", "cimport", "global", "nonlocal", "@", "<text>"}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}


class Line(NamedTuple):
    place: str
    number: int
    shape: str


def folded(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return token.string if token.string in WORDS else "<name>"
    if token.type == tokenize.STRING:
        return "<text>"
    return "<number>" if token.type == tokenize.NUMBER else token.string


def logical_lines(source: str) -> Iterator[tuple[int, int, list[str]]]:
    """Number, depth and folded tokens of each."""
    depth = number = 0
    tokens: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.INDENT:
            depth += 1
        elif token.type == tokenize.DEDENT:
            depth -= 1
        elif token.type == tokenize.NEWLINE:
            yield number, depth, tokens
            tokens = []
        elif token.type not in LAYOUT:
            number = number if tokens else token.start[0]
            tokens.append(folded(token))


def begins_function(tokens: list[str]) -> bool:
    is_def = tokens[0] in {"def", "cdef", "cpdef"} or tokens[:2] == ["async", "def"]
    return is_def and "(" in tokens and tokens[-1] == ":" and NO_FUNCTIONS.isdisjoint(tokens[:3])


def is_logic(tokens: list[str]) -> bool:
    return tokens[0] not in NO_LOGIC and (tokens[0] != "cdef" or "=" in tokens)


def logic(place: str, source: str) -> list[Line]:
    found: list[Line] = []
    function: int | None = None  # how deep the one around us begins
    for number, depth, tokens in logical_lines(source):
        if function is not None and depth <= function:
            function = None
        if begins_function(tokens):
            function = depth if function is None else function
        elif function is not None and is_logic(tokens):
            found.append(Line(place, number, " ".join(tokens)))
    return found


def shared(files: list[list[Line]], at_least: int) -> list[str]:
    """Pairs of places with so many lines of one shape in a row, as long as they go."""
    first_seen: dict[tuple[str, ...], tuple[list[Line], int]] = {}
    found: list[str] = []
    for lines in files:
        told = 0  # up to where this file's lines are told of
        for at in range(len(lines) - at_least + 1):
            window = tuple(line.shape for line in lines[at : at + at_least])
            theirs, there = first_seen.setdefault(window, (lines, at))
            if at < told or (theirs is lines and at - there < at_least):
                continue
            length = at_least
            while at + length < len(lines) and there + length < len(theirs):
                if lines[at + length].shape != theirs[there + length].shape:
                    break
                length += 1
            told = at + length
            found.append(
                f"{length} lines: {span(theirs, there, length)} ~ {span(lines, at, length)}"
            )
    return found


def span(lines: list[Line], at: int, length: int) -> str:
    return f"{lines[at].place}:{lines[at].number}-{lines[at + length - 1].number}"


EXAMPLE = '''
import os
cdef extern from "x.h":
    int f(int x)
    int g(int x)
class Kept:
    a: int = 1
    def first(self, x):
        """Not counted."""
        total = 0
        for each in x:
            total += each
        return total
def second(
    numbers,
):
    much = 1  # in other words
    for one in numbers:
        much += one
    return (
        much
    )
'''


def test_the_check_sees_a_copy_in_other_words() -> None:
    lines = logic("x", EXAMPLE)
    assert [line.number for line in lines] == [10, 11, 12, 13, 17, 18, 19, 20]
    assert shared([lines], 4) == []  # a wrapped line has its brackets
    assert shared([lines], 3) == ["3 lines: x:10-12 ~ x:17-19"]
    again = logic("y", EXAMPLE.replace("total", "sum"))
    assert shared([lines, again], 8) == ["8 lines: x:10-20 ~ y:10-20"]


def test_no_two_places_share_a_dozen_lines_of_logic() -> None:
    every = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    ours = (path for path in every if not OTHERS & set(path.parts))
    paths = sorted(path for path in ours if path.suffix in {".py", ".pyx"})
    files = [logic(str(path.relative_to(ROOT)), path.read_text()) for path in paths]
    assert sum(map(len, files)) > 50_000
    assert not shared(files, SHARED_LINES_MAX + 1)
