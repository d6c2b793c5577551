"""Time spans, places in a log, settings and sizes as people write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cli import units
from braidmq.model.errors import BadSetting

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [
        ("0s", 0),
        ("250ms", 250),
        ("1.5s", 1500),
        ("5m", 300_000),
        ("2 h", 7_200_000),
        ("1d", 86400000),
    ],
)
def test_spans(text: str, span_ms: int) -> None:
    assert units.duration_ms(text) == span_ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5s5", "5w", "1h30m", "५s x", "1e3s"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(BadSetting):
        units.duration_ms(text)


@given(st.integers(0, 10**12))
def test_a_span_is_shown_to_within_its_second_unit(span_ms: int) -> None:
    parts = units.span_text(span_ms).split()
    shown_ms = sum(units.duration_ms(part) for part in parts)
    smallest = units.UNITS_MS[parts[-1].lstrip("0123456789")]
    assert shown_ms <= span_ms
    if len(parts) == 2:
        assert span_ms - shown_ms < smallest * 60
    if span_ms < 1000:
        assert shown_ms == span_ms


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("1700", 1700),
        ("10m", NOW - timedelta(minutes=10)),
        ("2026-05-01T12:00:00Z", NOW),
        ("2026-05-01T14:00+02:00", NOW.astimezone(timezone(timedelta(hours=2)))),
    ],
)
def test_places(text: str, place: object) -> None:
    assert units.position(text, NOW) == place


def test_a_time_without_a_zone_is_of_here() -> None:
    assert units.position("2026-05-01T12:00", NOW) == datetime(2026, 5, 1, 12).astimezone()


def test_places_for_the_api() -> None:
    at_ms = int(NOW.timestamp() * 1000)
    assert units.wire_position("latest", NOW) == "latest"
    assert units.wire_position("17", NOW) == "17"
    assert units.wire_position("1s", NOW) == f"@{at_ms - 1000}"


def test_settings_nest() -> None:
    given_ = ["a.b=1", "a.c=x", "d=null", "e=[1]", "f=a=b", "g="]
    assert units.settings(given_) == {
        "a": {"b": 1, "c": "x"},
        "d": None,
        "e": [1],
        "f": "a=b",
        "g": "",
    }


@pytest.mark.parametrize("wrong", [["a"], ["=1"], ["a.=1"], ["a..b=1"], ["a=1", "a.b=1"]])
def test_what_sets_nothing(wrong: list[str]) -> None:
    with pytest.raises(BadSetting):
        units.settings(wrong)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_sizes(size_bytes: int, text: str) -> None:
    assert units.size_text(size_bytes) == text


def test_a_time_beyond_the_calendar_is_shown_all_the_same() -> None:
    assert units.time_text(0) == "1970-01-01 00:00:00.000Z"
    assert units.time_text(1 << 53) == "@9007199254740992"
    assert units.time_text(1 << 62) == f"@{1 << 62}"
