from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    int __builtin_clzll(unsigned long long) nogil

cdef enum:
    STEPS_BITS = 6
    STEPS = 64                # an octave of a histogram: a bucket is at most 1.6 % wide
    BUCKETS = STEPS * 42      # 2 ** 47 ns are 39 hours


cdef packed struct Stamp:
    uint32_t run
    uint32_t producer
    uint64_t sequence
    uint64_t sent_ns


cdef class Histogram:
    cdef uint64_t counts[BUCKETS]
    cdef readonly uint64_t total
    cdef readonly int64_t max_ns

    cdef inline void put(self, int64_t ns) noexcept:
        cdef int64_t scaled = ns if ns > 0 else 0
        cdef int shift
        if scaled > self.max_ns:
            self.max_ns = scaled
        if scaled >= 2 * STEPS:
            # As far as leaves it one bit more than a step has.
            shift = 63 - STEPS_BITS - __builtin_clzll(scaled)
            scaled = (scaled >> shift) + shift * STEPS
        self.counts[scaled if scaled < BUCKETS else BUCKETS - 1] += 1
        self.total += 1


cdef struct Seen:
    uint8_t *bits
    uint64_t capacity
    uint64_t highest


cdef class Arrivals:
    cdef Seen *seen
    cdef uint32_t producers
    cdef uint32_t run
    cdef Histogram latency
    cdef readonly uint64_t received
    cdef readonly uint64_t duplicated
    cdef readonly uint64_t reordered
    cdef readonly uint64_t redelivered
    cdef readonly uint64_t foreign
    cdef int grow(self, Seen *seen, uint64_t sequence) except -1
    cdef int put(
        self, const uint8_t *body, uint64_t length, bint redelivered, uint64_t now_ns
    ) except -1
