"""A fixed set of inputs; ``python -m tests.fuzz.amqp_decoder`` looks for others."""

import pytest
from tests.fuzz.amqp_decoder import check, inputs


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_in_any_pieces_are_the_same_events(seed: int) -> None:
    for each in inputs(seed, count=100):
        check(each)
