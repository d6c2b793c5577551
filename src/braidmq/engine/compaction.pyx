"""Keeping the latest record of each key: which records a compaction may take out.

The key is the record's own, or the value of a header, whichever protocol wrote it. A record
without a value, or with an empty one, removes its key: AMQP and MQTT know no other.
"""

from libc.stdint cimport int64_t

from braidmq.record.offset_set cimport OffsetBits
from braidmq.record.batch cimport (
    CONTROL, KEYED, RecordBatch, RecordHeader, header_bytes,
)
from braidmq.wire.header_lookup cimport header_value


cdef bytes key_of(const RecordHeader *header, bytes name):
    """None: it has no key, and stays."""
    cdef const unsigned char *body = <const unsigned char *>header + header_bytes(header)
    if header.flags & CONTROL:
        return None
    if name:
        return header_value(
            header.envelope_format, body + header.key_length, header.envelope_length, name)
    return body[:header.key_length] if header.flags & KEYED else None


def note_latest(
    RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, bytes name not None, dict latest,
):
    """Enter each key's newest offset into ``latest``; batches come in order of offset. ``name`` is
    the header that has the key; empty: it is the record's."""
    cdef Py_ssize_t i
    cdef bytes key
    for i in range(first, stop):
        key = key_of(batch.header_at(i), name)
        if key is not None:
            latest[key] = batch.offset_of(i)


def mark_superseded(
    RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, bytes name not None, dict latest,
    int64_t stamped_until_ms, OffsetBits held, set kept, OffsetBits marked,
):
    """Mark records that a later one of the same key replaces, and tombstones that are the latest.

    Only those stamped at or before a time: readers get that long to see each change. None that
    somebody ``held``. Records without a key stay, and so does a tombstone while anything before it
    of its key does, or that would be the latest again: ``kept`` gathers those keys.
    """
    cdef Py_ssize_t i
    cdef int64_t offset
    cdef const RecordHeader *header
    cdef bytes key
    cdef bint is_latest
    for i in range(first, stop):
        header = batch.header_at(i)
        key = key_of(header, name)
        if key is None:
            continue
        offset = batch.offset_of(i)
        is_latest = <int64_t>latest.get(key, offset) <= offset
        if is_latest and header.value_length:
            continue
        if (
            header.timestamp_ms > stamped_until_ms or held.has(offset)
            or (is_latest and key in kept)
        ):
            kept.add(key)
        else:
            marked.change(offset, offset + 1, True)
