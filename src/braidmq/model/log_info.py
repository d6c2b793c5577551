"""What a node tells of a topic's log, and readers in bulk go by."""

from typing import Annotated

import msgspec
from msgspec import Meta


class SegmentInfo(msgspec.Struct, frozen=True):
    name: str
    base_offset: int
    end_offset: Annotated[int, Meta(description="The offset after its last record")]
    size: Annotated[int, Meta(description="Bytes: how much of the file counts")]
    header_bytes: Annotated[int, Meta(description="Where its first record begins")]
    records: int
    max_timestamp_ms: int
    first_timestamp_ms: int
    time_ordered: Annotated[bool, Meta(description="Whether its times never fall")]
    sealed: bool
    generation: int
    first_record: Annotated[
        bytes, Meta(description="Header of its first record: a file with another is another file")
    ]
    shared_bytes: Annotated[
        int,
        Meta(
            description="Bytes of bodies that are not in it but shared with other segments. One"
            " that has some is read in the node's directory, or as records"
        ),
    ] = 0  # older nodes do not say it


class PartitionLogInfo(msgspec.Struct, frozen=True):
    partition: int
    id: Annotated[int, Meta(description="Number of the partition among all of the node")]
    start_offset: int
    end_offset: Annotated[int, Meta(description="The offset after the last record on disk")]
    stable_offset: Annotated[
        int, Meta(description="Below it every transaction has ended; the end where there are none")
    ]
    flushed_offset: Annotated[int, Meta(description="What lies below is in segments")]
    size: Annotated[int, Meta(description="Bytes: about what it takes, segments and memory")]
    hidden: Annotated[
        list[tuple[int, int]],
        Meta(description="Ranges of offsets that nobody gets: cancelled before their time"),
    ]
    segments: list[SegmentInfo]


class ClosedPartition(msgspec.Struct, frozen=True):
    partition: int
    end_offset: int


class LogInfo(msgspec.Struct, frozen=True):
    namespace: str
    topic: str
    directory: Annotated[str, Meta(description="Where the node has its segments")]
    partitions: list[PartitionLogInfo]
    closed: Annotated[
        list[ClosedPartition], Meta(description="Partitions that were taken away and closed")
    ] = []  # older nodes do not say it
    id: Annotated[
        str,
        Meta(description="Of this log: a topic that is deleted and created again has another"),
    ] = ""  # older nodes do not say it


class FoundLogs(msgspec.Struct, frozen=True):
    logs: list[LogInfo]
    missing: Annotated[list[str], Meta(description="Topics that are not there")]


class PartitionTime(msgspec.Struct, frozen=True):
    partition: int
    offset: Annotated[int, Meta(description="Of the first record stamped then or later")]
    end: Annotated[int, Meta(description="From here on all records are stamped then or later")]
