"""A message's metadata: the client's names for it, and the AMQP properties and headers on the wire.

AMQP has no property for a key or a due time, so they are headers:

    x-key          text or bytes     which partition, and whose successor the message is
    x-partition    number            which partition, whatever the key
    x-delay        milliseconds      from when the broker takes it
    x-deliver-at   milliseconds      since the epoch
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypedDict

from braidmq.model.errors import BadRequest
from braidmq.wire.amqp.properties import Properties, encode_properties
from braidmq.wire.amqp.tables import FieldValue, Long

KEY: Final = "x-key"
PARTITION: Final = "x-partition"
DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"

PERSISTENT: Final = 2


class Metadata(TypedDict, total=False):
    """What may be said of a message besides its value. All of it is optional."""

    key: str | bytes | None
    partition: int | None
    """Where it goes, whatever its key; refused by topics that have none of that number."""
    headers: Mapping[str, FieldValue] | None
    priority: int | None
    delay_ms: int | None
    deliver_at: datetime | int | None
    """A time, or milliseconds since the epoch."""
    ttl_ms: int | None
    content_type: str | None
    content_encoding: str | None
    correlation_id: str | None
    reply_to: str | None
    message_id: str | None
    timestamp: datetime | int | None
    """When it was made, by the publisher's clock: a time, or seconds since the epoch."""
    type: str | None
    app_id: str | None
    user_id: str | None
    """Must be who publishes."""


class BadMetadata(BadRequest):
    """What was said of a message can't be said of one."""

    code = "bad-metadata"


NO_METADATA: Final = encode_properties(Properties(delivery_mode=PERSISTENT))


def encode_metadata(metadata: Metadata) -> bytes:
    """Raises BadMetadata for what no message can say."""
    if not metadata:
        return NO_METADATA
    named: dict[str, Any] = dict(metadata)
    headers: dict[str, FieldValue] = dict(named.pop("headers", None) or {})
    key, delay_ms = named.pop("key", None), named.pop("delay_ms", None)
    deliver_at, ttl_ms = named.pop("deliver_at", None), named.pop("ttl_ms", None)
    timestamp, partition = named.pop("timestamp", None), named.pop("partition", None)
    if partition is not None:
        headers[PARTITION] = Long(_partition(partition))
    if key is not None:
        headers[KEY] = _text_if_it_is(key)
    if delay_ms is not None and deliver_at is not None:
        raise BadMetadata(
            "delay_ms and deliver_at can't both be given", remedy="Give only one of them"
        )
    if delay_ms is not None:
        headers[DELAY] = _whole("delay_ms", delay_ms)
    if deliver_at is not None:
        headers[DELIVER_AT] = Long(milliseconds(deliver_at))
    if ttl_ms is not None:
        named["expiration"] = str(_whole("ttl_ms", ttl_ms))
    if timestamp is not None:
        named["timestamp"] = _seconds(timestamp)
    try:
        return encode_properties(
            Properties(delivery_mode=PERSISTENT, headers=headers or None, **named)
        )
    except (ValueError, TypeError, AttributeError) as error:
        raise BadMetadata(f"the message can't be encoded: {error}") from None


def _text_if_it_is(key: str | bytes) -> str | bytes:
    if isinstance(key, str):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def _partition(number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise BadMetadata(f"{number!r} is not the number of a partition")
    return number


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadMetadata(f"{name} is {value!r}, not a number of milliseconds")
    return value


def milliseconds(when: datetime | int) -> int:
    """Since the epoch; a time without a zone is UTC."""
    if isinstance(when, int):
        return _whole("a time", when)
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _seconds(when: datetime | int) -> int:
    return when if isinstance(when, int) else milliseconds(when) // 1000
