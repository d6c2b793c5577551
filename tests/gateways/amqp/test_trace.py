import logging
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.gateways.amqp.trace import Trace
from braidmq.logs import TRACE
from braidmq.wire.amqp import methods as m

SECRET = b"\0guest\0s3cret"


class Somebody:
    def log_fields(self) -> dict[str, Any]:
        return {"connection": 1}


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True, scope="module")
def _shown() -> None:
    TRACE.setLevel(logging.INFO)


def traced(*chunks: bytes) -> list[logging.LogRecord]:
    kept = Kept()
    TRACE.addHandler(kept)
    try:
        trace = Trace(Somebody(), b"")
        for chunk in chunks:
            trace.received(chunk)
    finally:
        TRACE.removeHandler(kept)
    return kept.records


STREAM = (
    b"AMQP\0\0\x09\x01"
    + m.method_frame(0, m.ConnectionStartOk({}, "PLAIN", SECRET))
    + m.method_frame(0, m.ConnectionUpdateSecret(SECRET, "why"))
    + m.HEARTBEAT_FRAME
    + m.frame(9, 1, b"???")
    + m.frame(1, 1, b"\xff\xff\xff\xff")
    + m.method_frame(1, m.BasicGet("q"))
)
MESSAGES = [
    "received connection.start-ok",
    "received connection.update-secret",
    "received heartbeat",
    "received a frame of unknown kind",
    "received a frame that can't be read",
    "received basic.get",
]


@given(st.lists(st.integers(8, len(STREAM))))
def test_frames_are_found_however_they_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in pairwise(places)]
    assert [record.getMessage() for record in traced(*chunks)] == MESSAGES


def test_what_a_login_is_made_of_is_left_out() -> None:
    for record in traced(STREAM):
        assert "s3cret" not in str(record.__dict__)
