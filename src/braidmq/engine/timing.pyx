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


def expiry_of(RecordBatch batch, Py_ssize_t index, int64_t ttl_ms):
    """When a record expires by itself or by its topic's TTL, in ms; 0 for never."""
    return expiry(batch.header_at(index), ttl_ms)


cdef bint is_expired(const RecordHeader *header, int64_t now_ms, int64_t ttl_ms) noexcept:
    cdef int64_t expires = expiry(header, ttl_ms)
    return expires and expires <= now_ms


cdef int64_t expiry(const RecordHeader *header, int64_t ttl_ms) noexcept:
    """A topic's TTL begins when the record can be had: a delay comes before it."""
    cdef int64_t expires = appeared(header) + ttl_ms if ttl_ms else 0
    cdef const RecordTiming *timing
    if header.flags & TIMED:
        timing = <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)
        if timing.expires_at_ms > 0 and (not expires or timing.expires_at_ms < expires):
            expires = timing.expires_at_ms
    return expires


cdef enum:
    BOUNDS = 17

cdef int64_t *AGE_BOUNDS = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000,
    3_600_000,
]
AGE_BOUNDS_MS = tuple(AGE_BOUNDS[i] for i in range(BOUNDS))


cdef class Ages:
    """How old records were when they were handed out, in ms: from when they were appended, or
    became due, until then."""

    cdef int64_t[BOUNDS + 1] _counts
    cdef readonly int64_t total_ms

    @property
    def counts(self):
        """As many as ``AGE_BOUNDS_MS``, and one for what was older."""
        return [self._counts[i] for i in range(BOUNDS + 1)]

    def observe(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t now_ms):
        """Records ``first`` … ``stop - 1``. They are stamped in the order they came, so when the
        first and the last are stamped alike, all are."""
        cdef Py_ssize_t i
        cdef int64_t stamped
        if stop <= first:
            return
        stamped = batch.header_at(first).timestamp_ms
        if not batch.summary & TIMED and batch.header_at(stop - 1).timestamp_ms == stamped:
            self.note(now_ms - stamped, stop - first)
            return
        for i in range(first, stop):
            self.note(now_ms - appeared(batch.header_at(i)), 1)

    cdef void note(self, int64_t age_ms, Py_ssize_t count) noexcept:
        cdef int i = 0
        age_ms = max(age_ms, 0)  # the clock may have been set back
        while i < BOUNDS and age_ms > AGE_BOUNDS[i]:
            i += 1
        self._counts[i] += count
        self.total_ms += age_ms * count


cdef int64_t appeared(const RecordHeader *header) noexcept:
    cdef const RecordTiming *timing
    if header.flags & TIMED:
        timing = <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)
        return max(header.timestamp_ms, timing.due_at_ms)
    return header.timestamp_ms
