cdef class InputBudget:
    cdef readonly Py_ssize_t held_bytes
    cdef readonly Py_ssize_t bytes_max, share_bytes_max
    cdef readonly long long refused
    cdef readonly bint is_over
    cdef object later
    cdef set holders


cdef class InputShare:
    cdef readonly InputBudget input_budget
    cdef readonly Py_ssize_t held_bytes
    cdef object owner

    cpdef int hold(self, Py_ssize_t change) except -1
