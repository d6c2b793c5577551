from braidmq.storage.offset_set import OffsetBits
from braidmq.storage.record import RecordBatch

def note_latest(batch: RecordBatch, first: int, stop: int, latest: dict[bytes, int]) -> None: ...
def mark_superseded(
    batch: RecordBatch,
    first: int,
    stop: int,
    latest: dict[bytes, int],
    stamped_until_ms: int,
    marked: OffsetBits,
) -> None: ...
