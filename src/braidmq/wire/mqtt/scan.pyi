from array import array
from typing import Any

from braidmq.storage.disk import Buffer
from braidmq.storage.record import RecordBatch

SERVER: int
CLIENT: int
EVENT_PACKET: int
EVENT_PUBLISH: int
EVENT_ACKS: int
EVENT_ERROR: int
FLAG_QOS: int
FLAG_RETAIN: int
FLAG_DUP: int
FLAG_PROPERTIES: int
FLAG_USER_PROPERTIES: int
FLAG_EXPIRY: int
FLAG_ALIAS: int
ENVELOPE_MQTT: int

class PublishRun:
    @property
    def flags(self) -> int: ...
    @property
    def qos(self) -> int: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def count(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def packet_ids(self) -> array[int] | None: ...
    def batch(self, data: Buffer, now_ms: int, transient: bool = False) -> RecordBatch: ...

class Scanner:
    version: int
    packet_bytes_max: int
    topic_alias_max: int
    @property
    def role(self) -> int: ...
    @property
    def wanted_bytes(self) -> int: ...
    def __init__(
        self,
        role: int,
        version: int = 0,
        packet_bytes_max: int = 0x7FFFFFFF,
        topic_alias_max: int = 0,
    ) -> None: ...
    def scan(
        self, data: Buffer, size: int, quota: int = 0x7FFFFFFF
    ) -> tuple[list[tuple[Any, ...]], int]: ...
