"""TLS on a TCP link: what is read is decrypted before it is offered, what is written is encrypted.

The records that one ``recv`` brought are decrypted one behind the other into the buffer that all
links share, so that a receiver scans once what came at once. OpenSSL is given memory to read from
and to write to, and all links share these two pieces: the first is empty when a link has been read,
and the second is emptied onto the socket. A link that is idle has neither. OpenSSL gets a record
once it is whole: to hear that it is not, by an exception, costs as much as to decrypt 4 KiB.

    ┌──────┬─────────┬────────┬─────────────────────────┐
    │ kind │ version │ length │ encrypted, with its tag │
    └──────┴─────────┴────────┴─────────────────────────┘
      1 byte  2 bytes   2 bytes  ``length`` bytes          integers are big endian

Nobody is told of a connection before its handshake is done: ``shake`` and ``step`` are called by
``tls_handshakes``, which decides when there is time for one, and ends those that take too long.

A kernel that does TLS itself would be given its keys at the end of the handshake. What is above
here would not notice: it sees what ``TcpLink`` offers.
"""

import ssl

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy

from braidmq.net.tcp cimport RECEIVED, TcpLink, VIEW, monotonic_s
from braidmq.net.tcp import RECEIVE_BYTES_MAX

cdef extern from "<sys/socket.h>" nogil:
    Py_ssize_t recv(int fd, void *buffer, size_t size, int flags)
    int MSG_DONTWAIT

cdef enum:
    RECEIVED_MAX = 1 << 20
    RECORD_HEAD = 5
    RECORD_BYTES_MAX = 5 + (18 << 10)  # RFC 5246, 6.2.3: 16 KiB, and what ciphers may add
    RECORD_MAX = 19 << 10  # kept of one that is not whole: it is there beside what is read
    HANDSHAKE_STEP_MAX = 16 << 10
    HANDSHAKE_MAX = 128 << 10  # chains of certificates are large, and OpenSSL takes 100 KiB of them
    ENCRYPT_MAX = 256 << 10  # what OpenSSL's memory grows to, it keeps
    CONTROL_MAX = 64 << 10  # answers to a peer that asks for new keys and reads none of them
    CHANGE_CIPHER_SPEC = 20
    HANDSHAKE_RECORD = 22
    APPLICATION_DATA = 23

assert RECEIVED_MAX == RECEIVE_BYTES_MAX

_encrypted = bytearray(RECEIVED_MAX)
_encrypted_view = memoryview(_encrypted)
# With a view on it, it can't be moved.
cdef char *ENCRYPTED = PyByteArray_AS_STRING(_encrypted)
cdef object ENCRYPTED_VIEW = _encrypted_view

cdef object INCOMING = ssl.MemoryBIO()
cdef object OUTGOING = ssl.MemoryBIO()
cdef object put_incoming = INCOMING.write
cdef object take_outgoing = OUTGOING.read

WantRead = ssl.SSLWantReadError
TlsError = ssl.SSLError


cdef Py_ssize_t whole_records(Py_ssize_t size) noexcept:
    """How much of ENCRYPTED is whole records; what is none at all is OpenSSL's to refuse."""
    cdef const unsigned char *p = <const unsigned char *>ENCRYPTED
    cdef Py_ssize_t at = 0, length
    while size - at >= RECORD_HEAD:
        length = RECORD_HEAD + (p[at + 3] << 8 | p[at + 4])
        if not CHANGE_CIPHER_SPEC <= p[at] <= APPLICATION_DATA or length > RECORD_BYTES_MAX:
            return size
        if length > size - at:
            break
        at += length
    return at


class NotTls(Exception):
    """What came is no record of TLS; the argument is how it begins."""


class PeerLeft(Exception):
    """In the middle of the handshake."""


cdef class TlsLink(TcpLink):
    """``write``, ``pause`` and the rest are as ``TcpLink`` has them."""

    def __cinit__(self, *_):
        self.rest = b""

    # --- the handshake ---

    def shake(self, receiver):
        """``receiver`` has ``ready`` called when there is something to ``step`` on."""
        TcpLink.start(self, receiver)

    def step(self, context):
        """Go on with the handshake, as far as what came allows: whether it is done. Raises
        SSLError, NotTls and PeerLeft; then nothing more can be done than to abort."""
        cdef Py_ssize_t got = recv(self.fd, ENCRYPTED, HANDSHAKE_STEP_MAX, MSG_DONTWAIT)
        if got < 0 and (errno == EAGAIN or errno == EINTR):
            return False
        if got <= 0:
            raise PeerLeft
        if not self.handshake_bytes and ENCRYPTED[0] != HANDSHAKE_RECORD:
            raise NotTls(PyBytes_FromStringAndSize(ENCRYPTED, min(got, 16)))
        self.heard_s = monotonic_s()
        self.handshake_bytes += got
        if self.handshake_bytes > HANDSHAKE_MAX:
            raise TlsError(f"a handshake of more than {HANDSHAKE_MAX} bytes")
        if self.tls is None:
            self.tls = context.wrap_bio(INCOMING, OUTGOING, server_side=True)
        put_incoming(ENCRYPTED_VIEW[:got])
        try:
            self.tls.do_handshake()
            self.is_established = True
        except WantRead:
            pass
        finally:
            # What was said behind the handshake already; nothing, if it is not done.
            self.rest = INCOMING.read()
            records = take_outgoing()
            if records:
                self.send_records(records)
        if self.is_established:
            self.read_plain, self.write_plain = self.tls.read, self.tls.write
        return self.is_established

    @property
    def version(self):
        return None if self.tls is None else self.tls.version()

    @property
    def cipher(self):
        found = None if self.tls is None else self.tls.cipher()
        return None if found is None else found[0]

    @property
    def certificate(self):
        """The peer's, verified, as ``ssl`` describes it; None if it sent none."""
        return self.tls.getpeercert() or None

    def start(self, receiver):
        TcpLink.start(self, receiver)
        if self.rest:
            self.take(self.put_rest())

    # --- in ---

    cdef int readable(self) except -1:
        cdef Py_ssize_t kept, room, limit = RECEIVED_MAX - RECORD_MAX
        if not self.is_reading or self.is_over:
            return 0
        if not self.is_established and not self.is_deaf:
            self.receiver.ready()
            return 0
        if self.kept_bytes and self.share is not None and self.share.input_budget.is_over:
            return 0  # somebody has to go first, perhaps we: we are told again
        if self.large is not None:
            return self.feed(min(self.receive_bytes + RECORD_MAX, limit))
        kept = PyBytes_GET_SIZE(self.tail)
        room = (self.receive_bytes if kept < self.receive_bytes else limit) - kept
        # Receivers take a read that is full for a sign that there is more: as records it is longer.
        room = min(room + RECORD_MAX, limit - kept)
        if room <= 0:
            self.fail(ValueError(f"nothing of {kept} bytes was taken"))
            return 0
        return self.feed(room)

    cdef int feed(self, Py_ssize_t room) except -1:
        cdef Py_ssize_t held = self.put_rest()
        cdef Py_ssize_t got = recv(self.fd, ENCRYPTED + held, room, MSG_DONTWAIT)
        if got > 0:
            self.heard_s = monotonic_s()
            if not self.is_deaf:
                self.take(held + got)
        elif got == 0:
            # Not told goodbye before: packets have their own ends, so that none can be cut off.
            self.close()
        elif errno != EAGAIN and errno != EINTR:
            self.abort()
        return 0

    cdef Py_ssize_t put_rest(self) noexcept:
        """What is kept of a record, to where the rest of it will be read; how much that is."""
        memcpy(ENCRYPTED, PyBytes_AS_STRING(self.rest), PyBytes_GET_SIZE(self.rest))
        return PyBytes_GET_SIZE(self.rest)

    cdef int take(self, Py_ssize_t size) except -1:
        """Decrypt what is whole of ``size`` bytes in ENCRYPTED, keep the rest, and hand it on."""
        cdef Py_ssize_t kept = 0, got, whole = whole_records(size)
        self.rest = PyBytes_FromStringAndSize(ENCRYPTED + whole, size - whole)
        if not whole:
            return 0
        if self.large is None:
            kept = PyBytes_GET_SIZE(self.tail)
            memcpy(RECEIVED, PyBytes_AS_STRING(self.tail), kept)
        put_incoming(ENCRYPTED_VIEW[:whole])
        try:
            got = self.decrypt(kept)
        except TlsError as error:
            INCOMING.read()
            self.answer()
            if self.on_broken is not None:
                self.on_broken(self, error)
            self.abort()
            return 0
        if self.is_ended:
            INCOMING.read()  # behind a goodbye: nobody gets it, and least of all the next link
        self.answer()
        self.received_bytes += got
        if got and not self.is_over:
            if self.large is not None:
                self.fill_plain(got)
            elif self.fast_path is None or kept or not self.is_taken(got):
                self.offer(VIEW, kept + got)
        if self.is_ended:
            self.close()
        return 0

    cdef Py_ssize_t decrypt(self, Py_ssize_t at) except -1:
        """All records of INCOMING into RECEIVED from ``at`` on; how much that is."""
        cdef Py_ssize_t began = at, got
        try:
            while INCOMING.pending:  # to ask for one more than there are is to get an exception
                got = self.read_plain(RECEIVED_MAX - at, VIEW[at:] if at else VIEW)
                if got == 0:
                    self.is_ended = True
                    break
                at += got
        except WantRead:
            pass  # the last was no data but, for instance, new keys
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        return at - began

    cdef int fill_plain(self, Py_ssize_t got) except -1:
        """Of what is in RECEIVED, what belongs to a large packet goes there."""
        cdef Py_ssize_t at = 0, part, size
        while self.large is not None and at < got:
            size = PyByteArray_GET_SIZE(self.large)
            part = min(got - at, size - self.large_bytes)
            memcpy(PyByteArray_AS_STRING(self.large) + self.large_bytes, RECEIVED + at, part)
            at += part
            if self.large_bytes + part == self.large_wanted and at < got:
                # What is told of it may lead to other links being read, into the same buffer.
                return self.fill_before(part, PyBytes_FromStringAndSize(RECEIVED + at, got - at))
            self.fill(part)
        return 0

    cdef int fill_before(self, Py_ssize_t part, bytes behind) except -1:
        """The last of a large packet, and what came behind it."""
        cdef bytes kept
        self.fill(part)
        if self.is_deaf or self.is_closing:
            return 0
        kept = self.unread  # nothing, unless the packet had to wait
        self.large = None
        self.tail = kept + behind
        self.note_kept(PyBytes_GET_SIZE(self.tail))
        self._read_rest()
        return 0

    cdef int answer(self) except -1:
        """OpenSSL answers by itself: alerts, new keys."""
        if not OUTGOING.pending:
            return 0
        records = take_outgoing()
        if not self.unsent_bytes:
            self.control_bytes = 0
        self.control_bytes += len(records)
        if self.control_bytes > CONTROL_MAX:
            self.abort()
        else:
            self.send_records(records)
        return 0

    # --- out ---

    cdef int send_records(self, records) except -1:
        """What is sent counts as what was said, not as what TLS makes of it."""
        cdef long long before = self.sent_bytes
        TcpLink.write(self, records)
        self.sent_bytes = before
        return 0

    cdef int put(self, const char *data, Py_ssize_t size) except -1:
        self.write(PyBytes_FromStringAndSize(data, size))
        return 0

    def write(self, bytes data not None):
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data), at = 0, stop
        if self.is_closing or self.is_finishing:
            return
        self.sent_bytes += size
        if size <= ENCRYPT_MAX:
            at = self.write_plain(data)
            self.send_records(take_outgoing())
        view = memoryview(data) if at < size else None
        while at < size and not self.is_closing:
            stop = min(at + ENCRYPT_MAX, size)
            while at < stop:
                at += self.write_plain(view[at:stop])
            self.send_records(take_outgoing())

    # --- the end ---

    cdef int say_goodbye(self) except -1:
        """That nothing follows: without it a peer can't tell an end from a cut."""
        if self.is_told_goodbye or self.is_closing or not self.is_established:
            return 0
        self.is_told_goodbye = True
        try:
            self.tls.unwrap()
        except TlsError:
            pass  # it wants to hear the same of the peer, and we do not wait for that
        records = take_outgoing()
        if records:
            self.send_records(records)
        return 0

    def finish(self):
        if not (self.is_closing or self.is_finishing):
            self.say_goodbye()
            TcpLink.finish(self)

    def close(self):
        self.say_goodbye()
        TcpLink.close(self)

    cdef int lost(self) except -1:
        self.tls = self.read_plain = self.write_plain = None
        self.rest = b""
        return TcpLink.lost(self)
