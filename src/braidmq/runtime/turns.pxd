cdef enum:
    CROWD = 4   # so many connections that are read one right after the other are one


cdef class Turns:
    cdef public bint is_due
    cdef readonly double served_s
    cdef readonly long long epoch
    cdef void *last             # who was served without a turn, to compare with
    cdef int crowd              # how many were, one right after the other
    cdef int reads              # since the last turn

    cdef void serve(self, void *who) noexcept
