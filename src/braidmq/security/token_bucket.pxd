cdef class Bucket:
    cdef readonly long long rate, burst, period_ms
    cdef long long level, full, at_ms

    cdef void refill(self, long long now_ms) noexcept
    cdef long long whole(self) noexcept
    cdef long long wait(self, long long tokens) noexcept


cdef class Level:
    cdef readonly Bucket messages, size


cdef class Throttle:
    cdef readonly tuple levels

    cdef long long room(self, long long count, long long now_ms) except -1
    cdef int charge(self, long long count, long long size) except -1
    cpdef bint has_room(self, long long count, long long now_ms) except -1
    cpdef bint admit(self, long long count, long long size, long long now_ms) except -1
    cpdef long long take(self, long long count, long long size, long long now_ms) except -1
    cpdef long long spend(self, long long count, long long size, long long now_ms) except -1
