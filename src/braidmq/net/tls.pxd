from braidmq.net.tcp cimport TcpLink


cdef class TlsLink(TcpLink):
    cdef readonly bint is_established
    cdef public object on_broken
    cdef object tls, read_plain, write_plain
    cdef bytes rest
    cdef readonly Py_ssize_t handshake_bytes
    cdef Py_ssize_t control_bytes
    cdef bint is_ended, is_told_goodbye

    cdef int feed(self, Py_ssize_t room) except -1
    cdef Py_ssize_t put_rest(self) noexcept
    cdef int take(self, Py_ssize_t size) except -1
    cdef Py_ssize_t decrypt(self, Py_ssize_t at) except -1
    cdef int fill_plain(self, Py_ssize_t got) except -1
    cdef int fill_before(self, Py_ssize_t part, bytes behind) except -1
    cdef int answer(self) except -1
    cdef int say_goodbye(self) except -1
    cdef int send_records(self, records) except -1
