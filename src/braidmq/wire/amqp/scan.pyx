"""From bytes of a socket to runs of messages: the AMQP scanner.

    publish:  method frame │ content header frame │ body frame      one channel, nothing between
    ack:      method frame, method frame, …                         one channel, rising tags

Consecutive publishes of one channel to one exchange and key become one event with a batch that is
encoded already; so do those with other keys that the caller knows to lead to the same place.
Consecutive acknowledgements become a range. Everything else, and every publish
that is not these three frames in a row (bodies of several frames, channels interleaved), is handed
out frame by frame. The scanner keeps no state between calls: what is not complete stays in the
caller's buffer.

The envelope of a record that came over AMQP, format 1:

    ┌────────┬──────────┬────────┬─────────────┬────────────────────────────────┐
    │ length │ exchange │ length │ routing key │ property flags and properties  │
    └────────┴──────────┴────────┴─────────────┴────────────────────────────────┘
      1 byte              1 byte                 as in the content header frame
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memchr, memcmp, memcpy

from braidmq.record.batch cimport TRANSIENT, RecordBatch, seal_header
from braidmq.wire.amqp.frames cimport (
    ACK, COMPLETE, FRAME_END, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD, Found, INCOMPLETE,
    NOT_A_RUN, PUBLISH, be16, be32, be64, field_bytes, is_named, whole_body,
)

cdef extern from "string.h" nogil:
    void *memmem(const void *haystack, size_t n, const void *needle, size_t m)

EVENT_FRAME = 0
EVENT_PUBLISH = 1
EVENT_ACK = 2
EVENT_ERROR = 3

FLAG_MANDATORY = 1
FLAG_IMMEDIATE = 2
FLAG_TRANSIENT = 4
FLAG_HEADERS = 8
FLAG_COPIES = 16
FLAG_USER_ID = 32
FLAG_REPLY_TO = 64
FLAG_BAD_EXPIRATION = 128
FLAG_BAD_PROPERTIES = 256
FLAG_BAD_MODE = 512
FLAG_BAD_TIME = 1024
FLAG_BAD_PLACE = 2048
FLAG_PARTITION = 4096
"""Flags from this one on say which partition a run is for: ``partition_in``."""

ENVELOPE_AMQP = 1

cdef enum:
    MANDATORY = 1
    IMMEDIATE = 2
    TRANSIENT_RUN = 4
    HEADERS = 8          # has a headers table
    COPIES = 16          # … that may hold CC or BCC
    USER_ID = 32
    REPLY_TO = 64        # asks for direct reply-to
    BAD_EXPIRATION = 128
    BAD_PROPERTIES = 256
    BAD_MODE = 512       # neither transient nor persistent
    BAD_TIME = 1024      # x-delay or x-deliver-at is no number, or both are there
    BAD_PLACE = 2048     # x-partition or x-key is none
    PARTITION_AT = 12    # from this bit on: one more than the partition it is for, or 0
    PARTITION_MAX = 0xffff

    # Publishes with anything else are looked at singly, so each run has just one key.
    MIXABLE = MANDATORY | TRANSIENT_RUN | HEADERS

cdef enum:
    RUN_BYTES_MAX = 1 << 20
    KEY_BYTES_MAX = 65535
    DATED_DUE = 1
    DATED_EXPIRY = 2

cdef int64_t TIME_MAX_MS = 1 << 53   # as in a topic's policy: added to a date it is still 64 bits


cdef struct Publish:
    const uint8_t *exchange
    const uint8_t *key
    const uint8_t *properties
    const uint8_t *body
    Py_ssize_t properties_length
    Py_ssize_t body_length
    Py_ssize_t end
    int flags
    uint8_t priority
    int64_t expiration_ms
    const uint8_t *record_key     # NULL: none
    Py_ssize_t record_key_length
    int64_t delay_ms
    int64_t deliver_at_ms


cdef bint read_properties(Publish *found) noexcept:
    """Note what routing and storage must know of the properties; the rest stays bytes."""
    cdef const uint8_t *p = found.properties
    cdef const uint8_t *end = p + found.properties_length
    cdef uint32_t length
    cdef uint16_t flags
    cdef int bit
    cdef bint persistent = False
    found.priority = 0
    found.expiration_ms = -1
    found.record_key = NULL
    found.record_key_length = 0
    found.delay_ms = 0
    found.deliver_at_ms = 0
    if end - p < 2:
        return False
    flags = be16(p)
    if flags & 3:
        return False  # more than 14 properties are not defined for this class
    p += 2
    for bit in range(15, 1, -1):
        if not flags >> bit & 1:
            continue
        if bit == 13:
            if end - p < 4:
                return False
            length = be32(p)
            if end - p - 4 < length:
                return False
            found.flags |= HEADERS
            if memmem(p + 4, length, b"CC", 2) != NULL:
                found.flags |= COPIES
            if memmem(p + 4, length, b"x-", 2) != NULL:
                read_headers(p + 4, p + 4 + length, found)
            p += 4 + length
        elif bit == 12 or bit == 11:
            if end - p < 1:
                return False
            if bit == 12:
                persistent = p[0] == 2
                if p[0] != 1 and p[0] != 2:
                    found.flags |= BAD_MODE
            else:
                found.priority = p[0]
            p += 1
        elif bit == 6:
            if end - p < 8:
                return False
            p += 8
        else:
            if end - p < 1 or end - p - 1 < p[0]:
                return False
            if bit == 8:
                found.expiration_ms = decimal(p + 1, p[0])
                if found.expiration_ms < 0:
                    found.flags |= BAD_EXPIRATION
            elif bit == 4:
                found.flags |= USER_ID
            elif bit == 9 and p[0] == 21 and memcmp(p + 1, b"amq.rabbitmq.reply-to", 21) == 0:
                found.flags |= REPLY_TO
            p += 1 + p[0]
    if not persistent:
        found.flags |= TRANSIENT_RUN
    return p == end


cdef inline int64_t field_integer(const uint8_t *p) noexcept:
    """The number of a field; 0 for what is none."""
    cdef uint8_t kind = p[0]
    if kind == c'b':
        return <int8_t>p[1]
    if kind == c'B':
        return p[1]
    if kind == c's':
        return <int16_t>be16(p + 1)
    if kind == c'u':
        return be16(p + 1)
    if kind == c'I':
        return <int32_t>be32(p + 1)
    if kind == c'i':
        return be32(p + 1)
    if kind == c'l' or kind == c'L':
        return <int64_t>be64(p + 1)
    return 0


cdef inline bint is_integer(uint8_t kind) noexcept:
    return memchr(b"bBsuIilL", kind, 8) != NULL


cdef void read_headers(const uint8_t *p, const uint8_t *end, Publish *found) noexcept:
    """Key and due time, which AMQP has no properties for:

        x-key          text or bytes    the record's key: its partition, and its order
        x-delay        integer          milliseconds from now
        x-deliver-at   integer          milliseconds since the epoch
        x-partition    integer          where it goes, whatever its key

    Of two with one name the first counts; behind what is no field nothing is read. A time that
    is no integer, or given in both ways, is BAD_TIME: at once is not what was asked for. A key
    that is neither or too long is BAD_PLACE: without it the order would be lost.
    """
    cdef const uint8_t *name
    cdef Py_ssize_t length
    cdef bint key_seen = False, delay_seen = False, time_seen = False, partition_seen = False
    while end - p >= 2 and end - p - 1 > p[0]:
        name = p
        p += 1 + p[0]
        length = field_bytes(p, end)
        if length < 0 or end - p - 1 < length:
            return
        if is_named(name, "x-key", 5) and not key_seen:
            key_seen = True
            if (p[0] != c'S' and p[0] != c'x') or length - 4 > KEY_BYTES_MAX:
                found.flags |= BAD_PLACE
            else:
                found.record_key = p + 5
                found.record_key_length = length - 4
        elif is_named(name, "x-delay", 7) and not delay_seen:
            delay_seen = True
            if time_seen or not is_integer(p[0]):
                found.flags |= BAD_TIME
            found.delay_ms = min(max(field_integer(p), 0), TIME_MAX_MS)
        elif is_named(name, "x-deliver-at", 12) and not time_seen:
            time_seen = True
            if delay_seen or not is_integer(p[0]):
                found.flags |= BAD_TIME
            found.deliver_at_ms = min(max(field_integer(p), 0), TIME_MAX_MS)
        elif is_named(name, "x-partition", 11) and not partition_seen:
            partition_seen = True
            found.flags |= partition_flags(p)
        p += 1 + length


cdef int partition_flags(const uint8_t *p) noexcept:
    """What a field says of the partition a message is for."""
    cdef int64_t number = field_integer(p)
    if not is_integer(p[0]) or number < 0 or number > PARTITION_MAX:
        return BAD_PLACE
    return <int>(number + 1) << PARTITION_AT


def partition_in(int flags):
    """The partition that the messages of a run name; None where they go by key or in turn."""
    return (flags >> PARTITION_AT) - 1 if flags >> PARTITION_AT else None


cdef int64_t decimal(const uint8_t *p, int length) noexcept:
    """A number of milliseconds as text; -1 for anything else."""
    cdef int64_t value = 0
    cdef int i
    if length == 0 or length > 15:
        return -1
    for i in range(length):
        if p[i] < 48 or p[i] > 57:
            return -1
        value = 10 * value + p[i] - 48
    return value


cdef Found read_publish(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t size, uint32_t frame_max, Publish *found
) noexcept:
    """Whether a publish of three (for an empty body two) frames begins at ``at``."""
    cdef const uint8_t *p = data + at
    cdef uint32_t length = be32(p + 3)
    cdef uint32_t header_length
    cdef uint64_t body_length
    cdef Py_ssize_t next_frame
    cdef uint8_t bits
    # The caller has seen a whole method frame with the ids of basic.publish.
    if length < 9:
        return NOT_A_RUN
    found.exchange = p + 13
    if 6 + 1 + found.exchange[0] + 1 + 1 > <int>length:
        return NOT_A_RUN
    found.key = found.exchange + 1 + found.exchange[0]
    if 6 + 1 + found.exchange[0] + 1 + found.key[0] + 1 != <int>length:
        return NOT_A_RUN
    bits = found.key[1 + found.key[0]]
    found.flags = (MANDATORY if bits & 1 else 0) | (IMMEDIATE if bits & 2 else 0)
    next_frame = at + length + FRAME_OVERHEAD
    if size - next_frame < 7:
        return INCOMPLETE
    p = data + next_frame
    if p[0] != FRAME_HEADER or p[1] != data[at + 1] or p[2] != data[at + 2]:
        return NOT_A_RUN
    header_length = be32(p + 3)
    if header_length < 14 or header_length > frame_max:
        return NOT_A_RUN
    if size - next_frame < <Py_ssize_t>header_length + FRAME_OVERHEAD:
        return INCOMPLETE
    if p[7 + header_length] != FRAME_END or be16(p + 7) != 60 or be16(p + 9) != 0:
        return NOT_A_RUN
    body_length = be64(p + 11)
    if body_length > frame_max:
        return NOT_A_RUN
    found.properties = p + 19
    found.properties_length = header_length - 12
    found.body_length = body_length
    next_frame += <Py_ssize_t>header_length + FRAME_OVERHEAD
    found.end = next_frame
    if body_length:
        found.body = data + next_frame + 7
        found.end = next_frame + body_length + FRAME_OVERHEAD
        return whole_body(data, size, at, next_frame, body_length)
    found.body = <const uint8_t *>b""
    return COMPLETE


cdef void take_properties(Publish *found, const Publish *before) noexcept:
    """Read the properties, unless they are those of the publish before, as mostly they are."""
    if (
        before.properties != NULL and before.properties_length == found.properties_length
        and memcmp(before.properties, found.properties, found.properties_length) == 0
    ):
        found.flags |= before.flags & ~(MANDATORY | IMMEDIATE)
        found.priority = before.priority
        found.expiration_ms = before.expiration_ms
        found.record_key = before.record_key
        found.record_key_length = before.record_key_length
        found.delay_ms = before.delay_ms
        found.deliver_at_ms = before.deliver_at_ms
    elif not read_properties(found):
        found.flags |= BAD_PROPERTIES


cdef bint is_text(const uint8_t *short_string):
    """Whether it is UTF-8, as names must be."""
    cdef const char *text = <const char *>short_string + 1
    cdef Py_ssize_t i
    for i in range(short_string[0]):
        if text[i] & 0x80:
            break
    else:
        return True
    try:
        text[:short_string[0]].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


cdef str octets(const uint8_t *data, Py_ssize_t length):
    return describe_octets(data[:min(length, 255)])


def describe_octets(bytes data):
    """Bytes as RabbitMQ puts them into its error texts."""
    if not data:
        return "<<>>"
    if all(32 <= byte < 127 for byte in data):
        return f'<<"{data.decode("ascii")}">>'
    return f"<<{','.join(map(str, data))}>>"


cdef class Run:
    """Publishes being gathered: same channel, kind, and exchange and key or known destination."""
    cdef dict destinations
    cdef RecordBatch batch
    cdef uint16_t channel
    cdef int flags
    cdef bytes exchange
    cdef bytes key
    cdef bytes route
    cdef object destination

    cdef bint takes(self, uint16_t channel, const Publish *found) except -1:
        cdef Py_ssize_t length = found.key + 1 + found.key[0] - found.exchange
        if (
            self.batch is None or self.channel != channel or self.flags != found.flags
            or self.batch.size >= RUN_BYTES_MAX
        ):
            return False
        if (
            len(self.route) == length
            and memcmp(PyBytes_AS_STRING(self.route), found.exchange, length) == 0
        ):
            return True
        return (
            self.destination is not None
            and self.destinations.get((<const char *>found.exchange)[:length]) is self.destination
        )

    cdef int begin(self, uint16_t channel, const Publish *found) except -1:
        cdef Py_ssize_t length = found.key + 1 + found.key[0] - found.exchange
        self.batch = RecordBatch()
        self.channel = channel
        self.flags = found.flags
        self.route = PyBytes_FromStringAndSize(<const char *>found.exchange, length)
        self.exchange = self.route[1:1 + found.exchange[0]]
        self.key = self.route[2 + found.exchange[0]:]
        self.destination = None
        if self.destinations is not None and not found.flags & ~MIXABLE:
            self.destination = self.destinations.get(self.route)
        return 0

    cdef int add(self, const Publish *found, int64_t now_ms) except -1:
        """Encode one record; its envelope is put together from the frames."""
        cdef Py_ssize_t route_length = found.key + 1 + found.key[0] - found.exchange
        cdef Py_ssize_t length = route_length + found.properties_length
        cdef uint8_t small[512]
        cdef bytes large = None
        cdef uint8_t *envelope = small
        cdef int64_t expires = 0, due = 0
        if length > <Py_ssize_t>sizeof(small):
            large = PyBytes_FromStringAndSize(NULL, length)
            envelope = <uint8_t *>PyBytes_AS_STRING(large)
        memcpy(envelope, found.exchange, route_length)
        memcpy(envelope + route_length, found.properties, found.properties_length)
        if found.delay_ms:
            due = now_ms + found.delay_ms
        elif found.deliver_at_ms > now_ms:
            due = found.deliver_at_ms
        if found.expiration_ms >= 0:
            # At the earliest in a millisecond: a consumer that is ready now gets it all the same.
            expires = max(now_ms, due) + max(found.expiration_ms, 1)
        self.batch.put(
            found.record_key, found.record_key_length, envelope, length,
            found.body, found.body_length,
            1, TRANSIENT if found.flags & TRANSIENT_RUN else 0, found.priority,
            now_ms, expires, due,
        )
        if due and not found.delay_ms:
            # The wall clock decides a date, and what is counted from it.
            self.batch.header_at(self.batch.count - 1).reserved = DATED_DUE | DATED_EXPIRY
            seal_header(self.batch.header_at(self.batch.count - 1))
        return 0

    cdef int make_room(self, Py_ssize_t rest) except -1:
        """Make the batch as large as it will be if the rest of the bytes is of this run too: a
        record is a little larger than its frames. But not much larger than it is, if not."""
        cdef Py_ssize_t wanted = min(rest + (rest >> 3), 15 * self.batch.size)
        return self.batch.reserve(wanted, wanted // (self.batch.size // self.batch.count))

    cdef int finish(self, list events) except -1:
        if self.batch is not None:
            events.append((
                1, self.channel, self.flags, self.exchange, self.key, self.batch,
                self.destination))
            self.batch = None
        return 0


def scan(data, Py_ssize_t size, uint32_t frame_max, int64_t now_ms,
         bint fast=True, dict destinations=None):
    """Events of the whole frames in the first ``size`` bytes, and how many bytes they took.

    - ``(EVENT_PUBLISH, channel, flags, exchange, key, batch, destination)``: exchange and key are
      those of the first record; where ``destination`` is not None the others may have other keys
    - ``(EVENT_ACK, channel, first tag, last tag, multiple)``
    - ``(EVENT_FRAME, kind, channel, payload)``
    - ``(EVENT_ERROR, reply code, text)``: nothing behind it can be read

    Without ``fast`` everything comes frame by frame. ``destinations`` is what is known of routes,
    the bytes of exchange and key with their lengths: those with the same value are one run.
    """
    # Not a typed memoryview: to make one takes longer than to scan a message.
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if size > view.len:
            raise ValueError("size is beyond the data")
        return scan_bytes(<const uint8_t *>view.buf, size, frame_max, now_ms, fast, destinations)
    finally:
        PyBuffer_Release(&view)


cdef tuple scan_bytes(const uint8_t *base, Py_ssize_t size, uint32_t frame_max, int64_t now_ms,
                      bint fast, dict destinations):
    cdef list events = []
    cdef Run run = Run()
    run.destinations = destinations
    cdef Py_ssize_t at = 0
    cdef uint32_t length, ids
    cdef uint16_t channel
    cdef uint8_t kind
    cdef Publish found, before
    cdef Found outcome
    cdef bint in_acks = False, multiple
    cdef uint16_t ack_channel = 0
    cdef uint64_t ack_first = 0, ack_last = 0, tag
    cdef str fault = None
    before.properties = NULL
    while size - at >= 7:
        kind = base[at]
        channel = be16(base + at + 1)
        length = be32(base + at + 3)
        # RabbitMQ compares the payload alone with the agreed maximum: clients may send that much.
        if length > frame_max:
            fault = (f"type {kind}, all octets = <<>>: "
                     f"{{frame_too_large,{length},{frame_max - FRAME_OVERHEAD}}}")
            break
        if size - at < <Py_ssize_t>length + FRAME_OVERHEAD:
            break
        if base[at + 7 + length] != FRAME_END:
            fault = (f"type {kind}, all octets = {octets(base + at + 7, length)}: "
                     f"{{invalid_frame_end_marker,{base[at + 7 + length]}}}")
            break
        ids = be32(base + at + 7) if kind == FRAME_METHOD and length >= 4 else 0
        if fast and ids == PUBLISH and channel:
            outcome = read_publish(base, at, size, frame_max, &found)
            if outcome == INCOMPLETE:
                if is_text(found.exchange) and is_text(found.key):
                    break
                outcome = NOT_A_RUN  # it is refused without waiting for its content
            if outcome == COMPLETE:
                take_properties(&found, &before)
                before = found
            if outcome == COMPLETE and not run.takes(channel, &found):
                run.finish(events)
                # Other names are left to the decoder of methods, which refuses them.
                if is_text(found.exchange) and is_text(found.key):
                    run.begin(channel, &found)
                else:
                    outcome = NOT_A_RUN
            if outcome == COMPLETE:
                if in_acks:
                    events.append((2, ack_channel, ack_first, ack_last, False))
                    in_acks = False
                run.add(&found, now_ms)
                at = found.end
                if run.batch.count == 16 or run.batch.count == 256:
                    run.make_room(size - at)
                continue
        run.finish(events)
        if fast and ids == ACK and length == 13:
            tag = be64(base + at + 11)
            multiple = base[at + 19] & 1
            # Tag 0 stands for itself: it does not come after the largest.
            if in_acks and (
                channel != ack_channel or multiple or tag != ack_last + 1 or tag == 0
            ):
                events.append((2, ack_channel, ack_first, ack_last, False))
                in_acks = False
            if multiple:
                events.append((2, channel, tag, tag, True))
            elif in_acks:
                ack_last = tag
            else:
                in_acks = True
                ack_channel = channel
                ack_first = ack_last = tag
        else:
            if in_acks:
                events.append((2, ack_channel, ack_first, ack_last, False))
                in_acks = False
            events.append((
                0, kind, channel,
                PyBytes_FromStringAndSize(<const char *>base + at + 7, length)))
        at += length + FRAME_OVERHEAD
    if in_acks:
        events.append((2, ack_channel, ack_first, ack_last, False))
    run.finish(events)
    if fault is not None:
        events.append((3, 501, fault))
    return events, at
