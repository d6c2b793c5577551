"""Bodies with more in their lists than is taken: refused before it is made."""

from typing import Annotated, ClassVar

import msgspec
import pytest
from msgspec import Meta

from braidmq.api.endpoints import COUNTED_BYTES, Body, body_decoder


class Item(Body, frozen=True):
    value: str

    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Item.made += 1


class Items(Body, frozen=True):
    items: Annotated[list[Item], Meta(max_length=3)]
    name: str = ""


def body(count: int, padding: int) -> bytes:
    return msgspec.json.encode({"name": "x" * padding, "items": [{"value": ""}] * count})


@pytest.mark.parametrize("padding", [0, COUNTED_BYTES])
def test_too_many_are_refused_in_the_same_words(padding: int) -> None:
    decode = body_decoder(Items)
    assert len(decode(body(3, padding)).items) == 3
    with pytest.raises(ValueError, match=r"Expected `array` of length <= 3 - at `\$.items`"):
        decode(body(4, padding))


def test_nothing_is_made_of_a_large_body_that_is_refused() -> None:
    decode = body_decoder(Items)
    before = Item.made
    for wrong in (body(4, COUNTED_BYTES), body(3, COUNTED_BYTES)[:-1]):
        with pytest.raises(ValueError):  # noqa: PT011
            decode(wrong)
    assert Item.made == before
