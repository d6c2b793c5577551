from braidmq.record.buffer import Buffer

Column = tuple[bytes | None, ...]

def header_columns(
    ends: Buffer,
    envelopes: Buffer,
    formats: Buffer,
    key_valid: Buffer,
    cache: dict[tuple[int, bool, bytes], bytes],
) -> tuple[int, Column, Column, Column, Column, Column, Column]: ...
