from array import array

from braidmq.record.batch import RecordBatch
from braidmq.record.buffer import Buffer

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
    def payload_bytes(self) -> int: ...
    @property
    def packet_ids(self) -> array[int] | None: ...
    def batch(self, data: Buffer, now_ms: int, transient: bool = False) -> RecordBatch: ...
