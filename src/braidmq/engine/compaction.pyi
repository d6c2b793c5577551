from braidmq.record.batch import RecordBatch
from braidmq.record.offset_set import OffsetBits

def note_latest(batch: RecordBatch, first: int, stop: int, latest: dict[bytes, int]) -> None: ...
def mark_superseded(
    batch: RecordBatch,
    first: int,
    stop: int,
    latest: dict[bytes, int],
    stamped_until_ms: int,
    marked: OffsetBits,
) -> None: ...
