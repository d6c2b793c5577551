from braidmq.record.buffer import Buffer

Column = tuple[bytes | None, ...]

WANT_HEADERS: int
WANT_TRACE: int
WANT_ROUTING: int
WANT_ATTEMPTS: int

def header_columns(
    ends: Buffer,
    envelopes: Buffer,
    formats: Buffer | None,
    flags: Buffer,
    wanted: int,
) -> tuple[
    int,
    Column | None,
    Column | None,
    Column | None,
    Column | None,
    Column | None,
    Column | None,
]: ...
def tagged_envelopes(ends: Buffer, envelopes: Buffer, formats: Buffer) -> Column: ...
