from typing import Any

from braidmq.record.buffer import Buffer
from braidmq.wire.mqtt.constants import Reason

SERVER: int
CLIENT: int
EVENT_PACKET: int
EVENT_PUBLISH: int
EVENT_ACKS: int
EVENT_ERROR: int
FAULTS: dict[int, tuple[Reason, str]]

class Scanner:
    version: int
    packet_bytes_max: int
    topic_alias_max: int
    @property
    def role(self) -> int: ...
    @property
    def wanted_bytes(self) -> int: ...
    @property
    def alias_bytes(self) -> int:
        """Of topics that the peer has set aliases for."""

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
