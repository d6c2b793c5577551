"""One way to page through every list: ask with ``limit`` and ``cursor``, read on with the header
``Braid-Next`` as the next ``cursor``, until there is none.

A header, as bodies differ: lists, documents, lines of CSV. A cursor is the place after which to go
on, in a form that nobody should take apart.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

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

OffsetPlace = tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=-1)]]
"""A partition, and an offset in it."""

BEGINNING = (0, -1)

Place = TypeVar("Place")
Item = TypeVar("Item")


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
