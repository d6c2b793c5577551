from array import array

from braidmq.record.batch import RecordBatch

def delivery_runs(
    batch: RecordBatch, first: int, stop: int
) -> list[tuple[int, int, int, bytes]]: ...
def render_publishes(
    batch: RecordBatch,
    first: int,
    stop: int,
    *,
    version: int,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_ids: array[int] | None = None,
    properties: bytes = b"",
    topic_alias: int = 0,
    alias_is_set: bool = False,
    now_ms: int = 0,
    packet_bytes_max: int = ...,
    partition: int = -1,
    attempts: int = 1,
) -> tuple[bytes, int]: ...
def render_acks(kind: int, packet_ids: array[int], version: int, reason: int = 0) -> bytes: ...
def id_runs(packet_ids: array[int]) -> list[tuple[int, int]]: ...
def sequential_ids(first: int, count: int, last: int = ...) -> array[int]: ...
