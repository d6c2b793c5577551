cdef class Turns:
    cdef public bint is_due
    cdef readonly double served_s
    cdef readonly long long count
    cdef void *last             # who was served without a turn, to compare with
    cdef int crowd              # how many were, one right after the other

    cdef void serve(self, void *who) noexcept
