"""The client's side of AMQP under load: publishes out, confirms and deliveries in, all checked.

Every body opens with a stamp (``wire/arrivals``). Its sequence is, on a channel of its own, the
confirm's delivery tag too.
Time is an argument, as everywhere in ``wire``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from braidmq.wire.amqp.frames cimport (
    ACK, ACK_FRAME_BYTES, DELIVER, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD,
    FRAME_OVERHEAD, NACK, be16, be32, be64, put_answer,
)
from braidmq.loadgen.arrivals cimport Arrivals, Histogram, Stamp

from braidmq.wire.amqp.client import PublishBatch, publish_head

# --- out ---


cdef class Publisher:
    """One producer: renders its publishes and keeps the account of its confirms.

    ``window`` is how many may be unconfirmed, 0 for a channel without confirms. Routing keys are
    taken in turn.
    """
    cdef list templates
    cdef Py_ssize_t turn
    cdef Py_ssize_t stamp_from_end
    cdef uint32_t run
    cdef uint32_t producer
    cdef uint64_t *sent_ns    # a ring by tag; 0 is settled
    cdef uint64_t mask
    cdef uint64_t oldest      # no tag below it is unsettled
    cdef Histogram latency
    cdef readonly uint64_t published
    cdef readonly uint64_t confirmed
    cdef readonly uint64_t nacked
    cdef readonly uint64_t strange      # confirms of what was not outstanding
    cdef readonly Py_ssize_t window

    def __cinit__(
        self, uint16_t channel, bytes exchange, list keys, bytes properties, Py_ssize_t body_bytes,
        uint32_t run, uint32_t producer, Py_ssize_t window, Histogram latency,
    ):
        cdef uint64_t ring = 1
        if body_bytes < <Py_ssize_t>sizeof(Stamp):
            raise ValueError(f"a body has at least {sizeof(Stamp)} bytes")
        self.templates = [
            template(channel, exchange, key, properties, body_bytes) for key in keys]
        self.stamp_from_end = body_bytes + 1
        self.run = run
        self.producer = producer
        self.window = window
        self.latency = latency
        self.oldest = 1
        while ring < <uint64_t>window + 1:
            ring *= 2
        self.mask = ring - 1
        self.sent_ns = <uint64_t *>calloc(ring, sizeof(uint64_t))
        if self.sent_ns == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.sent_ns)

    @property
    def room(self):
        """How many more fit in the window."""
        return self.window - <Py_ssize_t>(self.published + 1 - self.oldest)

    @property
    def outstanding(self):
        return self.published - self.confirmed - self.nacked if self.window else 0

    def render(self, Py_ssize_t count, uint64_t now_ns):
        """The next ``count`` publishes, all stamped with ``now_ns``."""
        cdef Py_ssize_t kinds = len(self.templates), _i, at = self.turn, total = 0
        cdef bytes one = self.templates[0], out
        cdef uint8_t *p
        cdef Stamp stamp = Stamp(self.run, self.producer, 0, now_ns)
        if self.window and count > self.window - <Py_ssize_t>(self.published + 1 - self.oldest):
            raise ValueError("more than the window has room for")
        if kinds == 1:
            total = count * len(one)
        else:
            for _i in range(count):
                one = self.templates[at]
                total += len(one)
                at = at + 1 if at + 1 < kinds else 0
        out = PyBytes_FromStringAndSize(NULL, total)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        for _i in range(count):
            if kinds > 1:
                one = self.templates[self.turn]
                self.turn = self.turn + 1 if self.turn + 1 < kinds else 0
            memcpy(p, PyBytes_AS_STRING(one), len(one))
            p += len(one)
            self.published += 1
            stamp.sequence = self.published
            memcpy(p - self.stamp_from_end, &stamp, sizeof(Stamp))
            if self.window:
                self.sent_ns[self.published & self.mask] = now_ns
        return out

    cdef void settle(self, uint64_t tag, bint multiple, bint positive, uint64_t now_ns) noexcept:
        cdef uint64_t each, first = self.oldest if multiple else tag
        if multiple and tag == 0:
            tag = self.published
        if first < self.oldest or tag > self.published or first > tag:
            self.strange += 1
            return
        for each in range(first, tag + 1):
            if self.sent_ns[each & self.mask] == 0:
                self.strange += not multiple
                continue
            if positive:
                self.latency.put(now_ns - self.sent_ns[each & self.mask])
                self.confirmed += 1
            else:
                self.nacked += 1
            self.sent_ns[each & self.mask] = 0
        while self.oldest <= self.published and self.sent_ns[self.oldest & self.mask] == 0:
            self.oldest += 1


cdef bytes template(
    uint16_t channel, bytes exchange, bytes key, bytes properties, Py_ssize_t body_bytes
):
    """One publish: method, header and body frame, without its stamp."""
    one = PublishBatch()
    one.add(publish_head(channel, exchange, key), properties, b"b" * body_bytes)
    return one.render(0, 0)


# --- in ---


cdef class Consumer:
    """One consumer's delivery tags. ``ack_every`` 0 is a consumer that need not acknowledge."""
    cdef readonly uint16_t channel
    cdef readonly uint64_t delivered    # its last delivery tag
    cdef readonly uint64_t acked
    cdef readonly uint64_t strange      # tags that were not the next
    cdef readonly uint64_t ack_every

    def __cinit__(self, uint16_t channel, uint64_t ack_every):
        self.channel = channel
        self.ack_every = ack_every

    def acks(self, bint all=False):
        """Acknowledgements due, one frame for each ``ack_every`` deliveries; ``all``: of the
        rest too."""
        cdef uint64_t count, last = self.acked
        cdef bytes out
        cdef uint8_t *p
        if self.ack_every == 0:
            return b""
        count = (self.delivered - self.acked) // self.ack_every
        if all and (self.delivered - self.acked) % self.ack_every:
            count += 1
        out = PyBytes_FromStringAndSize(NULL, count * ACK_FRAME_BYTES)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        while count:
            last = min(last + self.ack_every, self.delivered)
            p = put_answer(p, self.channel, ACK, last, self.ack_every > 1)
            count -= 1
        self.acked = last
        return out


cdef Py_ssize_t delivery(
    const uint8_t *p, Py_ssize_t size, Consumer consumer, Arrivals arrivals, uint64_t now_ns
) except -2:
    """Take the delivery at ``p``: how many bytes it was, 0 if more are to come, -1 if it is not
    three frames in a row."""
    cdef Py_ssize_t method = <Py_ssize_t>be32(p + 3) + FRAME_OVERHEAD, header, whole
    cdef const uint8_t *field = p + 12 + p[11]
    cdef uint64_t body
    if method < 12 + p[11] + 9 + FRAME_OVERHEAD - 7:
        return -1
    if size < method + 19:
        return 0
    if p[method] != FRAME_HEADER:
        return -1
    header = <Py_ssize_t>be32(p + method + 3) + FRAME_OVERHEAD
    body = be64(p + method + 11)
    whole = method + header + <Py_ssize_t>body + FRAME_OVERHEAD
    if body < <Py_ssize_t>sizeof(Stamp):
        return -1
    if size < whole:
        return 0
    if (
        p[method + header] != FRAME_BODY or be32(p + method + header + 3) != body
        or p[whole - 1] != FRAME_END
    ):
        return -1
    consumer.strange += be64(field) != consumer.delivered + 1
    consumer.delivered = be64(field)
    arrivals.put(p + method + header + 7, body, field[8] & 1, now_ns)
    return whole


def scan(
    const unsigned char[::1] data, Py_ssize_t size, Publisher publisher, Consumer consumer,
    Arrivals arrivals, uint64_t now_ns,
):
    """Take confirms and deliveries from the first ``size`` bytes.

    Gives how many bytes whole frames took, and every other frame as ``(kind, channel, payload)``.
    Without a publisher (a consumer) its frames are among the others.
    """
    cdef const uint8_t *p
    cdef list others = []
    cdef Py_ssize_t at = 0, length, took
    cdef uint32_t ids
    while size - at >= 7:
        p = &data[at]
        length = be32(p + 3)
        if size - at < length + FRAME_OVERHEAD:
            break
        if p[7 + length] != FRAME_END:
            raise ValueError("frame does not end with the frame-end octet")
        ids = be32(p + 7) if p[0] == FRAME_METHOD and length >= 13 else 0
        if ids == DELIVER and consumer is not None:
            took = delivery(p, size - at, consumer, arrivals, now_ns)
            if took == 0:
                break
            if took < 0:
                raise ValueError("a delivery that is not a method, a header and one body frame")
            at += took
            continue
        if (ids == ACK or ids == NACK) and publisher is not None:
            publisher.settle(be64(p + 11), p[19] & 1, ids == ACK, now_ns)
        else:
            others.append((
                p[0], be16(p + 1), PyBytes_FromStringAndSize(<const char *>p + 7, length)))
        at += length + FRAME_OVERHEAD
    return at, others
