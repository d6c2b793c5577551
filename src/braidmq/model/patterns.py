"""Regular expressions from administrators, searched for in names that clients choose.

Python's ``re`` backtracks: some patterns of a few characters take exponential time on some names.
Here all alternatives advance together. Only where a match can end matters, so a part of a pattern
is a function from the positions where it may begin to those where it may end, and a set of
positions is one integer:

    name       a  a  b  a          pattern  a+b
    positions  0  1  2  3  4       begin anywhere   11111
                                   after a+         11010   (positions 1, 2 and 4)
                                   after b          01000   (position 3: found)

Looking ahead is the same from right to left. What needs to know what an earlier part matched
(backreferences), or which way was tried first (atomic groups, possessive repeats), is refused.

Patterns that ``re`` can only search in few ways are left to it: it is quicker for those.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from braidmq.model.errors import BadRequest

CHARACTERS_MAX = 1024
"""An alternation of a few dozen names; who needs more wants a common prefix."""

NAME_CHARACTERS = 256
"""What names of most protocols have at most: what a pattern costs is reckoned with such a one."""

COST_MAX = 200_000
"""Operations on sets that a pattern may need for such a name: some milliseconds."""

WAYS_MAX = 1 << 18
"""Steps up to which a pattern is left to ``re``."""

DEPTH_MAX = 50
"""Groups within groups."""

COMPILED_MAX = 1024

ENDLESS = 1 << 60

_CLASSES = {
    ops.CATEGORY_DIGIT: r"\d",
    ops.CATEGORY_NOT_DIGIT: r"\D",
    ops.CATEGORY_SPACE: r"\s",
    ops.CATEGORY_NOT_SPACE: r"\S",
    ops.CATEGORY_WORD: r"\w",
    ops.CATEGORY_NOT_WORD: r"\W",
}
_PLACES = {
    ops.AT_BEGINNING: "^",
    ops.AT_BEGINNING_STRING: r"\A",
    ops.AT_BOUNDARY: r"\b",
    ops.AT_NON_BOUNDARY: r"\B",
    ops.AT_END: "$",
    ops.AT_END_STRING: r"\Z",
}
_REFUSED = {
    ops.GROUPREF: "a backreference",
    ops.GROUPREF_EXISTS: "a condition on a group",
    ops.ATOMIC_GROUP: "an atomic group",
    ops.POSSESSIVE_REPEAT: "a possessive repeat",
}


class BadPattern(BadRequest):
    remedy = "Write a regular expression of Python's re module, without what the message names"


class _TooLong(Exception):
    """A very long name took more steps than a pattern may."""


class _Name:
    """A name that is searched, and what is known of its positions."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.every = (1 << (len(text) + 1)) - 1
        self.known: dict[object, int] = {}
        self._steps = COST_MAX
        self._weight = 1 + len(text) // (2 * NAME_CHARACTERS)

    def step(self) -> None:
        self._steps -= self._weight
        if self._steps < 0:
            raise _TooLong


class _Node:
    everywhere = False
    """Whether it matches nothing at all, and so anywhere."""
    cost: int
    """Operations that it needs at most."""
    ways: int
    """Ways in which ``re`` may try it."""
    leaves = 1

    def ends(self, begins: int, name: _Name) -> int:
        raise NotImplementedError

    def begins(self, ends: int, name: _Name) -> int:
        raise NotImplementedError


class _Character(_Node):
    cost = ways = 1

    def __init__(self, text: str, flags: int) -> None:
        self._matches = re.compile(text, flags).fullmatch

    def places(self, name: _Name) -> int:
        """Positions of the characters that it matches."""
        found = name.known.get(self)
        if found is None:
            wanted = {each for each in set(name.text) if self._matches(each)}
            bits = "".join(["1" if each in wanted else "0" for each in reversed(name.text)])
            found = name.known[self] = int(bits or "0", 2)
        return found

    def ends(self, begins: int, name: _Name) -> int:
        return (begins & self.places(name)) << 1

    def begins(self, ends: int, name: _Name) -> int:
        return (ends >> 1) & self.places(name)


class _Place(_Node):
    """A position of which something is true: ^, $, a word's edge."""

    cost = ways = 1

    def __init__(self, text: str, flags: int) -> None:
        self._found = re.compile(text, flags).finditer

    def ends(self, begins: int, name: _Name) -> int:
        found = name.known.get(self)
        if found is None:
            found = 0
            for each in self._found(name.text):
                found |= 1 << each.start()
            name.known[self] = found
        return begins & found

    def begins(self, ends: int, name: _Name) -> int:
        return self.ends(ends, name)


class _Look(_Node):
    """(?=…), (?!…), (?<=…), (?<!…): true of a position or not, wherever one comes from."""

    def __init__(self, inner: _Node, *, ahead: bool, wanted: bool) -> None:
        self._inner = inner
        self._ahead = ahead
        self._wanted = wanted
        self.cost, self.ways, self.leaves = inner.cost, inner.ways, inner.leaves

    def ends(self, begins: int, name: _Name) -> int:
        found = name.known.get(self)
        if found is None:
            look = self._inner.begins if self._ahead else self._inner.ends
            found = look(name.every, name)
            if not self._wanted:
                found = name.every & ~found
            name.known[self] = found
        return begins & found

    def begins(self, ends: int, name: _Name) -> int:
        return self.ends(ends, name)


class _Sequence(_Node):
    def __init__(self, parts: Sequence[_Node]) -> None:
        self.parts = parts
        self.everywhere = all(part.everywhere for part in parts)
        self.cost = sum(part.cost for part in parts)
        self.leaves = sum(part.leaves for part in parts)
        self.ways = 1
        for part in parts:
            self.ways = min(self.ways * part.ways, ENDLESS)

    def ends(self, begins: int, name: _Name) -> int:
        for part in self.parts:
            if not begins:
                return 0
            begins = part.ends(begins, name)
        return begins

    def begins(self, ends: int, name: _Name) -> int:
        for part in reversed(self.parts):
            if not ends:
                return 0
            ends = part.begins(ends, name)
        return ends


class _Choice(_Node):
    def __init__(self, parts: Sequence[_Node]) -> None:
        self._parts = parts
        self.everywhere = any(part.everywhere for part in parts)
        self.cost = sum(part.cost for part in parts)
        self.ways = sum(part.ways for part in parts)
        self.leaves = sum(part.leaves for part in parts)

    def ends(self, begins: int, name: _Name) -> int:
        found = 0
        for part in self._parts:
            found |= part.ends(begins, name)
        return found

    def begins(self, ends: int, name: _Name) -> int:
        found = 0
        for part in self._parts:
            found |= part.begins(ends, name)
        return found


class _Repeat(_Node):
    def __init__(self, inner: _Node, least: int, most: int | None) -> None:
        nested = isinstance(inner, _Repeat)
        if (
            isinstance(inner, _Repeat)
            and most is inner.most is None
            and max(least, inner.least) < 2
        ):
            # (x+)+ is x+, (x*)+ is x*: else two loops would go over the name, one in the other.
            least, inner = least * inner.least, inner.inner
        self.everywhere = least == 0 or inner.everywhere
        self.inner: _Node = inner
        self.least: int = least
        self.most: int | None = most
        turns = least + NAME_CHARACTERS if most is None else most
        self.ways = ENDLESS
        if isinstance(inner, _Character):
            self.cost = (least if most is None else most) + 20
            if not nested:
                self.ways = NAME_CHARACTERS if most is None else max(most - least + 1, 1)
        else:
            self.cost = min(max(turns, 1) * inner.cost, ENDLESS)
            if least == most and most < 64:
                self.ways = min(inner.ways**most, ENDLESS)
        self.leaves = min(max(least, 1) * inner.leaves, ENDLESS)

    def ends(self, begins: int, name: _Name) -> int:
        return self._repeated(begins, name, self.inner.ends, forwards=True)

    def begins(self, ends: int, name: _Name) -> int:
        return self._repeated(ends, name, self.inner.begins, forwards=False)

    def _repeated(
        self, at: int, name: _Name, once: Callable[[int, _Name], int], *, forwards: bool
    ) -> int:
        for _ in range(self.least):
            before, at = at, once(at, name) & name.every
            name.step()
            if at == before:
                break
        if self.most is None and isinstance(self.inner, _Character):
            return _spread(at, self.inner.places(name), forwards=forwards) & name.every
        found = latest = at
        left = ENDLESS if self.most is None else self.most - self.least
        while latest and left:
            latest = once(latest, name) & name.every & ~found
            found |= latest
            left -= 1
            name.step()
        return found


def _spread(at: int, places: int, *, forwards: bool) -> int:
    """Where one can get to over neighbouring places, in steps that double."""
    width = 1
    free = places << 1 if forwards else places
    while free:
        if forwards:
            at |= (at << width) & free
            free &= free << width
        else:
            at |= (at >> width) & free
            free &= free >> width
        width *= 2
    return at


def _character(text: str, flags: int) -> _Character:
    kept = flags & (re.IGNORECASE | re.ASCII | re.DOTALL)
    return _Character(text, kept)


def _escaped(code: int) -> str:
    return rf"\U{code:08x}"


def _class_of(items: Sequence[tuple[Any, Any]]) -> str:
    text = ""
    for op, value in items:
        if op is ops.NEGATE:
            text += "^"
        elif op is ops.LITERAL:
            text += _escaped(value)
        elif op is ops.RANGE:
            text += f"{_escaped(value[0])}-{_escaped(value[1])}"
        else:
            text += _CLASSES[value]
    return f"[{text}]"


def _build(parsed: Sequence[tuple[Any, Any]], flags: int, depth: int = 0) -> _Node:
    if depth > DEPTH_MAX:
        raise BadPattern(f"a pattern can't have more than {DEPTH_MAX} groups within one another")
    parts = [_build_one(op, value, flags, depth + 1) for op, value in parsed]
    return parts[0] if len(parts) == 1 else _Sequence(parts)


def _build_one(op: Any, value: Any, flags: int, depth: int) -> _Node:
    if op in _REFUSED:
        raise BadPattern(f"a pattern can't have {_REFUSED[op]}: it could take forever to match")
    if op is ops.LITERAL:
        return _character(_escaped(value), flags)
    if op is ops.NOT_LITERAL:
        return _character(f"[^{_escaped(value)}]", flags)
    if op is ops.ANY:
        return _character(".", flags)
    if op is ops.IN:
        return _character(_class_of(value), flags)
    if op is ops.AT:
        return _Place(_PLACES[value], flags & (re.ASCII | re.MULTILINE))
    if op is ops.BRANCH:
        return _Choice([_build(each, flags, depth) for each in value[1]])
    if op is ops.SUBPATTERN:
        _, added, removed, inner = value
        return _build(inner, (flags | added) & ~removed, depth)
    if op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
        least, most, inner = value
        return _Repeat(
            _build(inner, flags, depth), least, None if most is ops.MAXREPEAT else int(most)
        )
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        direction, inner = value
        wanted = op is ops.ASSERT
        return _Look(_build(inner, flags, depth), ahead=direction > 0, wanted=wanted)
    raise BadPattern(f"a pattern can't have {str(op).lower()}")


class Pattern:
    """What ``compiled`` makes of a text."""

    __slots__ = ("_node", "_quick", "_quick_characters", "text")

    def __init__(self, text: str) -> None:
        if len(text) > CHARACTERS_MAX:
            raise BadPattern(f"a pattern can't have more than {CHARACTERS_MAX} characters")
        try:
            text.encode()
            parsed = _parser.parse(text)
            self._node = _build(parsed, parsed.state.flags)
        except (re.error, UnicodeEncodeError, OverflowError, RecursionError) as error:
            raise BadPattern(f"{text!r} is not a pattern: {error}") from error
        if self._node.cost > COST_MAX:
            raise BadPattern(
                f"the pattern {text!r} has repeats within repeats that could take forever to match"
            )
        self.text = text
        anchored = bool(parsed) and parsed[0] == (ops.AT, ops.AT_BEGINNING)
        anchored = anchored and not parsed.state.flags & re.MULTILINE
        steps = self._node.ways * self._node.leaves
        few = steps * (1 if anchored else NAME_CHARACTERS) <= WAYS_MAX
        self._quick = re.compile(text).search if few else None
        # From one place, with nothing to go back to: that is as quick in any name.
        alone = anchored and steps <= NAME_CHARACTERS
        self._quick_characters = ENDLESS if alone else NAME_CHARACTERS

    def search(self, name: str) -> bool:
        """Whether it occurs in a name. A name of thousands of characters that takes too long to
        search has not got it."""
        if self._node.everywhere:
            return True
        if self._quick is not None and len(name) <= self._quick_characters:
            return self._quick(name) is not None
        searched = _Name(name)
        try:
            return self._node.ends(searched.every, searched) & searched.every != 0
        except _TooLong:
            return False


@lru_cache(COMPILED_MAX)
def compiled(text: str) -> Pattern:
    """Raises BadPattern."""
    return Pattern(text)
