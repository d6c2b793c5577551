"""What dead letters say of their end, in the words of each protocol.

All of them say the same, under names that begin with ``x-death-``: headers of the API, user
properties of MQTT, headers of AMQP. AMQP is told with RabbitMQ's words as well, ``x-death`` and
``x-first-death-…``, whichever protocol a message came over.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from braidmq.engine.envelope import (
    DEATH,
    Death,
    Deaths,
    decode_path,
    facts_of,
)
from braidmq.model.errors import BraidError
from braidmq.record.batch import Record
from braidmq.wire.amqp.properties import decode_properties
from braidmq.wire.amqp.tables import Long, encode_table
from braidmq.wire.deaths import AmqpDeath, DeathWriter
from braidmq.wire.envelopes import (
    AMQP,
    NATIVE,
    BadHeaders,
    amqp_envelope,
    encode_headers,
    native_headers,
    readable_properties,
    split_amqp,
)

X_DEATH = "x-death"
FIRST = "x-first-death-"
TABLE_SIZE_BYTES = 4
REASONS = {"max-attempts": "delivery_limit", "max-age": "delivery_limit"}
"""RabbitMQ's words for ours."""
OURS = {"delivery_limit": "max-attempts"}
"""Of letters that earlier versions wrote, which have RabbitMQ's words only."""

NUMBERS = ("partition", "offset", "attempts", "time")
FACTS = ("topic", "reason", "subscription", "error", *NUMBERS)


# --- written into AMQP's headers ---


def annotate_amqp(record: Record, death: Death) -> tuple[int, bytes, Deaths]:
    """``x-death``: the newest first, one entry for each queue and reason, with a count.

    Properties that can't be read or written back are a client's doing and no reason to lose the
    message: it goes on as it came.
    """
    reason = REASONS.get(death.reason, death.reason)
    try:
        return _annotated(record, death, reason)
    except (BraidError, ValueError):
        return AMQP, record.envelope, [(death.topic, reason)]


def _annotated(record: Record, death: Death, reason: str) -> tuple[int, bytes, Deaths]:
    exchange, key, raw = split_amqp(record.envelope)
    properties = decode_properties(raw)
    headers: dict[str, Any] = dict(properties.headers or {})
    entries = _deaths_in(headers.get(X_DEATH))
    same = [e for e in entries if (e["queue"], e["reason"]) == (death.topic, reason)]
    rest = [e for e in entries if e not in same]
    copies = headers.get("CC")
    entry: dict[str, Any] = {
        "reason": reason,
        "queue": death.topic,
        "time": datetime.fromtimestamp(death.at_ms // 1000, UTC),
        "exchange": exchange.decode(),
        "routing-keys": [key.decode(), *(copies if isinstance(copies, list) else [])],
    }
    if same:
        entry = dict(same[0])
    entry["count"] = Long(sum(e["count"] for e in same) + 1)
    if properties.expiration is not None:
        # It would expire again at once: the property goes, and is kept here.
        entry["original-expiration"] = properties.expiration
    headers[X_DEATH] = [entry, *rest]
    if not entries:
        headers |= _first(exchange.decode(), death.topic, reason)
    headers |= _amqp_facts(facts_of(death, record.offset))
    if death.new_key:
        headers.pop("CC", None)  # they were for the old key
    if death.to_exchange is not None:
        exchange, key = death.to_exchange.encode(), death.to_key
    properties = msgspec.structs.replace(properties, headers=headers, expiration=None)
    deaths = [(e["queue"], e["reason"]) for e in headers[X_DEATH]]
    return AMQP, amqp_envelope(exchange, key, properties), deaths


def _first(exchange: str, queue: str, reason: str) -> dict[str, Any]:
    return {f"{FIRST}exchange": exchange, f"{FIRST}queue": queue, f"{FIRST}reason": reason}


def _amqp_facts(facts: Mapping[str, str]) -> dict[str, Any]:
    return {
        DEATH + name: Long(int(value)) if name in NUMBERS else value
        for name, value in facts.items()
    }


def _without_ours(headers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in headers.items() if not name.startswith(DEATH)}


def amqp_writer(death: Death) -> DeathWriter:
    """What ``annotate_amqp`` writes into a message that never died before."""
    reason = REASONS.get(death.reason, death.reason)
    said = {"reason": reason, "queue": death.topic}
    first = {f"{FIRST}queue": death.topic, f"{FIRST}reason": reason}
    ours = _amqp_facts(facts_of(death, 0))
    for name in ("offset", "time"):
        del ours[DEATH + name]  # each message has its own, and each slice
    through = None if death.to_exchange is None else death.to_exchange.encode()
    return AmqpDeath(
        encode_table(said)[TABLE_SIZE_BYTES:],
        encode_table(first | ours)[TABLE_SIZE_BYTES:],
        through,
        death.to_key if death.new_key else None,
    )


def _deaths_in(header: object) -> list[dict[str, Any]]:
    """The entries of an ``x-death`` header that are what RabbitMQ or we would write."""
    found = []
    for each in header if isinstance(header, list) else []:
        if isinstance(each, Mapping) and {"queue", "reason"} <= each.keys():
            count = each.get("count")
            times = count if isinstance(count, int) and 0 < count < 1 << 62 else 1
            found.append({**each, "count": Long(times)})
    return found


# --- told to AMQP of letters that have native headers ---


def with_x_death(headers: dict[str, Any], path: bytes) -> dict[str, Any]:
    """Headers as AMQP tells them: numbers as numbers, and what RabbitMQ would say of the death;
    those of a message that never died stay as they are."""
    if f"{DEATH}topic" not in headers:
        return headers
    said = {
        name.removeprefix(DEATH): value
        for name, value in headers.items()
        if name.startswith(DEATH) and isinstance(value, str)
    }
    death = _dead(said)
    if death is None:
        return headers
    told = _without_ours(headers)
    told[X_DEATH] = _entries(death, path)
    reason = said.get("first-reason", death.reason)
    told |= _first("", said.get("first-topic", death.topic), REASONS.get(reason, reason))
    facts = {
        name: said[name]
        for name in FACTS
        if name in said and (name not in NUMBERS or _int(said[name]) is not None)
    }
    return told | _amqp_facts(facts)


def _entries(death: "Dead", path: bytes) -> list[dict[str, Any]]:
    """The newest first, one for each queue and reason, with a count and the time of the first."""
    try:
        steps = decode_path(path)
    except BadHeaders:
        steps = []  # a publisher's
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for topic, reason, at_ms in steps or [(death.topic, death.reason, None)]:
        told = REASONS.get(reason, reason)
        entry = found.setdefault(
            (topic, told),
            {
                "reason": told,
                "queue": topic,
                "exchange": "",
                "routing-keys": [topic],
                "count": Long(0),
            },
        )
        entry["count"] = Long(entry["count"] + 1)
        time = death.at_ms if at_ms is None else at_ms
        if time is not None and 0 <= time < TIME_MS_MAX:
            entry["time"] = datetime.fromtimestamp(time // 1000, UTC)
    return list(found.values())


TIME_MS_MAX = 1 << 47
"""Some time after the year 6000: what a ``datetime`` can hold."""


# --- read ---


class Dead(NamedTuple):
    """What a dead letter says of its end. Letters of earlier versions may not say everything, and
    what the topic never took stood in no partition."""

    topic: str
    reason: str
    at_ms: int | None = None
    partition: int | None = None
    offset: int | None = None
    attempts: int | None = None
    subscription: str | None = None
    error: str | None = None


def death_of(record: Record) -> Dead | None:
    """The latest death of a record; None for one that never died."""
    if record.envelope_format == AMQP:
        headers = amqp_headers(record)
        said = {
            name.removeprefix(DEATH): str(value)
            for name, value in headers.items()
            if name.startswith(DEATH) and isinstance(value, str | int)
        }
        return _dead(said) or _by_rabbitmq(headers)
    try:
        found = native_headers(record.envelope_format, record.envelope)
    except BadHeaders:
        return None
    return _dead(
        {
            name.removeprefix(DEATH): value.decode("utf-8", "replace")
            for name, value in found
            if name.startswith(DEATH)
        }
    )


def _by_rabbitmq(headers: Mapping[str, Any]) -> Dead | None:
    """What earlier versions wrote."""
    entries = _deaths_in(headers.get(X_DEATH))
    if not entries:
        return None
    newest = entries[0]
    time, reason = newest.get("time"), str(newest["reason"])
    at_ms = int(time.timestamp() * 1000) if isinstance(time, datetime) else None
    return Dead(str(newest["queue"]), OURS.get(reason, reason), at_ms)


def _dead(said: Mapping[str, str]) -> Dead | None:
    """Publishers can write such headers too: what is no number is not told."""
    if not said.get("topic") or not said.get("reason"):
        return None
    partition, offset, attempts, at_ms = [_int(said.get(name, "")) for name in NUMBERS]
    if partition is None or partition < 0:
        partition = offset = None
    return Dead(
        said["topic"],
        said["reason"],
        at_ms,
        partition,
        offset,
        attempts,
        said.get("subscription"),
        said.get("error"),
    )


def _int(text: str) -> int | None:
    digits = text.removeprefix("-")
    ok = digits.isascii() and digits.isdecimal() and len(digits) < 19
    return int(text) if ok else None


def without_deaths(record: Record) -> tuple[int, bytes]:
    """The envelope of a dead record as it was before it died: format and bytes."""
    if record.envelope_format != AMQP:
        found = native_headers(record.envelope_format, record.envelope)
        return NATIVE, encode_headers([each for each in found if not each[0].startswith(DEATH)])
    exchange, key, raw = split_amqp(record.envelope)
    properties = readable_properties(raw)
    headers = dict(properties.headers or {})
    entries = _deaths_in(headers.pop(X_DEATH, None))
    kept = {n: v for n, v in _without_ours(headers).items() if not n.startswith(FIRST)}
    if entries:
        exchange, key, kept = _as_published(entries[0], exchange, key, kept)
    properties = msgspec.structs.replace(properties, headers=kept or None)
    return AMQP, amqp_envelope(exchange, key, properties)


def _as_published(
    entry: Mapping[str, Any], exchange: bytes, key: bytes, headers: dict[str, Any]
) -> tuple[bytes, bytes, dict[str, Any]]:
    """Exchange, key and copies, which a dead-letter exchange had put its own in place of."""
    keys = entry.get("routing-keys")
    texts = [each for each in keys if isinstance(each, str)] if isinstance(keys, list) else []
    via = entry.get("exchange")
    if not texts or not isinstance(via, str):
        return exchange, key, headers
    if len(via.encode()) > 255 or len(texts[0].encode()) > 255:
        return exchange, key, headers
    if len(texts) > 1 and "CC" not in headers:
        headers = {**headers, "CC": texts[1:]}
    return via.encode(), texts[0].encode(), headers


def amqp_headers(record: Record) -> dict[str, Any]:
    return dict(readable_properties(split_amqp(record.envelope)[2]).headers or {})
