from braidmq.record.batch import RecordBatch

GRAVE_SIZE: int

def alike(batch: RecordBatch, first: int, stop: int) -> int: ...
def copy_as(
    source: RecordBatch,
    first: int,
    stop: int,
    target: RecordBatch,
    envelope_format: int,
    envelope: bytes,
    now_ms: int,
    offset_at: int = -1,
) -> int: ...

class DeathWriter:
    placed: bool
    @property
    def envelope_format(self) -> int: ...
    def key_of(self, batch: RecordBatch, index: int) -> bytes | None: ...
    def copy(
        self,
        source: RecordBatch,
        first: int,
        stop: int,
        target: RecordBatch,
        now_ms: int,
        at_ms: int,
        one_key: bool,
    ) -> int: ...
    def written(self, envelope: bytes, offset: int, at_ms: int) -> bytes | None: ...

class AmqpDeath(DeathWriter):
    def __init__(
        self, said: bytes, first_said: bytes, exchange: bytes | None, key: bytes | None
    ) -> None: ...

class NativeDeath(DeathWriter):
    def __init__(self, before: bytes, between: bytes, after: bytes, added: int) -> None: ...
