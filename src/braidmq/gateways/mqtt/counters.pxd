cdef class Counters:
    cdef public long long received, sent, dropped
