"""What the store's entries in the journal say, as bytes: their metas. Payloads are records."""

import struct
from collections.abc import Sequence

from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.storage.partition_log import PartitionLog

RECORDS_HEAD = struct.Struct("<II")
TARGET = struct.Struct("<Qq")
ONE_TARGET = struct.Struct("<IIQq")
"""RECORDS_HEAD and TARGET: nearly every batch goes to one partition and settles nothing."""

SETTLED = struct.Struct("<QQqq")
RANGE = struct.Struct("<qq")
ACKNOWLEDGED_HEAD = struct.Struct("<QQ")
ACKNOWLEDGED_ONE = struct.Struct("<QQqq")
"""ACKNOWLEDGED_HEAD and RANGE."""

LOG_START = struct.Struct("<Qq")
RESET = struct.Struct("<QQq")

TERM = struct.Struct("<Q16sq")
"""The term, the id of its leader's directory, and what time it was there."""

CHECKPOINT_HEAD = struct.Struct("<I8s")
LOG_ENDS = struct.Struct("<Qqq")

Ranges = Sequence[tuple[int, int]]
Settled = tuple[SubscriptionId, PartitionId, int, int]
"""A subscription has settled a partition's offsets from the first number up to the second."""


def encode_records_meta(
    logs: Sequence[PartitionLog], settled: Sequence[Settled], stamp: bytes = b""
) -> bytes:
    if len(logs) == 1 and not settled:
        return ONE_TARGET.pack(1, 0, logs[0].id, logs[0].next_offset) + stamp
    targets = [TARGET.pack(log.id, log.next_offset) for log in logs]
    moved = [SETTLED.pack(*each) for each in settled]
    return b"".join((RECORDS_HEAD.pack(len(targets), len(moved)), *targets, *moved, stamp))


def decode_records_meta(
    meta: bytes,
) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]], bytes]:
    targets, moved = RECORDS_HEAD.unpack_from(meta)
    middle = RECORDS_HEAD.size + targets * TARGET.size
    end = middle + moved * SETTLED.size
    return (
        list(TARGET.iter_unpack(meta[RECORDS_HEAD.size : middle])),
        list(SETTLED.iter_unpack(meta[middle:end])),
        meta[end:],
    )


def encode_acknowledged(
    subscription: SubscriptionId, partition: PartitionId, ranges: Ranges
) -> bytes:
    if len(ranges) == 1:
        start, stop = ranges[0]
        return ACKNOWLEDGED_ONE.pack(subscription, partition, start, stop)
    head = ACKNOWLEDGED_HEAD.pack(subscription, partition)
    return head + b"".join([RANGE.pack(start, stop) for start, stop in ranges])


def decode_acknowledged(
    meta: bytes,
) -> tuple[SubscriptionId, PartitionId, list[tuple[int, int]]]:
    subscription, partition = ACKNOWLEDGED_HEAD.unpack_from(meta)
    ranges = list(RANGE.iter_unpack(meta[ACKNOWLEDGED_HEAD.size :]))
    return SubscriptionId(subscription), PartitionId(partition), ranges


LogEnds = tuple[int, int, int]
"""A partition, its start and its next offset."""


def encode_checkpoint(ends: Sequence[LogEnds], digest: bytes = b"") -> bytes:
    """``digest``: of the state with these ends; none where nobody follows."""
    if not ends and not digest:
        return b""
    head = CHECKPOINT_HEAD.pack(len(ends), digest)
    return head + b"".join([LOG_ENDS.pack(*each) for each in ends])


def decode_checkpoint(meta: bytes) -> tuple[list[LogEnds], bytes]:
    """Zeros, which a mended journal has in the place of what is lost, say nothing."""
    if len(meta) < CHECKPOINT_HEAD.size:
        return [], b""
    count, digest = CHECKPOINT_HEAD.unpack_from(meta)
    end = CHECKPOINT_HEAD.size + count * LOG_ENDS.size
    ends = [
        (partition, start, following)
        for partition, start, following in LOG_ENDS.iter_unpack(meta[CHECKPOINT_HEAD.size : end])
    ]
    return ends, digest if digest.strip(b"\0") else b""
