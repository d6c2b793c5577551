"""Times that records carry: when they become due, when they expire."""

from libc.stdint cimport int64_t

from braidmq.storage.record cimport (
    HEADER_BYTES, TIMED, RecordBatch, RecordHeader, RecordTiming,
)


def timed_records(RecordBatch batch):
    """``(offset, due, expires)`` of the records that have either; both in ms, 0 for none."""
    cdef list found = []
    cdef Py_ssize_t i
    cdef const RecordHeader *header
    cdef const RecordTiming *timing
    for i in range(batch.count):
        header = batch.header_at(i)
        if header.flags & TIMED:
            timing = <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)
            found.append((batch.offset_of(i), timing.due_at_ms, timing.expires_at_ms))
    return found


def live_prefix(RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t now_ms,
                int64_t ttl_ms):
    """How many records from ``first`` on are alive, or as a negative number how many are expired.

    ``ttl_ms`` is the topic's, 0 for none; a record's own expiry counts too. Never 0 for a
    non-empty range.
    """
    cdef Py_ssize_t i
    cdef bint dead, dead_first = False
    for i in range(first, stop):
        dead = is_expired(batch.header_at(i), now_ms, ttl_ms)
        if i == first:
            dead_first = dead
        elif dead != dead_first:
            return (first - i) if dead_first else (i - first)
    return (first - stop) if dead_first else (stop - first)


cdef bint is_expired(const RecordHeader *header, int64_t now_ms, int64_t ttl_ms) noexcept:
    cdef const RecordTiming *timing
    if ttl_ms and header.timestamp_ms + ttl_ms <= now_ms:
        return True
    if header.flags & TIMED:
        timing = <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)
        return 0 < timing.expires_at_ms <= now_ms
    return False
