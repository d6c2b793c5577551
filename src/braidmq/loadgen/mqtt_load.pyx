"""The client's side of MQTT under load: publishes out, answers and deliveries in, all checked.

Every payload opens with a stamp (``wire/arrivals``). A publisher's packet ids follow its sequence:
message 1 has id 1, message 65536 again. Messages of QoS 2 count as confirmed with their PUBCOMP.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from braidmq.loadgen.arrivals cimport Arrivals, Histogram, Stamp
from braidmq.wire.mqtt.fields cimport be16, put16, put_variable, read_variable, variable_bytes

cdef enum:
    V5 = 5
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    ACK_BYTES = 4
    IDS = 0xffff
    ERROR = 0x80


# --- answers that are due ---


cdef struct Answers:
    uint8_t *data
    Py_ssize_t size
    Py_ssize_t capacity


cdef int put_ack(Answers *answers, int kind, uint16_t packet_id) except -1:
    cdef uint8_t *grown
    if answers.size + ACK_BYTES > answers.capacity:
        answers.capacity = max(2 * answers.capacity, 4096)
        grown = <uint8_t *>realloc(answers.data, answers.capacity)
        if grown == NULL:
            raise MemoryError
        answers.data = grown
    answers.data[answers.size] = kind << 4 | (2 if kind == PUBREL else 0)
    answers.data[answers.size + 1] = 2
    put16(answers.data + answers.size + 2, packet_id)
    answers.size += ACK_BYTES
    return 0


cdef bytes taken(Answers *answers):
    cdef bytes out = PyBytes_FromStringAndSize(<const char *>answers.data, answers.size)
    answers.size = 0
    return out


# --- out ---


cdef class Publisher:
    """One producer: renders its publishes, keeps the account of their answers, and releases what
    was received of QoS 2. ``window`` is how many may be unanswered; at QoS 0 nobody answers."""
    cdef bytes template
    cdef Py_ssize_t body_bytes
    cdef bint modern
    cdef Stamp stamp
    cdef uint64_t *sent_ns    # a ring by sequence; 0 is settled
    cdef uint8_t *received    # the same of PUBREC
    cdef uint64_t mask
    cdef uint64_t oldest      # nothing below it is unsettled
    cdef Answers due
    cdef Histogram latency
    cdef readonly int qos
    cdef readonly uint64_t published
    cdef readonly uint64_t confirmed
    cdef readonly uint64_t nacked
    cdef readonly uint64_t strange      # answers to what was not outstanding
    cdef readonly Py_ssize_t window

    def __cinit__(
        self, bytes topic, int qos, int version, Py_ssize_t body_bytes, uint32_t run,
        uint32_t producer, Py_ssize_t window, Histogram latency,
    ):
        cdef uint64_t ring = 1
        if body_bytes < <Py_ssize_t>sizeof(Stamp):
            raise ValueError(f"a body has at least {sizeof(Stamp)} bytes")
        if not (0 < window <= IDS if qos else window == 0):
            raise ValueError("a window from 1 to 65535 above QoS 0, and none below")
        self.template = template(topic, qos, version, body_bytes)
        self.body_bytes = body_bytes
        self.modern = version == V5
        self.stamp = Stamp(run, producer, 0, 0)
        self.qos = qos
        self.window = window
        self.latency = latency
        self.oldest = 1
        while ring < <uint64_t>window + 1:
            ring *= 2
        self.mask = ring - 1
        self.sent_ns = <uint64_t *>calloc(ring, sizeof(uint64_t))
        self.received = <uint8_t *>calloc(ring, 1)
        if self.sent_ns == NULL or self.received == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.sent_ns)
        free(self.received)
        free(self.due.data)

    @property
    def room(self):
        """How many more fit in the window."""
        return self.window - <Py_ssize_t>(self.published + 1 - self.oldest)

    @property
    def outstanding(self):
        return self.published - self.confirmed - self.nacked if self.window else 0

    def render(self, Py_ssize_t count, uint64_t now_ns):
        """The next ``count`` publishes, all stamped with ``now_ns``."""
        cdef Py_ssize_t _i, size = len(self.template)
        cdef Py_ssize_t id_at = size - self.body_bytes - self.modern - 2
        cdef bytes out
        cdef uint8_t *p
        if self.window and count > self.window - <Py_ssize_t>(self.published + 1 - self.oldest):
            raise ValueError("more than the window has room for")
        out = PyBytes_FromStringAndSize(NULL, count * size)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        self.stamp.sent_ns = now_ns
        for _i in range(count):
            memcpy(p, PyBytes_AS_STRING(self.template), size)
            self.published += 1
            self.stamp.sequence = self.published
            memcpy(p + size - self.body_bytes, &self.stamp, sizeof(Stamp))
            if self.window:
                put16(p + id_at, <uint16_t>((self.published - 1) % IDS + 1))
                self.sent_ns[self.published & self.mask] = now_ns
            p += size
        return out

    def answers(self):
        """PUBREL for what was received meanwhile."""
        return taken(&self.due)

    cdef int settle(self, int kind, uint16_t packet_id, uint8_t reason, uint64_t now_ns) except -1:
        cdef uint64_t sequence = (
            self.oldest + (packet_id - 1 + IDS - (self.oldest - 1) % IDS) % IDS)
        cdef uint64_t at = sequence & self.mask
        if (
            sequence > self.published or self.sent_ns[at] == 0
            or kind != (PUBACK if self.qos == 1 else PUBCOMP if self.received[at] else PUBREC)
        ):
            self.strange += 1
            return 0
        if kind == PUBREC and reason < ERROR:
            self.received[at] = 1
            return put_ack(&self.due, PUBREL, packet_id)
        if reason >= ERROR:
            self.nacked += 1
        else:
            self.latency.put(now_ns - self.sent_ns[at])
            self.confirmed += 1
        self.sent_ns[at] = self.received[at] = 0
        while self.oldest <= self.published and self.sent_ns[self.oldest & self.mask] == 0:
            self.oldest += 1
        return 0


cdef bytes template(bytes topic, int qos, int version, Py_ssize_t body_bytes):
    """One PUBLISH, without its packet id and stamp."""
    cdef Py_ssize_t length = 2 + len(topic) + (2 if qos else 0) + (version == V5) + body_bytes
    cdef bytes head = PyBytes_FromStringAndSize(NULL, 1 + variable_bytes(length) + 2)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(head)
    p[0] = PUBLISH << 4 | qos << 1
    put16(put_variable(p + 1, length), <uint16_t>len(topic))
    return b"".join((
        head, topic, b"\0\0" if qos else b"", b"\0" if version == V5 else b"", b"b" * body_bytes))


# --- in ---


cdef class Subscriber:
    """One subscriber: answers what it receives, and takes nothing of QoS 2 twice."""
    cdef Answers due
    cdef uint8_t *open        # packet ids of QoS 2 that were not released
    cdef readonly Arrivals arrivals
    cdef readonly int version
    cdef readonly uint64_t strange      # releases of what was not received

    def __cinit__(self, Arrivals arrivals not None, int version):
        self.arrivals = arrivals
        self.version = version
        self.open = <uint8_t *>calloc(IDS + 1, 1)
        if self.open == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.open)
        free(self.due.data)

    def answers(self):
        """PUBACK, PUBREC and PUBCOMP for what was received meanwhile."""
        return taken(&self.due)

    cdef int deliver(self, const uint8_t *p, uint32_t length, int flags, uint64_t now_ns) except -1:
        cdef const uint8_t *end = p + length
        cdef int qos = flags >> 1 & 3, size
        cdef uint16_t packet_id = 0
        cdef uint32_t properties
        if end - p < 2 or end - p - 2 < be16(p) + (2 if qos else 0):
            raise ValueError("a PUBLISH that ends inside its topic")
        p += 2 + be16(p)
        if qos:
            packet_id = be16(p)
            p += 2
        if self.version == V5:
            size = read_variable(p, end, True, &properties)
            if size <= 0 or end - p - size < <Py_ssize_t>properties:
                raise ValueError("a PUBLISH that ends inside its properties")
            p += size + properties
        if qos:
            put_ack(&self.due, PUBACK if qos == 1 else PUBREC, packet_id)
        if qos == 2:
            if self.open[packet_id]:
                self.arrivals.redelivered += 1
                return 0
            self.open[packet_id] = 1
        return self.arrivals.put(p, end - p, flags >> 3 & 1, now_ns)

    cdef int release(self, uint16_t packet_id) except -1:
        self.strange += not self.open[packet_id]
        self.open[packet_id] = 0
        return put_ack(&self.due, PUBCOMP, packet_id)


def scan(
    const unsigned char[::1] data, Py_ssize_t size, Publisher publisher, Subscriber subscriber,
    uint64_t now_ns,
):
    """Take answers and deliveries from the first ``size`` bytes.

    Gives how many bytes whole packets took, and every other packet as ``(kind, flags, body)``.
    Without a publisher (a subscriber) its packets are among the others.
    """
    cdef const uint8_t *p
    cdef list others = []
    cdef Py_ssize_t at = 0
    cdef uint32_t length
    cdef int kind, head
    while size - at >= 2:
        p = &data[at]
        head = read_variable(p + 1, p + size - at, False, &length)
        if head < 0:
            raise ValueError("a packet whose length is none")
        if head == 0 or size - at - 1 - head < <Py_ssize_t>length:
            break
        kind = p[0] >> 4
        at += 1 + head + length
        if kind == PUBLISH and subscriber is not None:
            subscriber.deliver(p + 1 + head, length, p[0] & 15, now_ns)
        elif kind == PUBREL and subscriber is not None and length >= 2:
            subscriber.release(be16(p + 2))
        elif PUBACK <= kind <= PUBCOMP and publisher is not None and length >= 2:
            publisher.settle(kind, be16(p + 2), p[4] if length > 2 else 0, now_ns)
        else:
            others.append((
                kind, p[0] & 15,
                PyBytes_FromStringAndSize(<const char *>p + 1 + head, length)))
    return at, others
