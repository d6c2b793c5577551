"""A TCP connection on the event loop: one system call to read, one to write.

The transports of event loops ask for a buffer, hand on what came in it and queue what is written
until the loop comes round: for one message a turn that costs as much as the system calls. Here all
connections read into one buffer, which is scanned before the next is read, what is left of a packet
that is not whole is put before the rest of it, and what is written goes out at once, as far as the
socket takes it.

Which sockets are ready is asked of an epoll of our own, which is one file to the loop. libuv, below
uvloop, stops looking at a socket once it is reset, and says so once: what was sent before would be
read, and the end never seen.

The interpreter's lock is kept meanwhile: nothing here waits, and to get it back may take longer
than the call.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, ECONNABORTED, EINTR, errno
from libc.stdint cimport uint16_t, uint32_t
from libc.string cimport memcpy

from collections import deque

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    int EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP

cdef extern from "<arpa/inet.h>" nogil:
    const char *inet_ntop(int family, const void *address, char *text, uint32_t size)
    uint16_t ntohs(uint16_t number)

cdef extern from "<netinet/in.h>" nogil:
    cdef struct in_addr:
        pass
    cdef struct in6_addr:
        pass
    cdef struct sockaddr_in:
        uint16_t sin_port
        in_addr sin_addr
    cdef struct sockaddr_in6:
        uint16_t sin6_port
        in6_addr sin6_addr
    int IPPROTO_TCP

cdef extern from "<netinet/tcp.h>" nogil:
    int TCP_NODELAY

cdef extern from "<sys/socket.h>" nogil:
    cdef struct sockaddr:
        pass
    cdef struct sockaddr_storage:
        uint16_t ss_family
    ctypedef uint32_t socklen_t
    int accept4(int fd, sockaddr *address, socklen_t *size, int flags)
    int getsockname(int fd, sockaddr *address, socklen_t *size)
    int setsockopt(int fd, int level, int option, const void *value, socklen_t size)
    int AF_INET6, SOCK_NONBLOCK, SOCK_CLOEXEC
    Py_ssize_t recv(int fd, void *buffer, size_t size, int flags)
    Py_ssize_t send(int fd, const void *buffer, size_t size, int flags)
    int shutdown(int fd, int how)
    int MSG_NOSIGNAL, MSG_DONTWAIT, SHUT_WR

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)

cdef extern from "<unistd.h>" nogil:
    int close_file "close" (int fd)

cdef enum:
    RECEIVED_MAX = 1 << 20
    READY_MAX = 128  # connections that are served before others have their turn
    SERVED_TOGETHER = 32
    NOTED = 64 << 10  # as net/unsent_output has it
    TLS_HANDSHAKE = 22  # how TLS begins, and no protocol of ours
    INPUT = 1
    OUTPUT = 2

RECEIVE_BYTES_MAX = RECEIVED_MAX

# So long are connections served before the loop goes on: what they asked for has to be done, and
# those who come next must not wait for all of a crowd.
SERVE_S = 0.02

_received = bytearray(RECEIVE_BYTES_MAX)
_view = memoryview(_received)
# With a view on it, it can't be moved.
cdef char *RECEIVED = PyByteArray_AS_STRING(_received)
cdef object VIEW = _view


cdef double monotonic_s() noexcept:
    """As ``time.monotonic`` and the loops know it."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef inline bint is_passing(int error) noexcept nogil:
    """Whether the call may succeed later."""
    return error == EAGAIN or error == EINTR


def accept(int listener):
    """The next connection that waits: its file, the peer's address and port; None if there is none.
    The socket does not block and sends at once. Raises OSError.

    Sockets of the standard library cost two objects and two system calls more."""
    cdef sockaddr_storage address
    cdef socklen_t size = sizeof(address)
    cdef int one = 1, fd
    fd = accept4(listener, <sockaddr *>&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)
    if fd < 0:
        if is_passing(errno) or errno == ECONNABORTED:
            return None
        raise OSError(errno, "accept4")
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    host, port = host_and_port(&address)
    return fd, host, port


cdef tuple host_and_port(sockaddr_storage *address):
    cdef char text[64]
    cdef bint is_v6 = address.ss_family == AF_INET6
    inet_ntop(
        address.ss_family,
        <void *>&(<sockaddr_in6 *>address).sin6_addr if is_v6
        else <void *>&(<sockaddr_in *>address).sin_addr,
        text, sizeof(text))
    return text.decode("ascii"), ntohs(
        (<sockaddr_in6 *>address).sin6_port if is_v6 else (<sockaddr_in *>address).sin_port)


cdef class FastPath:
    """Who may take what came before the receiver is asked."""

    cdef bint take(self, char *data, Py_ssize_t size) except -1:
        """Whether it did: whole packets, and all of them."""
        return False


cdef class Poller:
    """The sockets of all links of a loop."""

    def __init__(self, loop):
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, "epoll_create1")
        self.loop = loop
        self.serve_s = SERVE_S
        self.ended = deque()
        self.ready = []
        loop.add_reader(self.fd, self._ready)

    def __dealloc__(self):
        if self.fd >= 0:
            close_file(self.fd)

    def close(self):
        if self.fd >= 0:
            self.loop.remove_reader(self.fd)
            close_file(self.fd)
            self.fd = -1

    cdef int lose(self, TcpLink link) except -1:
        """Its receiver is told later: it may be just doing something else. Of a crowd that goes at
        once not all are told at once, because each may leave much to be done."""
        self.ended.append(link)
        if len(self.ended) == 1:
            self.loop.call_soon(self._tell_ended)
        return 0

    def _tell_ended(self):
        cdef double until_s = monotonic_s() + self.serve_s
        cdef TcpLink link
        try:
            while self.ended:
                link = self.ended[0]
                link.lost()
                self.ended.popleft()
                if monotonic_s() > until_s:
                    break
        except Exception:
            self.ended.popleft()
            raise
        finally:
            if self.ended:
                self.loop.call_soon(self._tell_ended)

    cdef int watch(self, TcpLink link, int wanted) except -1:
        """Tell it when it can read or write; a link that is watched stays alive."""
        cdef epoll_event event
        cdef int before = link.watched
        if wanted == before or self.fd < 0:
            return 0
        event.events = (
            (<uint32_t>EPOLLIN if wanted & INPUT else 0)
            | (<uint32_t>EPOLLOUT if wanted & OUTPUT else 0))
        event.data.ptr = <void *>link
        if epoll_ctl(
            self.fd, EPOLL_CTL_ADD if not before else EPOLL_CTL_MOD if wanted else EPOLL_CTL_DEL,
            link.fd, &event
        ) < 0:
            raise OSError(errno, "epoll_ctl")
        link.watched = wanted
        if not before:
            Py_INCREF(link)
        elif not wanted:
            Py_DECREF(link)
        return 0

    def _ready(self):
        """Who is not served now is first the next time: those below, and the kernel has the others
        in that order."""
        cdef double until_s = monotonic_s() + self.serve_s
        cdef int left = READY_MAX, count = SERVED_TOGETHER
        while left > 0 and self.fd >= 0:
            if not self.ready:
                count = self.ask()
                left -= count
            if not self.serve(until_s) or count < SERVED_TOGETHER:
                return

    cdef int ask(self) except -1:
        """Who can read or write now; what one does may end another of them, so they are kept."""
        cdef epoll_event events[SERVED_TOGETHER]
        cdef int count = max(epoll_wait(self.fd, events, SERVED_TOGETHER, 0), 0), i
        self.ready = [<TcpLink>events[i].data.ptr for i in range(count)]
        self.served = 0
        for i in range(count):
            self.events[i] = events[i].events
        return count

    cdef bint serve(self, double until_s) except -1:
        """Those who are ready, while there is time: each may take long. Whether there is some
        left."""
        cdef TcpLink link
        cdef uint32_t events
        cdef list ready = self.ready
        cdef bint has_time = True
        while has_time and self.served < len(ready):
            link, events = ready[self.served], self.events[self.served]
            self.served += 1
            try:
                if link.watched & OUTPUT and events & ~<uint32_t>EPOLLIN:
                    link.writable()
                if link.watched & INPUT and events & ~<uint32_t>EPOLLOUT:
                    link.readable()
            except Exception as error:
                link.fail(error)
            has_time = monotonic_s() < until_s
        if self.served == len(ready):
            self.ready = []
        return has_time


cdef class TcpLink:
    def __cinit__(
        self, Poller poller not None, int fd, str host, int port, Py_ssize_t receive_bytes,
        Py_ssize_t output_high_bytes
    ):
        """Takes over ``fd``, a connected socket that does not block."""
        self.poller = poller
        self.loop = poller.loop
        self.fd = fd
        self.host = host
        self.peer = f"{host}:{port}"
        self.listener = ""
        self.receive_bytes = min(receive_bytes, RECEIVED_MAX)
        self.output_high_bytes = output_high_bytes
        self.tail = b""
        self.unsent = deque()
        self.heard_s = monotonic_s()

    def __dealloc__(self):
        if self.fd >= 0:
            close_file(self.fd)

    @property
    def link(self):
        """Compiled code may read and write it directly."""
        return self

    @property
    def local(self):
        """Our own address and port, which clients of a wildcard choose."""
        cdef sockaddr_storage address
        cdef socklen_t size = sizeof(address)
        if getsockname(self.fd, <sockaddr *>&address, &size) < 0:
            return None
        return host_and_port(&address)

    def start(self, receiver):
        """Have ``receiver`` told what comes, until it is told that the connection is lost."""
        self.receiver = receiver
        self.is_reading = True
        self.watch_input(True)

    cdef int watch_input(self, bint wanted) except -1:
        return self.poller.watch(self, self.watched & OUTPUT | (INPUT if wanted else 0))

    cdef int watch_output(self, bint wanted) except -1:
        return self.poller.watch(self, self.watched & INPUT | (OUTPUT if wanted else 0))

    # --- in ---

    @property
    def unread(self):
        """The beginning of a packet, as far as it came."""
        return self.tail if self.large is None else bytes(self.large[:self.large_bytes])

    def pause(self):
        """Read no more until ``resume``."""
        if self.is_reading:
            self.is_reading = False
            self.watch_input(False)

    def resume(self):
        """Read on, first what was left unread."""
        if self.is_reading or self.is_closing:
            return
        self.is_reading = True
        self.watch_input(True)
        if self.is_receiving:
            self.is_resumed = True
        else:
            self._read_rest()

    def _read_rest(self):
        cdef bytes rest = self.tail
        if rest and self.is_reading and not self.is_receiving:
            self.tail = b""
            self.offer(memoryview(rest), PyBytes_GET_SIZE(rest))

    cdef int readable(self) except -1:
        cdef Py_ssize_t kept = 0, got, room
        if not self.is_reading or self.is_over:
            return 0
        if self.kept_bytes and self.share is not None and self.share.input_budget.is_over:
            return 0  # somebody has to go first, perhaps we: we are told again
        if self.large is not None:
            got = recv(
                self.fd, PyByteArray_AS_STRING(self.large) + self.large_bytes,
                PyByteArray_GET_SIZE(self.large) - self.large_bytes, MSG_DONTWAIT)
        else:
            kept = PyBytes_GET_SIZE(self.tail)
            room = (self.receive_bytes if kept < self.receive_bytes else RECEIVED_MAX) - kept
            if room <= 0:
                self.fail(ValueError(f"nothing of {kept} bytes was taken"))
                return 0
            memcpy(RECEIVED, PyBytes_AS_STRING(self.tail), kept)
            got = recv(self.fd, RECEIVED + kept, room, MSG_DONTWAIT)
        if got > 0:
            self.received_bytes += got
            self.heard_s = monotonic_s()
        if got > 0 and self.is_deaf:
            return 0
        if self.received_bytes == got and got > 0 and self.is_tls():
            return 0
        if got > 0 and self.large is None:
            if self.fast_path is None or kept or not self.is_taken(got):
                self.offer(VIEW, kept + got)
        elif got > 0:
            self.fill(got)
        elif got == 0:
            self.close()
        elif not is_passing(errno):
            self.abort()
        return 0

    cdef bint is_tls(self) except *:
        """Whether the peer takes this for a port of TLS, which it is told then."""
        if RECEIVED[0] != TLS_HANDSHAKE or self.poller.on_tls is None:
            return False
        self.poller.on_tls(self)
        return True

    cdef bint is_taken(self, Py_ssize_t got) except *:
        try:
            return self.fast_path.take(RECEIVED, got)
        except Exception as error:
            self.fail(error)
            return True

    cdef int fill(self, Py_ssize_t got) except -1:
        self.large_bytes += got
        if self.large_bytes == self.large_wanted:
            whole, self.large = self.large, None
            self.offer(memoryview(whole), len(whole))
        elif self.large_bytes == PyByteArray_GET_SIZE(self.large):
            # What a peer says will come may never do: the buffer is twice what did come.
            PyByteArray_Resize(self.large, min(self.large_wanted, 2 * self.large_bytes))
            self.note_kept(PyByteArray_GET_SIZE(self.large))
        return 0

    cdef int note_kept(self, Py_ssize_t size) except -1:
        """Have it counted what is kept of a packet that is not whole."""
        cdef Py_ssize_t before = self.kept_bytes
        self.kept_bytes = size
        if self.share is not None:
            self.share.hold(size - before)
        return 0

    def drop_input(self):
        """Take no notice of anything that comes from now on, or came and is not taken yet."""
        self.is_deaf = True
        self.tail = b""
        self.large = None
        if self.kept_bytes:
            self.note_kept(0)

    cdef int offer(self, view, Py_ssize_t size) except -1:
        """Hand on what came; what is not taken waits for the rest of its packet."""
        cdef Py_ssize_t used
        self.is_receiving, self.is_resumed = True, False
        try:
            used = self.receiver.receive(view, size)
        except Exception as error:
            self.fail(error)
            return 0
        finally:
            self.is_receiving = False
        if used == size or self.is_deaf:
            self.tail = b""
            if self.kept_bytes:
                self.note_kept(0)
        elif not self.is_closing:
            self.keep(view, used, size)
            if self.is_resumed:
                self.loop.call_soon(self._read_rest)
        return 0

    cdef int fail(self, error) except -1:
        """A mistake of ours, and only this connection suffers from it."""
        self.tail = b""
        self.loop.call_exception_handler(
            {"message": f"what {self.peer} sent could not be handled", "exception": error})
        self.abort()

    cdef int keep(self, view, Py_ssize_t used, Py_ssize_t size) except -1:
        cdef Py_ssize_t wanted = self.receiver.wanted_bytes
        cdef Py_ssize_t kept = size - used
        if wanted > self.receive_bytes // 2 and wanted > kept:
            self.large = bytearray(view[used:size])
            self.large_bytes = kept
            self.large_wanted = wanted
            kept = min(wanted, max(2 * kept, self.receive_bytes))
            PyByteArray_Resize(self.large, kept)
            self.tail = b""
        elif view is VIEW:
            self.tail = PyBytes_FromStringAndSize(RECEIVED + used, kept)
        else:
            self.tail = bytes(view[used:size])
        return self.note_kept(kept)

    # --- out ---

    cdef int put(self, const char *data, Py_ssize_t size) except -1:
        """Write what the caller keeps."""
        cdef Py_ssize_t sent = 0
        if not (self.is_closing or self.is_finishing or self.unsent_bytes):
            sent = max(send(self.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT), 0)
            self.sent_bytes += sent
        if sent < size:
            self.write(PyBytes_FromStringAndSize(data + sent, size - sent))
        return 0

    def write(self, bytes data not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), sent = 0
        if self.is_closing or self.is_finishing:
            return
        self.sent_bytes += size
        if not self.unsent_bytes:
            sent = send(self.fd, PyBytes_AS_STRING(data), size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent == size:
                return
            if sent < 0:
                if not is_passing(errno):
                    self.abort()
                    return
                sent = 0
            self.first_sent = sent
            self.watch_output(True)
        self.unsent.append(data)
        self.unsent_bytes += size - sent
        if self.unsent_bytes > self.output_high_bytes and not self.is_output_paused:
            self.is_output_paused = True
            self.receiver.pause_output(True)
        self.note_unsent()

    cdef int note_unsent(self) except -1:
        """Have it counted what the peer does not take."""
        if self.poller.unsent is not None and (self.is_noted or self.unsent_bytes >= NOTED):
            self.is_noted = self.unsent_bytes >= NOTED
            self.poller.unsent.note(self, self.unsent_bytes)
        return 0

    def refuse_output(self, text):
        """Too much is unsent on all connections, and its peer has taken nothing for longest."""
        if self.receiver is not None:
            self.receiver.refuse_output(text)
        self.abort()

    cdef int writable(self) except -1:
        if not self.send_more():
            self.abort()
            return 0
        self.note_unsent()
        if not self.unsent_bytes:
            self.watch_output(False)
            if self.is_closing:
                self.end()
                return 0
            if self.is_finishing:
                shutdown(self.fd, SHUT_WR)
        if self.is_output_paused and self.unsent_bytes <= self.output_high_bytes // 4:
            self.is_output_paused = False
            self.receiver.pause_output(False)
        return 0

    cdef bint send_more(self) except *:
        """False when the socket is broken."""
        cdef bytes data
        cdef Py_ssize_t size, sent
        while self.unsent:
            data = self.unsent[0]
            size = PyBytes_GET_SIZE(data) - self.first_sent
            sent = send(
                self.fd, PyBytes_AS_STRING(data) + self.first_sent, size,
                MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                return is_passing(errno)
            self.unsent_bytes -= sent
            if sent < size:
                self.first_sent += sent
                return True
            self.first_sent = 0
            self.unsent.popleft()
        return True

    # --- the end ---

    def finish(self):
        """Say goodbye, and read on until the peer closes: with input unread the socket would be
        reset, and what we said last be lost."""
        if self.is_closing or self.is_finishing:
            return
        self.is_finishing = True
        self.drop_input()
        self.resume()
        if not self.unsent_bytes:
            shutdown(self.fd, SHUT_WR)

    def close(self):
        """Once everything is sent. Nothing more is read."""
        if self.is_closing:
            return
        self.pause()
        self.is_closing = True
        if not self.unsent_bytes:
            self.end()

    def abort(self):
        """Now, whatever is unsent."""
        if self.is_over:
            return
        self.pause()
        self.is_closing = True
        if self.unsent_bytes:
            self.watch_output(False)
            self.unsent.clear()
            self.unsent_bytes = 0
            self.note_unsent()
        self.end()

    cdef int end(self) except -1:
        if not self.is_over:
            self.is_over = True
            self.poller.lose(self)

    cdef int lost(self) except -1:
        receiver, self.receiver = self.receiver, None
        self.drop_input()
        close_file(self.fd)
        self.fd = -1
        self.share = None
        if receiver is not None:
            receiver.lost()
