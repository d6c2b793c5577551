from braidmq.record.buffer import Buffer
from braidmq.record.offset_set import OffsetBits

Column = tuple[bytes | None, ...]

EVERY_COLUMN: int

def decode_columns(
    data: Buffer,
    offset_min: int,
    offset_max: int,
    time_min: int,
    time_max: int,
    rows_max: int,
    keys: frozenset[bytes] | None = None,
    hidden: OffsetBits | None = None,
    wanted: int = ...,
    share: int = 0,
    shares: int = 1,
) -> tuple[int, int, tuple[Column | None, ...]]: ...
