"""The log: its two forms, who a line is about, and what is never in it."""

import io
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq import logs
from braidmq.logs import LogSettings, about


class Somebody:
    def log_fields(self) -> dict[str, Any]:
        return {"connection": 7, "user": "ann"}


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(logs.ROOT)
    before = (root.handlers[:], root.level, ours.level, logging.raiseExceptions)
    token = about.set(None)
    yield
    about.reset(token)
    root.handlers[:], root.level, ours.level, logging.raiseExceptions = before
    logging.captureWarnings(False)


def written(form: Any, level: Any = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.configure(LogSettings(level=level, format=form), stream)
    return stream


logger = logging.getLogger("braidmq.some.place")


def test_a_human_line() -> None:
    stream = written("human")
    about.set(Somebody())
    logger.info("queue made", extra={"topic": "a b", "empty": "", "count": 3})
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == (
        'info    some.place: queue made  connection=7 user=ann topic="a b" empty="" count=3\n'
    )


def test_a_json_line() -> None:
    stream = written("json")
    about.set(Somebody())
    logger.warning("odd", extra={"topic": "ä\n", "when": {"a": [1, b"x"]}})
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "braidmq.some.place",
        "message": "odd",
        "connection": 7,
        "user": "ann",
        "topic": "ä\n",
        "when": {"a": [1, "eA=="]},
    }


@given(st.text())
def test_what_a_peer_sent_never_makes_a_second_line(text: str) -> None:
    stream = written("human")
    logger.info("login refused", extra={"user": text})
    assert len(stream.getvalue().splitlines()) == 1
    assert stream.getvalue().removesuffix("\n").isprintable()
    stream = written("json")
    logger.info("login refused", extra={"user": text})
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue())["user"] == text


def test_an_error_has_its_traceback() -> None:
    for form in ("human", "json"):
        stream = written(form)
        try:
            raise RuntimeError("boom")
        except RuntimeError:
            logger.exception("broken")
        assert "RuntimeError: boom" in stream.getvalue()


def test_the_level_can_be_changed_and_a_trace_is_shown_whatever_it_is() -> None:
    stream = written("human", "error")
    logger.warning("unseen")
    logs.TRACE.info("seen 1")
    logs.set_level("debug")
    assert logs.level() == "debug"
    logger.debug("seen 2")
    assert [line[-6:] for line in stream.getvalue().splitlines()] == ["seen 1", "seen 2"]


def test_libraries_speak_up_from_warnings_on() -> None:
    stream = written("json", "debug")
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").error("trouble")
    assert json.loads(stream.getvalue())["message"] == "trouble"


def test_nobody_waits_for_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "UNREAD_MS", 10)
    reading, writing = os.pipe()
    handler = logs.PipeHandler(writing)
    handler.setFormatter(logs.HumanFormat())
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger(logs.ROOT).setLevel("INFO")
    for number in range(3000):
        logger.info("line", extra={"number": number, "long": "x" * (number % 7) * 100})
    seen = os.read(reading, 1 << 20)
    logger.info("again")
    seen += os.read(reading, 1 << 20)
    os.close(writing)
    first, _, rest = seen.decode().partition("number=1 ")
    assert "number=0 " in first
    lost = int(rest.partition(" lines dropped: nobody read them)\n")[0].rpartition("(")[2])
    assert lost + seen.count(b" info ") == 3001
    assert seen.endswith(b"some.place: again\n")
    logger.info("more than anybody minds")  # there is no pipe any more
    os.close(reading)


def test_what_is_longer_than_a_pipe_takes_at_once_is_written_whole() -> None:
    reading, writing = os.pipe()
    handler = logs.PipeHandler(writing)
    logging.getLogger().handlers[:] = [handler]
    logging.getLogger(logs.ROOT).setLevel("INFO")
    text = "é" * 20_000
    logger.info(text)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        assert pipe.read() == text + "\n"
