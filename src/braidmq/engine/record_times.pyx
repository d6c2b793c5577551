"""Times that records carry: when they were stamped, become due, expire.

    engine's time   ───────────┬───────────────────────►  durations: never steps
                               │ lead
    wall time       ───────────┴──┐                       what records are stamped with, and what
                                  └────────────────────►  people mean by a date

The engine's time is the wall's at start-up and runs on by itself; the wall clock may be set.
Records are stamped by the wall. A ``RecordClock`` reads the times of records that were stamped
while it was so far ahead, as times of the engine (docs/adr/0019).
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t

from braidmq.record.batch cimport (
    HEADER_BYTES, TIMED, RecordBatch, RecordHeader, RecordTiming, seal_header,
)

cdef enum:
    DATED_DUE = 1
    DATED_EXPIRY = 2

cdef int64_t TIME_MAX = 0x7fffffffffffffff


cdef inline const RecordTiming *timing_of(const RecordHeader *header) noexcept:
    return <const RecordTiming *>(<const unsigned char *>header + HEADER_BYTES)


def shifted(RecordBatch batch not None, int64_t lead_ms):
    """A copy of a batch whose times are by a clock that is so far ahead; dates stay as they are."""
    cdef bytes copied = bytes(memoryview(batch))
    cdef RecordHeader *header
    cdef RecordTiming *timing
    cdef Py_ssize_t i
    for i in range(batch.count):
        header = <RecordHeader *>(PyBytes_AS_STRING(copied) + batch.positions[i])
        header.timestamp_ms += lead_ms
        if header.flags & TIMED:
            timing = <RecordTiming *>(<unsigned char *>header + HEADER_BYTES)
            if timing.due_at_ms and not header.reserved & DATED_DUE:
                timing.due_at_ms += lead_ms
            if timing.expires_at_ms and not header.reserved & DATED_EXPIRY:
                timing.expires_at_ms += lead_ms
        seal_header(header)
    return RecordBatch.scan(copied, base_offset=batch.base_offset, verify=False)


cdef class RecordClock:
    """How records' times are to be read. ``lead_ms``: how far the clock they were stamped by was
    ahead; ``date_lead_ms``: how far the wall clock is now, which decides dates. A record cannot
    have been stamped after ``newest_ms``: where it was, that clock was ahead by the difference."""

    def __init__(self, int64_t lead_ms=0, int64_t newest_ms=TIME_MAX):
        self.lead_ms = self.date_lead_ms = lead_ms
        self.newest_ms = newest_ms

    cdef int64_t shift_of(self, const RecordHeader *header) noexcept:
        if header.timestamp_ms > self.newest_ms:
            return self.lead_ms + header.timestamp_ms - self.newest_ms
        return self.lead_ms

    cdef int64_t stamped(self, const RecordHeader *header) noexcept:
        return header.timestamp_ms - self.shift_of(header)

    cdef int64_t due(self, const RecordHeader *header) noexcept:
        """When a record may be delivered; 0: at once."""
        cdef int64_t due
        if not header.flags & TIMED:
            return 0
        due = timing_of(header).due_at_ms
        if due <= 0:
            return due
        due -= self.date_lead_ms if header.reserved & DATED_DUE else self.shift_of(header)
        return max(due, 1)

    cdef int64_t expires(self, const RecordHeader *header) noexcept:
        """When a record goes by its own time; 0: never."""
        cdef int64_t expires
        if not header.flags & TIMED:
            return 0
        expires = timing_of(header).expires_at_ms
        if expires <= 0:
            return 0
        expires -= self.date_lead_ms if header.reserved & DATED_EXPIRY else self.shift_of(header)
        return max(expires, 1)

    cdef int64_t appeared(self, const RecordHeader *header) noexcept:
        return max(self.stamped(header), self.due(header))

    cdef int64_t expiry(self, const RecordHeader *header, int64_t ttl_ms) noexcept:
        """A topic's TTL begins when the record can be had: a delay comes before it."""
        cdef int64_t by_topic = self.appeared(header) + ttl_ms if ttl_ms else 0
        cdef int64_t own = self.expires(header)
        if by_topic and own:
            return min(by_topic, own)
        return by_topic or own

    def timed(self, RecordBatch batch):
        """``(offset, due, expires, dated)`` of the records that have either; in ms, 0 for none."""
        cdef list found = []
        cdef Py_ssize_t i
        cdef const RecordHeader *header
        for i in range(batch.count):
            header = batch.header_at(i)
            if header.flags & TIMED:
                found.append(
                    (batch.offset_of(i), self.due(header), self.expires(header), header.reserved)
                )
        return found

    def live_prefix(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t now_ms,
                    int64_t ttl_ms):
        """How many records from ``first`` on are alive, or as a negative number how many are
        expired. ``ttl_ms`` is the topic's, 0 for none; a record's own expiry counts too. Never 0
        for a non-empty range."""
        cdef Py_ssize_t i
        cdef int64_t expires
        cdef bint dead, dead_first = False
        for i in range(first, stop):
            expires = self.expiry(batch.header_at(i), ttl_ms)
            dead = expires and expires <= now_ms
            if i == first:
                dead_first = dead
            elif dead != dead_first:
                return (first - i) if dead_first else (i - first)
        return (first - stop) if dead_first else (stop - first)

    def expiry_of(self, RecordBatch batch, Py_ssize_t index, int64_t ttl_ms):
        """When a record expires by itself or by its topic's TTL, in ms; 0 for never."""
        return self.expiry(batch.header_at(index), ttl_ms)

    def due_of(self, RecordBatch batch, Py_ssize_t index):
        return self.due(batch.header_at(index))

    def stamp_of(self, RecordBatch batch, Py_ssize_t index):
        return self.stamped(batch.header_at(index))

    def first_since(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t time_ms):
        """Index of the first of some records stamped at or after a time; ``stop`` for none."""
        cdef Py_ssize_t i
        for i in range(first, stop):
            if self.stamped(batch.header_at(i)) >= time_ms:
                return i
        return stop

    def reading(self, int64_t time_ms):
        """What this clock said at a time; the end of time when all its records are older."""
        return TIME_MAX if time_ms > self.newest_ms else time_ms + self.lead_ms


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

    def observe(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t now_ms,
                RecordClock clock not None):
        """Records ``first`` … ``stop - 1``. They are stamped in the order they came, so when the
        first and the last are stamped alike, all are."""
        cdef Py_ssize_t i
        cdef int64_t stamped
        if stop <= first:
            return
        stamped = batch.header_at(first).timestamp_ms
        if not batch.summary & TIMED and batch.header_at(stop - 1).timestamp_ms == stamped:
            self.note(now_ms - clock.stamped(batch.header_at(first)), stop - first)
            return
        for i in range(first, stop):
            self.note(now_ms - clock.appeared(batch.header_at(i)), 1)

    cdef void note(self, int64_t age_ms, Py_ssize_t count) noexcept:
        cdef int i = 0
        age_ms = max(age_ms, 0)  # who publishes records whole stamps them too
        while i < BOUNDS and age_ms > AGE_BOUNDS[i]:
            i += 1
        self._counts[i] += count
        self.total_ms += age_ms * count
