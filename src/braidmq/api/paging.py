"""One way to page through every list: ask with ``limit`` and ``cursor``, read on with the header
``Braid-Next`` as the next ``cursor``, until there is none.

A header, as bodies differ: lists, documents, lines of CSV. A cursor is the place after which to go
on, in a form that nobody should take apart.
"""

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from braidmq.model.errors import BadRequest

NEXT_HEADER = "Braid-Next"
NEXT_DESCRIPTION = "The `cursor` of the next page. Not there: this was the last."

CursorText = Annotated[
    str,
    Meta(
        max_length=8192, description=f"`{NEXT_HEADER}` of the answer before; empty: the beginning"
    ),
]

LIST_MAX = 1000
"""Of one answer: what a node can describe without keeping others waiting."""

ListLimit = Annotated[int, Meta(ge=1, le=LIST_MAX, description="So many at most")]

OffsetPlace = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=-1)]]
"""A partition, and an offset in it."""

BEGINNING = (0, -1)

ITEMS_PER_TURN = 500
"""About a millisecond of a walk through a list."""

Place = TypeVar("Place")
Item = TypeVar("Item")


class ListQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a list that is no namespace's."""

    cursor: CursorText = ""
    limit: ListLimit = LIST_MAX


class Paged(Protocol):
    @property
    def cursor(self) -> str: ...
    @property
    def limit(self) -> int: ...


class Page(NamedTuple):
    """What an operation returns for one page; ``next`` is the cursor of the next, if there is."""

    body: object
    next: str = ""


def cursor_of(place: Sequence[Any]) -> str:
    """In characters that a header may have, whatever names are in it."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode()


def place_in(cursor: str, wanted: Any, beginning: Place) -> Place:
    """``wanted`` is the type of a place. Raises BadRequest."""
    if not cursor:
        return beginning
    try:
        found: Place = msgspec.json.decode(base64.urlsafe_b64decode(cursor), type=wanted)
        return found
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadRequest(
            "the cursor is none of ours", remedy=f"Give `{NEXT_HEADER}` as it was"
        ) from None


def first_of(found: Sequence[Item], limit: int) -> tuple[list[Item], bool]:
    """At most ``limit``, and whether there are more."""
    return list(found[:limit]), len(found) > limit


def _every(item: object) -> bool:
    return True


async def page_of(
    found: Iterable[Item],
    query: Paged,
    place: Callable[[Item], tuple[Any, ...]],
    wanted: Any,
    *,
    keep: Callable[[Item], bool] = _every,
) -> tuple[list[Item], str]:
    """One page in the order of places, which are of the type ``wanted``, and the next cursor.

    Others have their turn while a long list is walked through: ``found`` must not change meanwhile,
    and what is gone by then ``keep`` leaves out, with what the caller may not see.
    """
    after = place_in(query.cursor, wanted, None)
    first: list[tuple[tuple[Any, ...], Item]] = []
    rest = iter(found)
    while part := list(islice(rest, ITEMS_PER_TURN)):
        placed = ((place(each), each) for each in part if keep(each))
        later = (each for each in placed if after is None or each[0] > after)
        first = nsmallest(query.limit + 1, [*first, *later], key=_place_of)
        if len(part) < ITEMS_PER_TURN:
            break
        await asyncio.sleep(0)
    chosen, more = first_of(first, query.limit)
    return [each for _, each in chosen if keep(each)], cursor_of(chosen[-1][0]) if more else ""


def _place_of(placed: tuple[tuple[Any, ...], object]) -> tuple[Any, ...]:
    return placed[0]
