"""What an operator may set about storage."""

from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.model.limits import (
    INDEX_INTERVAL_BYTES,
    JOURNAL_FILE_BYTES,
    SEGMENT_BYTES_MAX,
    TAIL_BYTES_MAX,
)


class StorageSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of files and of memory."""

    segment_bytes_max: Annotated[
        int, Meta(ge=4096, description="A segment is sealed once it holds this many bytes.")
    ] = SEGMENT_BYTES_MAX
    index_interval_bytes: Annotated[
        int, Meta(ge=64, description="One entry of a segment's index for each of these.")
    ] = INDEX_INTERVAL_BYTES
    journal_file_bytes: Annotated[
        int,
        Meta(
            ge=8192,
            description="Journal files are made this size, and a checkpoint is taken each time one"
            " is full.",
        ),
    ] = JOURNAL_FILE_BYTES
    tail_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory for recent records of all partitions together: half for what is not"
            " yet in segments, half for what is.",
        ),
    ] = TAIL_BYTES_MAX
