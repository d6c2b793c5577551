"""Messages as JSON: how a request's become records, and how records are shown."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.endpoints import Body
from braidmq.engine.envelope import AMQP, encode_headers
from braidmq.engine.policy import PRIORITY_OF_LANE, Milliseconds
from braidmq.gateways.translation import native_headers
from braidmq.model.errors import BadRequest
from braidmq.model.limits import KEY_BYTES_MAX
from braidmq.record.batch import DATED_DUE, DATED_EXPIRY, Record, RecordBatch
from braidmq.wire.envelopes import NAMED, split_amqp

JSON_CONTENT = "application/json"
BATCH_MESSAGES_MAX = 10_000
"""Decoding and encoding these takes some tens of milliseconds of the node's loop."""

Lane = Literal["critical", "high", "normal", "low", "background"]
Level = Annotated[int, Meta(ge=0, le=255)]
Partition = Annotated[int, Meta(ge=0, le=10_000, description="Number of a partition")]
Text = str | UnsetType

DASHED = {name: name.replace("_", "-") for name in NAMED}


class NewMessage(Body, frozen=True):
    """A message to publish. Its value is `value`, `value_base64` or `json`."""

    value: (
        Annotated[str, Meta(description="The value as text; null marks the key as deleted")]
        | UnsetType
        | None
    ) = UNSET
    value_base64: Annotated[bytes, Meta(description="The value in base64")] | UnsetType = UNSET
    json: Annotated[msgspec.Raw, Meta(description="The value is this JSON")] | UnsetType = UNSET
    key: Annotated[str, Meta(description="Messages of one key keep their order")] | UnsetType = (
        UNSET
    )
    key_base64: bytes | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_base64: (
        Annotated[dict[str, bytes], Meta(description="Headers that are not text")] | UnsetType
    ) = UNSET
    partition: Partition | UnsetType = UNSET
    priority: (
        Annotated[Level | Lane, Meta(description="Higher goes first; or one of the five lanes")]
        | UnsetType
    ) = UNSET
    delay_ms: Annotated[Milliseconds, Meta(description="Visible only after this")] | UnsetType = (
        UNSET
    )
    deliver_at: (
        Annotated[
            Milliseconds | Annotated[datetime, Meta(tz=True)],
            Meta(description="Visible only from then on: milliseconds since 1970, or RFC 3339"),
        ]
        | UnsetType
    ) = UNSET
    ttl_ms: (
        Annotated[Milliseconds, Meta(description="How long it lives once it is visible")]
        | UnsetType
    ) = UNSET
    content_type: Text = UNSET
    content_encoding: Text = UNSET
    correlation_id: Text = UNSET
    reply_to: Text = UNSET
    message_id: Text = UNSET
    type: Text = UNSET
    user_id: Annotated[str, Meta(description="Must be who publishes")] | UnsetType = UNSET
    app_id: Text = UNSET


class NewMessages(Body, frozen=True):
    """Messages to publish, in this order."""

    messages: Annotated[list[NewMessage], Meta(min_length=1, max_length=BATCH_MESSAGES_MAX)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it is read. A value, key or header that is not text is in base64."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: Annotated[int, Meta(description="When the broker first saw it")]
    value: str | UnsetType | None = UNSET
    value_base64: bytes | UnsetType = UNSET
    key: Text = UNSET
    key_base64: bytes | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_base64: dict[str, bytes] | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET
    expires_at_ms: int | UnsetType = UNSET
    content_type: Text = UNSET
    content_encoding: Text = UNSET
    correlation_id: Text = UNSET
    reply_to: Text = UNSET
    message_id: Text = UNSET
    type: Text = UNSET
    user_id: Text = UNSET
    app_id: Text = UNSET
    exchange: Annotated[str, Meta(description="The exchange it came through")] | UnsetType = UNSET
    routing_key: Text = UNSET
    receipt: Annotated[str, Meta(description="Answer for this delivery with it")] | UnsetType = (
        UNSET
    )
    delivery_count: (
        Annotated[int, Meta(description="Deliveries so far, this one included")] | UnsetType
    ) = UNSET
    redelivered: bool | UnsetType = UNSET


# --- in ---


def encode(messages: Iterable[NewMessage], now_ms: int, user: str) -> RecordBatch:
    """One batch of records; runs of messages with nothing but key and value in one piece."""
    batch = RecordBatch()
    values: list[bytes] = []
    keys: list[bytes | None] = []
    for message in messages:
        if _is_plain(message):
            values.append(message.value.encode())  # type: ignore[union-attr]
            keys.append(None if message.key is UNSET else _key(message))
            continue
        if values:
            batch.extend_values(values, now_ms, keys)
            values, keys = [], []
        _append(batch, message, now_ms, user)
    if values:
        batch.extend_values(values, now_ms, keys)
    return batch


def _is_plain(message: NewMessage) -> bool:
    return (
        isinstance(message.value, str)
        and message.value_base64 is UNSET
        and message.json is UNSET
        and message.key_base64 is UNSET
        and message.headers is UNSET
        and message.headers_base64 is UNSET
        and message.priority is UNSET
        and message.delay_ms is UNSET
        and message.deliver_at is UNSET
        and message.ttl_ms is UNSET
        and message.content_type is UNSET
        and message.content_encoding is UNSET
        and message.correlation_id is UNSET
        and message.reply_to is UNSET
        and message.message_id is UNSET
        and message.type is UNSET
        and message.user_id is UNSET
        and message.app_id is UNSET
    )


def _append(batch: RecordBatch, message: NewMessage, now_ms: int, user: str) -> None:
    due = _due(message, now_ms)
    ttl = message.ttl_ms
    # The wall clock decides a date, and what is counted from it; the rest are durations.
    is_date = message.deliver_at is not UNSET and due > 0
    batch.append(
        _value(message),
        key=_key(message),
        envelope=encode_headers(headers_of(message, user)),
        priority=_priority(message.priority),
        timestamp_ms=now_ms,
        due_at_ms=due,
        expires_at_ms=0 if ttl is UNSET else max(due, now_ms) + ttl,
        dated=DATED_DUE | DATED_EXPIRY if is_date else 0,
    )


def _value(message: NewMessage) -> bytes | None:
    given = [
        each for each in (message.value, message.value_base64, message.json) if each is not UNSET
    ]
    if len(given) != 1:
        raise BadRequest("a message needs exactly one of value, value_base64 and json")
    if message.json is not UNSET:
        return bytes(message.json)
    if isinstance(message.value_base64, bytes):
        return message.value_base64
    return None if message.value is None else message.value.encode()  # type: ignore[union-attr]


def _key(message: NewMessage) -> bytes | None:
    if message.key is not UNSET and message.key_base64 is not UNSET:
        raise BadRequest("a message can't have both key and key_base64")
    key = message.key_base64 if message.key is UNSET else message.key.encode()
    if key is UNSET:
        return None
    if len(key) > KEY_BYTES_MAX:
        raise BadRequest(f"a key can have at most {KEY_BYTES_MAX} bytes")
    return key


def _due(message: NewMessage, now_ms: int) -> int:
    """When it becomes visible; 0 for at once."""
    at, delay = message.deliver_at, message.delay_ms
    if at is not UNSET and delay is not UNSET:
        raise BadRequest("a message can't have both delay_ms and deliver_at")
    if delay is not UNSET:
        return now_ms + delay if delay else 0
    if at is UNSET:
        return 0
    due = int(at.timestamp() * 1000) if isinstance(at, datetime) else at
    return due if due > now_ms else 0


def _priority(given: int | str | UnsetType) -> int:
    if isinstance(given, str):
        return PRIORITY_OF_LANE[given]
    return 0 if given is UNSET else given


def headers_of(message: NewMessage, user: str) -> list[tuple[str, bytes]]:
    """All of a message's properties as native headers."""
    if message.user_id is not UNSET and message.user_id != user:
        raise BadRequest(f"user_id is {message.user_id!r}, but the publisher is {user!r}")
    found = [
        (dashed, value.encode())
        for name, dashed in DASHED.items()
        if (value := getattr(message, name)) is not UNSET
    ]
    if message.json is not UNSET and message.content_type is UNSET:
        found.append((DASHED["content_type"], JSON_CONTENT.encode()))
    if message.headers is not UNSET:
        found += [(name, value.encode()) for name, value in message.headers.items()]
    if message.headers_base64 is not UNSET:
        found += message.headers_base64.items()
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise BadRequest(
            "a header is given twice",
            remedy="Give it once: content_type is the header content-type, and so on",
        )
    return found


# --- out ---


def show(
    topic: str, partition: int, record: Record, receipt: str = "", attempts: int = 0
) -> Message:
    """A record; with a number of attempts, a delivery of it."""
    shown: dict[str, Any] = {}
    _show_bytes(shown, "value", record.value)
    if record.value is None:
        shown["value"] = None
    _show_bytes(shown, "key", record.key)
    _show_headers(shown, record)
    if record.priority:
        shown["priority"] = record.priority
    if record.due_at_ms:
        shown["deliver_at_ms"] = record.due_at_ms
    if record.expires_at_ms:
        shown["expires_at_ms"] = record.expires_at_ms
    if record.envelope_format == AMQP:
        exchange, key, _ = split_amqp(record.envelope)
        shown["exchange"] = exchange.decode("utf-8", "replace")
        shown["routing_key"] = key.decode("utf-8", "replace")
    if attempts:
        shown |= {"delivery_count": attempts, "redelivered": attempts > 1}
    if receipt:
        shown["receipt"] = receipt
    return Message(
        topic=topic,
        partition=partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        **shown,
    )


def _show_bytes(shown: dict[str, Any], name: str, data: bytes | None) -> None:
    if data is None:
        return
    text = _text(data)
    if text is None:
        shown[f"{name}_base64"] = data
    else:
        shown[name] = text


def _show_headers(shown: dict[str, Any], record: Record) -> None:
    texts: dict[str, str] = {}
    binary: dict[str, bytes] = {}
    for name, value in native_headers(record):
        field, text = name.replace("-", "_"), _text(value)
        if text is None:
            binary[name] = value
        elif field in DASHED and name == DASHED[field]:
            shown[field] = text
        else:
            texts[name] = text
    if texts:
        shown["headers"] = texts
    if binary:
        shown["headers_base64"] = binary


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def by_partition(
    messages: Sequence[NewMessage],
) -> dict[int | None, tuple[list[int], list[NewMessage]]]:
    """Messages with their places in the request, by the partition they name."""
    found: dict[int | None, tuple[list[int], list[NewMessage]]] = {}
    for index, message in enumerate(messages):
        number = None if message.partition is UNSET else message.partition
        places, grouped = found.setdefault(number, ([], []))
        places.append(index)
        grouped.append(message)
    return found
