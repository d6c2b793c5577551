"""Times, sizes and settings as people write and read them on a command line."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from braidmq.cli.output import cell
from braidmq.model.errors import BadSetting

UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")

UNITS_BYTES: dict[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1000**n for n, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGT", 1)},
}
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(UNITS_BYTES)})")

Position = Literal["earliest", "latest"] | int | datetime
"""``earliest``, ``latest``, an offset, or a time."""


def duration_ms(text: str) -> int:
    """``250ms``, ``30s``, ``5m``, ``2h``, ``1d``."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadSetting(
            f"{text!r} is not a time span", remedy="Use a value such as 250ms, 30s, 5m, 2h or 1d"
        )
    return round(float(found[1]) * UNITS_MS[found[2]])


def span_s(text: str) -> float:
    """A time span; a number alone is seconds."""
    try:
        plain = float(text)
    except ValueError:
        return duration_ms(text) / UNITS_MS["s"]
    if not 0 <= plain < float("inf"):
        raise BadSetting(f"{text!r} is not a time span", remedy="Use seconds, or 250ms, 5m, 2h")
    return plain


def size_bytes(text: str) -> int:
    """``1GiB``, ``500kB``; a number alone is bytes."""
    if text.isdecimal():
        return int(text)
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise BadSetting(
            f"{text!r} is not a size", remedy="Use bytes, or a value such as 64KiB, 1GiB or 500MB"
        )
    return round(float(found[1]) * UNITS_BYTES[found[2]])


def with_units(name: str, value: Any) -> Any:
    """The value of a setting, where its name says what the number counts: ``ttl_ms`` takes ``2h``,
    ``retention.bytes`` ``1GiB``. Numbers mean what they always did."""
    if not isinstance(value, str):
        return value
    words = re.split("[._-]", name)
    if "ms" in words and _DURATION.fullmatch(value):
        return duration_ms(value)
    if "bytes" in words and _SIZE.fullmatch(value):
        return size_bytes(value)
    return value


def measured(name: str, value: Any) -> str:
    """A setting's value, and how much that is where its name says what the number counts."""
    text = cell(value)
    words = re.split("[._-]", name)
    if not isinstance(value, int) or value < 1000:
        return text
    if "ms" in words:
        return f"{text} ({span_text(value)})"
    return f"{text} ({size_text(value)})" if "bytes" in words else text


def now_ms() -> int:
    return int(time.time() * 1000)


def moment_ms(text: str) -> int:
    """A time, or how long ago, as milliseconds since 1970."""
    try:
        when = position(text, datetime.now(UTC))
    except BadSetting:
        when = "latest"
    if not isinstance(when, datetime):
        raise BadSetting(f"{text!r} is not a time", remedy="Use 2026-05-01T12:00, or an age (10m)")
    return int(when.timestamp() * 1000)


def position(text: str, now: datetime) -> Position:
    """A place in a log: ``earliest``, ``latest``, an offset, a time, or how long ago."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    if _DURATION.fullmatch(text):
        return now - timedelta(milliseconds=duration_ms(text))
    try:
        return moment(text)
    except BadSetting:
        raise BadSetting(
            f"{text!r} is not a position in a topic",
            remedy="Use earliest, latest, an offset (1700), a time (2026-05-01T12:00) or an"
            " age (10m)",
        ) from None


def moment(text: str) -> datetime:
    """``2026-05-01T12:00``, here unless it says where."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadSetting(
            f"{text!r} is not a time", remedy="Use a time such as 2026-05-01T12:00"
        ) from None
    return when if when.tzinfo is not None else when.astimezone()


def wire_position(text: str, now: datetime) -> str:
    """As the HTTP API writes it: a time is ``@`` and milliseconds."""
    meant = position(text, now)
    if isinstance(meant, datetime):
        return f"@{int(meant.timestamp() * 1000)}"
    return str(meant)


def settings(given: list[str]) -> dict[str, Any]:
    """``retry.attempts=5`` and the like, as the nested settings they mean."""
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not all(name.split(".")):
            raise BadSetting(
                f"{each!r} is not a setting",
                remedy="Use NAME=VALUE, such as ttl_ms=2h or retry.attempts=5",
            )
        *above, last = name.split(".")
        place = found
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise BadSetting(f"{name} is given twice, as a value and as a table")
        place[last] = with_units(last, _value(text))
    return found


def pairs(given: list[str]) -> dict[str, str]:
    """``name=value`` for each."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise BadSetting(
                f"{each!r} is not a name and a value", remedy="Use NAME=VALUE, such as source=shop"
            )
        found[name] = value
    return found


def values(given: list[str]) -> dict[str, Any]:
    """As ``pairs``; what is JSON is meant as that."""
    return {name: _value(text) for name, text in pairs(given).items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def time_text(at_ms: int | None) -> str | None:
    """In UTC, as logs have it."""
    if at_ms is None:
        return None
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return f"@{at_ms}"  # a publisher may ask for a time beyond the year 9999
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}Z"


def span_text(span_ms: int) -> str:
    """``3d 4h``, ``5m 10s``, ``250ms``: the two units that matter."""
    if span_ms < UNITS_MS["s"]:
        return f"{span_ms}ms"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, span_ms = divmod(span_ms, UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
