cdef class Meter:
    cdef readonly long long published, published_bytes, delivered, delivered_bytes

    cdef void count(self, long long taken, long long taken_bytes, long long copies) noexcept
