from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetBits

def note_latest(
    batch: RecordBatch, first: int, stop: int, name: bytes, latest: dict[bytes, int]
) -> None: ...
def mark_superseded(
    batch: RecordBatch,
    first: int,
    stop: int,
    name: bytes,
    latest: dict[bytes, int],
    stamped_until_ms: int,
    held: OffsetBits,
    kept: set[bytes],
    marked: OffsetBits,
) -> None: ...
