"""Keeping the latest record of each key: which records a compaction may take out."""

from libc.stdint cimport int64_t

from braidmq.record.offset_set cimport OffsetBits
from braidmq.record.batch cimport (
    CONTROL, KEYED, TOMBSTONE, RecordBatch, RecordHeader, header_bytes,
)


cdef bytes key_of(const RecordHeader *header):
    cdef const unsigned char *body = <const unsigned char *>header + header_bytes(header)
    return body[:header.key_length]


def note_latest(RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, dict latest):
    """Enter each key's newest offset into ``latest``; batches come in order of offset."""
    cdef Py_ssize_t i
    cdef const RecordHeader *header
    for i in range(first, stop):
        header = batch.header_at(i)
        if header.flags & KEYED and not header.flags & CONTROL:
            latest[key_of(header)] = batch.offset_of(i)


def mark_superseded(RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, dict latest,
                    int64_t stamped_until_ms, OffsetBits marked):
    """Mark records that a later one of the same key replaces, and tombstones that are the latest.

    Only those stamped at or before a time: readers get that long to see each change. Records
    without a key stay.
    """
    cdef Py_ssize_t i
    cdef int64_t offset
    cdef const RecordHeader *header
    for i in range(first, stop):
        header = batch.header_at(i)
        if (
            not header.flags & KEYED or header.flags & CONTROL
            or header.timestamp_ms > stamped_until_ms
        ):
            continue
        offset = batch.offset_of(i)
        if latest[key_of(header)] > offset or header.flags & TOMBSTONE:
            marked.change(offset, offset + 1, True)
