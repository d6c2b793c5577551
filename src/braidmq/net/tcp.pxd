from libc.stdint cimport uint32_t

from braidmq.net.input_budget cimport InputShare


cdef class FastPath:
    cdef bint take(self, char *data, Py_ssize_t size) except -1


cdef class Poller:
    cdef readonly object loop
    cdef public object unsent, on_tls
    cdef public double serve_s
    cdef int fd

    cdef object ended
    cdef list ready
    cdef int served
    cdef uint32_t events[32]

    cdef int ask(self) except -1
    cdef bint serve(self, double until_s) except -1
    cdef int lose(self, TcpLink link) except -1
    cdef int watch(self, TcpLink link, int wanted) except -1


cdef class TcpLink:
    cdef readonly str host
    cdef readonly str peer
    cdef public str listener, certified_user
    cdef readonly Py_ssize_t unsent_bytes
    cdef readonly bint is_closing
    cdef readonly bint is_reading
    cdef readonly long long received_bytes, sent_bytes
    cdef readonly double heard_s
    cdef public FastPath fast_path
    cdef public InputShare share
    cdef public Py_ssize_t receive_bytes
    cdef object loop, receiver, unsent
    cdef bytes tail
    cdef bytearray large
    cdef Py_ssize_t kept_bytes, large_bytes, large_wanted, first_sent, output_high_bytes
    cdef Poller poller
    cdef int fd, watched
    cdef bint is_receiving, is_resumed, is_output_paused, is_finishing, is_over, is_deaf, is_noted

    cdef int watch_input(self, bint wanted) except -1
    cdef int watch_output(self, bint wanted) except -1
    cdef int readable(self) except -1
    cdef int writable(self) except -1
    cdef bint is_tls(self) except *
    cdef bint is_taken(self, Py_ssize_t got) except *
    cdef int fill(self, Py_ssize_t got) except -1
    cdef int note_kept(self, Py_ssize_t size) except -1
    cdef int offer(self, view, Py_ssize_t size) except -1
    cdef int fail(self, error) except -1
    cdef int keep(self, view, Py_ssize_t used, Py_ssize_t size) except -1
    cdef int put(self, const char *data, Py_ssize_t size) except -1
    cdef bint send_more(self) except *
    cdef int note_unsent(self) except -1
    cdef int end(self) except -1
    cdef int lost(self) except -1


cdef double monotonic_s() noexcept

# One buffer into which all links read, and a view on it.
cdef char *RECEIVED
cdef object VIEW
