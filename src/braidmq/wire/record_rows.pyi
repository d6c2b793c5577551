from braidmq.record.batch import RecordBatch
from braidmq.record.buffer import Buffer

Column = tuple[tuple[Buffer | None, ...], int]

def encode_rows(
    first: int,
    stop: int,
    value: Column,
    timestamp_ms: Column,
    key: Column | None = None,
    headers: Column | None = None,
    names: Column | None = None,
    header_values: Column | None = None,
    priority: Column | None = None,
    due_at_ms: Column | None = None,
    expires_at_ms: Column | None = None,
    envelope: Column | None = None,
) -> RecordBatch: ...
def check_rows(batch: RecordBatch) -> tuple[set[bytes], set[bytes], set[bytes]]: ...
