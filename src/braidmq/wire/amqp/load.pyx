"""The client's side of AMQP under load: publishes out, confirms and deliveries in, all checked.

Every body opens with what the far end needs to check it, big-endian; the rest is filler:

    ┌────────┬──────────┬──────────┬────────────────────┐
    │ run    │ producer │ sequence │ sent at, ns        │
    └────────┴──────────┴──────────┴────────────────────┘
      4 bytes  4 bytes    8 bytes    8 bytes              BODY_BYTES_MIN in all

A producer's sequence starts at 1, so on a channel of its own it is the confirm's delivery tag too.
Time is an argument, as everywhere in ``wire``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from braidmq.wire.amqp.frames cimport (
    ACK, ACK_FRAME_BYTES, DELIVER, FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_METHOD,
    FRAME_OVERHEAD, NACK, be16, be32, be64, put32, put64, put_answer,
)

from braidmq.wire.amqp.client import PublishBatch, publish_head

BODY_BYTES_MIN = 24

cdef enum:
    STAMP_BYTES = 24
    STEPS = 64                # an octave of a histogram: a bucket is at most 1.6 % wide
    STEP_BITS = 6
    BUCKETS = STEPS * 42      # 2 ** 47 ns are 39 hours


# --- durations ---


cdef class Histogram:
    """Durations in nanoseconds, in buckets that widen with the duration."""
    cdef uint64_t counts[BUCKETS]
    cdef readonly uint64_t total
    cdef readonly int64_t max_ns

    def __cinit__(self):
        self.clear()

    def clear(self):
        memset(self.counts, 0, sizeof(self.counts))
        self.total = 0
        self.max_ns = 0

    cdef inline void put(self, int64_t ns) noexcept:
        cdef int64_t scaled = ns if ns > 0 else 0
        cdef int shift = 0
        if scaled > self.max_ns:
            self.max_ns = scaled
        while scaled >= 2 * STEPS:
            scaled >>= 1
            shift += 1
        scaled += shift * STEPS
        self.counts[scaled if scaled < BUCKETS else BUCKETS - 1] += 1
        self.total += 1

    def add(self, int64_t ns):
        self.put(ns)

    def percentile(self, double percent):
        """The upper edge of the bucket that ``percent`` of all durations do not pass."""
        cdef uint64_t wanted = <uint64_t>(self.total * percent / 100)
        cdef uint64_t seen = 0
        cdef int i, shift
        for i in range(BUCKETS):
            seen += self.counts[i]
            if seen > wanted:
                shift = i // STEPS - 1 if i >= 2 * STEPS else 0
                return min((<int64_t>(i - shift * STEPS + 1) << shift) - 1, self.max_ns)
        return self.max_ns


# --- out ---


cdef class Publisher:
    """One producer: renders its publishes and keeps the account of its confirms.

    ``window`` is how many may be unconfirmed, 0 for a channel without confirms. Routing keys are
    taken in turn.
    """
    cdef list templates
    cdef Py_ssize_t turn
    cdef Py_ssize_t stamp_from_end
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
        if body_bytes < STAMP_BYTES:
            raise ValueError(f"a body has at least {STAMP_BYTES} bytes")
        self.templates = [
            template(channel, exchange, key, properties, body_bytes, run, producer) for key in keys
        ]
        self.stamp_from_end = body_bytes + 1 - 8
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
            put64(put64(p - self.stamp_from_end, self.published), now_ns)
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
    uint16_t channel, bytes exchange, bytes key, bytes properties, Py_ssize_t body_bytes,
    uint32_t run, uint32_t producer,
):
    """One publish: method, header and body frame, without its sequence and time."""
    cdef bytes body = b"b" * body_bytes
    put32(put32(<uint8_t *>PyBytes_AS_STRING(body), run), producer)
    one = PublishBatch()
    one.add(publish_head(channel, exchange, key), properties, body)
    return one.render(0, 0)


# --- in ---


cdef struct Seen:
    uint8_t *bits
    uint64_t capacity
    uint64_t highest


cdef class Arrivals:
    """What came of each producer's sequence: once, twice, late, never."""
    cdef Seen *seen
    cdef uint32_t producers
    cdef uint32_t run
    cdef Histogram latency
    cdef readonly uint64_t received     # each sequence number counted once
    cdef readonly uint64_t duplicated
    cdef readonly uint64_t reordered    # first seen behind a later one of its producer
    cdef readonly uint64_t redelivered  # had the flag
    cdef readonly uint64_t foreign      # not of this run

    def __cinit__(self, uint32_t run, uint32_t producers, Histogram latency):
        self.run = run
        self.producers = producers
        self.latency = latency
        self.seen = <Seen *>calloc(producers, sizeof(Seen))
        if self.seen == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef uint32_t i
        if self.seen != NULL:
            for i in range(self.producers):
                free(self.seen[i].bits)
            free(self.seen)

    cdef int grow(self, Seen *seen, uint64_t sequence) except -1:
        cdef uint64_t wanted = 2 * max(seen.capacity, sequence + 1)
        cdef uint8_t *bits
        wanted = (wanted + 7) // 8 * 8
        bits = <uint8_t *>realloc(seen.bits, wanted // 8)
        if bits == NULL:
            raise MemoryError
        memset(bits + seen.capacity // 8, 0, (wanted - seen.capacity) // 8)
        seen.bits = bits
        seen.capacity = wanted
        return 0

    cdef int put(
        self, const uint8_t *body, uint64_t length, bint redelivered, uint64_t now_ns
    ) except -1:
        cdef Seen *seen
        cdef uint64_t sequence
        cdef uint8_t bit
        if length < STAMP_BYTES or be32(body) != self.run or be32(body + 4) >= self.producers:
            self.foreign += 1
            return 0
        seen = self.seen + be32(body + 4)
        sequence = be64(body + 8)
        if sequence >= seen.capacity:
            if sequence > 1 << 40:
                self.foreign += 1
                return 0
            self.grow(seen, sequence)
        self.redelivered += redelivered
        bit = 1 << (sequence & 7)
        if seen.bits[sequence >> 3] & bit:
            self.duplicated += 1
            return 0
        seen.bits[sequence >> 3] |= bit
        self.received += 1
        if sequence > seen.highest:
            seen.highest = sequence
        else:
            self.reordered += 1
        self.latency.put(<int64_t>(now_ns - be64(body + 16)))
        return 0


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
    if body < STAMP_BYTES:
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
