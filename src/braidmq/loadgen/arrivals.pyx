"""What arrives of the messages of a load generator, whatever the protocol.

Every body opens with a stamp that the far end checks; the rest is filler:

    ┌────────┬──────────┬──────────┬────────────────────┐
    │ run    │ producer │ sequence │ sent at, ns        │
    └────────┴──────────┴──────────┴────────────────────┘
      4 bytes  4 bytes    8 bytes    8 bytes              BODY_BYTES_MIN in all

The bytes are in this machine's order: one process sends and receives. A producer's sequence starts
at 1. Time is an argument, as everywhere in ``wire``.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

BODY_BYTES_MIN = sizeof(Stamp)


cdef class Histogram:
    """Durations in nanoseconds, in buckets that widen with the duration."""

    def __cinit__(self):
        self.clear()

    def clear(self):
        memset(self.counts, 0, sizeof(self.counts))
        self.total = 0
        self.max_ns = 0

    def add(self, int64_t ns):
        self.put(ns)

    def percentile(self, double percent):
        """The upper edge of the bucket that ``percent`` of all durations do not pass."""
        cdef uint64_t wanted = <uint64_t>(self.total * percent / 100)
        cdef uint64_t seen = 0
        cdef int i, shift
        for i in range(BUCKETS):
            seen += self.counts[i]
            if seen > wanted:
                shift = i // STEPS - 1 if i >= 2 * STEPS else 0
                return min((<int64_t>(i - shift * STEPS + 1) << shift) - 1, self.max_ns)
        return self.max_ns


cdef class Arrivals:
    """What came of each producer's sequence: once, twice, late, never.

    ``received`` counts each sequence number once; ``reordered`` those first seen behind a later one
    of their producer; ``redelivered`` had the protocol's flag; ``foreign`` are not of this run.
    """

    def __cinit__(self, uint32_t run, uint32_t producers, Histogram latency):
        self.run = run
        self.producers = producers
        self.latency = latency
        self.seen = <Seen *>calloc(producers, sizeof(Seen))
        if self.seen == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        if self.seen != NULL:
            for i in range(self.producers):
                free(self.seen[i].bits)
            free(self.seen)

    cdef int grow(self, Seen *seen, uint64_t sequence) except -1:
        cdef uint64_t wanted = 2 * max(seen.capacity, sequence + 1)
        cdef uint8_t *bits
        wanted = (wanted + 7) // 8 * 8
        bits = <uint8_t *>realloc(seen.bits, wanted // 8)
        if bits == NULL:
            raise MemoryError
        memset(bits + seen.capacity // 8, 0, (wanted - seen.capacity) // 8)
        seen.bits = bits
        seen.capacity = wanted
        return 0

    cdef int put(
        self, const uint8_t *body, uint64_t length, bint redelivered, uint64_t now_ns
    ) except -1:
        cdef Seen *seen
        cdef Stamp stamp
        cdef uint8_t bit
        if length < sizeof(Stamp):
            self.foreign += 1
            return 0
        memcpy(&stamp, body, sizeof(Stamp))
        if (
            stamp.run != self.run or stamp.producer >= self.producers
            or stamp.sequence >> 40
        ):
            self.foreign += 1
            return 0
        seen = self.seen + stamp.producer
        if stamp.sequence >= seen.capacity:
            self.grow(seen, stamp.sequence)
        self.redelivered += redelivered
        bit = 1 << (stamp.sequence & 7)
        if seen.bits[stamp.sequence >> 3] & bit:
            self.duplicated += 1
            return 0
        seen.bits[stamp.sequence >> 3] |= bit
        self.received += 1
        if stamp.sequence > seen.highest:
            seen.highest = stamp.sequence
        else:
            self.reordered += 1
        self.latency.put(<int64_t>(now_ns - stamp.sent_ns))
        return 0
