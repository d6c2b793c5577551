from array import array

from braidmq.record.batch import RecordBatch

PARTITIONS_MAX: int
SLOTS_MAX: int
NO_SLOT: int

def split(
    batch: RecordBatch,
    partitions: int,
    round_robin: int,
    by_place: bool = False,
    by_key: bool = True,
) -> tuple[list[RecordBatch | None], int]: ...
def places(
    batch: RecordBatch,
    partitions: int,
    round_robin: int,
    by_key: bool = True,
    by_place: bool = True,
) -> array[int]: ...
def key_slots(batch: RecordBatch, first: int, stop: int, slots: int) -> array[int]: ...
