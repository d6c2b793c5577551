from typing import Any

from braidmq.record.buffer import Buffer

EVENT_FRAME: int
EVENT_PUBLISH: int
EVENT_ACK: int
EVENT_ERROR: int
FLAG_MANDATORY: int
FLAG_IMMEDIATE: int
FLAG_TRANSIENT: int
FLAG_HEADERS: int
FLAG_COPIES: int
FLAG_USER_ID: int
FLAG_REPLY_TO: int
FLAG_BAD_EXPIRATION: int
FLAG_BAD_PROPERTIES: int
FLAG_BAD_MODE: int
FLAG_BAD_PLACE: int
FLAG_PARTITION: int
FLAG_BAD_TIME: int
ENVELOPE_AMQP: int

def partition_in(flags: int) -> int | None: ...
def describe_octets(data: bytes) -> str: ...
def scan(
    data: Buffer,
    size: int,
    frame_max: int,
    now_ms: int,
    fast: bool = True,
    destinations: dict[bytes, Any] | None = None,
) -> tuple[list[tuple[Any, ...]], int]: ...
