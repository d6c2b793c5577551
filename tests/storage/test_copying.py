"""Copies into place against slices of a bytearray."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.storage.copying import copy_into

STREAMED = 32 * 1024


@given(st.one_of(st.integers(0, 100), st.integers(STREAMED - 20, STREAMED + 200)), st.data())
def test_only_what_is_meant_changes(size: int, data: st.DataObject) -> None:
    position, behind = data.draw(st.integers(0, 70)), data.draw(st.integers(0, 70))
    aside = data.draw(st.integers(0, 17))
    source = random.Random(size).randbytes(size + aside)[aside:]
    target = bytearray(b"\xaa" * (position + size + behind))
    expected = target[:position] + source + target[position + size :]
    copy_into(target, position, source)
    assert target == expected


@pytest.mark.parametrize("position", [-1, 1, 1 << 62])
def test_what_does_not_fit_is_refused(position: int) -> None:
    target = bytearray(8)
    with pytest.raises(IndexError):
        copy_into(target, position, b"8 bytes!")
    assert target == bytearray(8)


def test_nothing_fits_anywhere() -> None:
    copy_into(bytearray(), 0, b"")
    copy_into(bytearray(3), 3, b"")
