"""What an operator may set about storage."""

import msgspec

from braidmq.model.errors import BadSetting
from braidmq.model.limits import (
    INDEX_INTERVAL_BYTES,
    JOURNAL_FILE_BYTES,
    SEGMENT_BYTES_MAX,
    TAIL_BYTES_MAX,
)


class StorageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of files and of memory."""

    segment_bytes_max: int = SEGMENT_BYTES_MAX
    """A segment is sealed once it holds this many bytes."""
    index_interval_bytes: int = INDEX_INTERVAL_BYTES
    """One entry of a segment's index for each of these."""
    journal_file_bytes: int = JOURNAL_FILE_BYTES
    """Journal files are made this size, and a checkpoint is taken each time one is full."""
    tail_bytes_max: int = TAIL_BYTES_MAX
    """Memory for recent records of all partitions together, beyond what is not yet flushed."""

    def __post_init__(self) -> None:
        for name, least in (
            ("segment_bytes_max", 4096),
            ("index_interval_bytes", 64),
            ("journal_file_bytes", 8192),
            ("tail_bytes_max", 0),
        ):
            if getattr(self, name) < least:
                raise BadSetting(f"storage.{name} is {getattr(self, name)}, the least is {least}")
