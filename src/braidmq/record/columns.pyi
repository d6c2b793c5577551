from braidmq.record.buffer import Buffer
from braidmq.record.offset_set import OffsetBits

Column = tuple[bytes | None, ...]

def decode_columns(
    data: Buffer,
    offset_min: int,
    offset_max: int,
    time_min: int,
    time_max: int,
    rows_max: int,
    keys: frozenset[bytes] | None = None,
    hidden: OffsetBits | None = None,
) -> tuple[int, int, tuple[Column, ...]]: ...
