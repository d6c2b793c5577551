"""From bytes of a socket to runs of messages: the MQTT scanner.

    PUBLISH PUBLISH PUBLISH │ PUBACK PUBACK │ SUBSCRIBE │ PUBLISH …
    one topic, one set of flags  one kind

Consecutive publishes to one topic with the same flags become one ``PublishRun``, consecutive
acknowledgements of one kind two arrays. Everything else is handed out packet by packet. What is not
complete stays in the caller's buffer; between calls the scanner keeps only the topic aliases that
the peer has set, and those are resolved before anybody sees them.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy

from braidmq.wire.mqtt.fields cimport be16, read_variable
from braidmq.wire.mqtt.publish cimport (
    ALIAS, AS_CLIENT, AS_SERVER, BAD_ALIAS, BAD_DUP, BAD_FLAGS, BAD_KIND, BAD_LENGTH, BAD_PROPERTY,
    BAD_QOS, BAD_REASON, BAD_TEXT, BAD_VALUE, BAD_VARIABLE, DUP, ENDS_EARLY, NO_ID, NO_TOPIC,
    NOT_CONNECT, NOT_FOR_SENDER, OK, PUBLISH, QOS, RESPONSE_WILDCARD, RETAIN, SECOND_CONNECT,
    TOO_LARGE, TOO_MANY, TWICE, UNKNOWN_ALIAS, V3_1, V5, WILDCARD, Fault, Found, Publish,
    PublishRun, has_wildcard, is_text, packet_head, read_properties, read_publish,
)

import array

from braidmq.wire.mqtt.constants import FLAGS, REASONS, Kind, Reason

SERVER = AS_SERVER
CLIENT = AS_CLIENT

EVENT_PACKET = 0
EVENT_PUBLISH = 1
EVENT_ACKS = 2
EVENT_ERROR = 3

cdef enum:
    CONNECT = 1
    CONNACK = 2
    PUBACK = 4
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    AUTH = 15

cdef enum:
    RUN_BYTES_MAX = 1 << 20

cdef enum:
    FROM_CLIENT = 1 << SUBSCRIBE | 1 << UNSUBSCRIBE | 1 << PINGREQ | 1 << CONNECT
    FROM_SERVER = 1 << CONNACK | 1 << SUBACK | 1 << UNSUBACK | 1 << PINGRESP

FAULTS = {
    ENDS_EARLY: (Reason.MALFORMED_PACKET, "the packet ends inside a field"),
    BAD_VARIABLE: (Reason.MALFORMED_PACKET, "a variable integer is too long"),
    BAD_TEXT: (Reason.MALFORMED_PACKET, "a string is not well-formed UTF-8 without U+0000"),
    BAD_QOS: (Reason.MALFORMED_PACKET, "a PUBLISH with QoS 3"),
    BAD_DUP: (Reason.MALFORMED_PACKET, "DUP in a PUBLISH with QoS 0"),
    BAD_PROPERTY: (Reason.MALFORMED_PACKET, "a property that does not belong in this packet"),
    BAD_FLAGS: (Reason.MALFORMED_PACKET, "reserved flags of a packet are not as they must be"),
    BAD_KIND: (Reason.MALFORMED_PACKET, "a kind of packet that does not exist"),
    BAD_LENGTH: (Reason.MALFORMED_PACKET, "an acknowledgement of the wrong length"),
    WILDCARD: (Reason.PROTOCOL_ERROR, "wildcards in the topic name of a PUBLISH"),
    TWICE: (Reason.PROTOCOL_ERROR, "a property stands there twice"),
    BAD_VALUE: (Reason.PROTOCOL_ERROR, "a property has a value it must not have"),
    NO_TOPIC: (Reason.PROTOCOL_ERROR, "a PUBLISH without topic name and alias"),
    NO_ID: (Reason.PROTOCOL_ERROR, "packet identifier 0"),
    BAD_REASON: (Reason.PROTOCOL_ERROR, "a reason code that is not for this packet"),
    RESPONSE_WILDCARD: (Reason.PROTOCOL_ERROR, "wildcards in the response topic"),
    NOT_FOR_SENDER: (Reason.PROTOCOL_ERROR, "a packet or property that the other side sends"),
    UNKNOWN_ALIAS: (Reason.PROTOCOL_ERROR, "a topic alias that was not set"),
    BAD_ALIAS: (Reason.TOPIC_ALIAS_INVALID, "a topic alias of 0 or above the maximum"),
    TOO_LARGE: (Reason.PACKET_TOO_LARGE, "a packet above the maximum packet size"),
    TOO_MANY: (Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes in flight than receive maximum"),
    NOT_CONNECT: (Reason.PROTOCOL_ERROR, "the first packet is not CONNECT"),
    SECOND_CONNECT: (Reason.PROTOCOL_ERROR, "a second CONNECT"),
}

# --- the tables, as the codec has them ---

cdef uint8_t flags_of[16]
cdef uint8_t reason_fits[16][256]


cdef void fill_tables() except *:
    cdef int i
    for packet in Kind:
        if packet != PUBLISH:
            flags_of[packet] = FLAGS[packet]
        for i in range(256):
            reason_fits[packet][i] = i in REASONS.get(packet, ())


fill_tables()


# --- packet ids of one call ---

cdef array.array IDS = array.array("H")
cdef uint16_t *scratch_ids = NULL
cdef uint8_t *scratch_reasons = NULL
cdef Py_ssize_t scratch_capacity = 0


cdef int reserve_scratch(Py_ssize_t wanted) except -1:
    """Room for the packet ids of one call: shared by all scanners, so an idle one has none."""
    global scratch_ids, scratch_reasons, scratch_capacity
    cdef void *grown
    if wanted <= scratch_capacity:
        return 0
    grown = realloc(scratch_ids, wanted * sizeof(uint16_t))
    if grown == NULL:
        raise MemoryError
    scratch_ids = <uint16_t *>grown
    grown = realloc(scratch_reasons, wanted)
    if grown == NULL:
        raise MemoryError
    scratch_reasons = <uint8_t *>grown
    scratch_capacity = wanted
    return 0


cdef array.array taken_ids(Py_ssize_t count):
    cdef array.array ids = array.clone(IDS, count, zero=False)
    memcpy(ids.data.as_ushorts, scratch_ids, count * sizeof(uint16_t))
    return ids


cdef class Scanner:
    """One connection's incoming bytes.

    A server's scanner starts without a version: it gives out CONNECT, and nothing behind it until
    ``version`` is set.
    """
    cdef readonly int role
    cdef public int version
    cdef public uint32_t packet_bytes_max
    cdef public uint16_t topic_alias_max
    cdef readonly Py_ssize_t wanted_bytes
    cdef readonly Py_ssize_t alias_bytes
    cdef list aliases
    # The run that is being gathered: publishes, or acknowledgements of one kind.
    cdef PublishRun run
    cdef int ack_kind
    cdef bint ack_reasons
    cdef Py_ssize_t ids_count

    def __cinit__(
        self, int role, int version=0, uint32_t packet_bytes_max=0x7fffffff,
        uint16_t topic_alias_max=0,
    ):
        self.role = role
        self.version = version
        self.packet_bytes_max = packet_bytes_max
        self.topic_alias_max = topic_alias_max

    def scan(self, data, Py_ssize_t size, Py_ssize_t quota=0x7fffffff):
        """Events of the whole packets in the first ``size`` bytes, and how many bytes they took.

        - ``(EVENT_PUBLISH, run)``
        - ``(EVENT_ACKS, kind, packet ids, reasons)``; reasons are None when all of them are 0
        - ``(EVENT_PACKET, kind, flags, body)``
        - ``(EVENT_ERROR, reason, text)``: nothing behind it can be read

        ``quota`` is how many more publishes above QoS 0 the peer may send. ``wanted_bytes`` is
        afterwards the size of the packet that is not complete, 0 if that is not known.
        """
        # Not a typed memoryview: to make one takes longer than to scan a message.
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if size > view.len:
                raise ValueError("size is beyond the data")
            return self.scan_bytes(<const uint8_t *>view.buf, size, quota)
        finally:
            PyBuffer_Release(&view)

    cdef tuple scan_bytes(self, const uint8_t *base, Py_ssize_t size, Py_ssize_t quota):
        cdef list events = []
        cdef Py_ssize_t at = 0, head
        cdef uint32_t length = 0
        cdef Fault fault = OK
        cdef int kind
        cdef uint8_t first
        self.wanted_bytes = 0
        if size == 0:
            return events, 0
        reserve_scratch(size // 4 + 1)
        while size - at >= 2:
            head = packet_head(base + at, base + size, self.version == V5, &length)
            if head <= 0:
                fault = OK if head == 0 else BAD_VARIABLE
                break
            first = base[at]
            kind = first >> 4
            fault = self.check_head(first, head + <Py_ssize_t>length)
            if fault != OK:
                break
            if size - at - head < <Py_ssize_t>length:
                self.wanted_bytes = head + <Py_ssize_t>length
                break
            if kind == PUBLISH:
                fault = <Fault>self.take_publish(base, at, head, length, quota, events)
                quota -= (first & 6) != 0
            elif PUBACK <= kind <= PUBCOMP:
                fault = <Fault>self.take_ack(kind, base + at + head, length, events)
            else:
                self.finish(events)
                events.append((
                    0, kind, first & 15,
                    PyBytes_FromStringAndSize(<const char *>base + at + head, length)))
            if fault != OK:
                break
            at += head + length
            if kind == PUBLISH and not self.run.flags & ~(QOS | RETAIN | DUP):
                at = self.more_publishes(base, at, size, &quota)
            elif PUBACK <= kind <= PUBCOMP:
                at = self.more_acks(base, at, size, first)
            if kind == CONNECT:
                break
        self.finish(events)
        if fault != OK:
            reason, text = FAULTS[fault]
            events.append((3, int(reason), text))
        return events, at

    cdef Fault check_head(self, uint8_t first, Py_ssize_t packet_bytes) noexcept:
        cdef int kind = first >> 4
        if kind == 0 or kind == AUTH and self.version != V5 and self.version != 0:
            return BAD_KIND
        if self.version == 0 and kind != CONNECT:
            return NOT_CONNECT
        if kind != PUBLISH and self.version != V3_1 and first & 15 != flags_of[kind]:
            return BAD_FLAGS
        if (FROM_SERVER if self.role == AS_SERVER else FROM_CLIENT) >> kind & 1:
            return NOT_FOR_SENDER
        if kind == CONNECT and self.version != 0:
            return SECOND_CONNECT
        return TOO_LARGE if packet_bytes > self.packet_bytes_max else OK

    # --- publishes ---

    cdef int take_publish(
        self, const uint8_t *base, Py_ssize_t at, Py_ssize_t head, Py_ssize_t length,
        Py_ssize_t quota, list events
    ) except -1:
        cdef Publish one
        cdef bytes known = None
        cdef const uint8_t *topic
        cdef PublishRun run = self.run
        cdef Fault fault = read_publish(
            base + at + head, base + at + head + length, base[at], self.version, self.role, &one)
        if fault != OK:
            return fault
        topic = one.topic
        if one.found.alias_at != NULL:
            one.found.flags |= ALIAS
            if one.found.alias > self.topic_alias_max:
                return BAD_ALIAS
            if one.topic_length == 0:
                known = self.alias(one.found.alias)
                if known is None:
                    return UNKNOWN_ALIAS
                topic = <const uint8_t *>PyBytes_AS_STRING(known)
                one.topic_length = len(known)
        if one.topic_length == 0:
            return NO_TOPIC
        if (
            run is None or run.flags != one.found.flags
            or len(run.topic) != one.topic_length
            or memcmp(PyBytes_AS_STRING(run.topic), topic, one.topic_length) != 0
            or at - run.start > RUN_BYTES_MAX
        ):
            if known is None:
                if not is_text(topic, one.topic_length):
                    return BAD_TEXT
                if has_wildcard(topic, one.topic_length):
                    return WILDCARD
                known = PyBytes_FromStringAndSize(<const char *>topic, one.topic_length)
            self.finish(events)
            self.begin(known, one.found.flags, at)
            run = self.run
        if one.packet_id:
            if quota <= 0:
                self.drop_if_empty()
                return TOO_MANY
            scratch_ids[self.ids_count] = one.packet_id
            self.ids_count += 1
        if one.found.alias_at != NULL:
            self.set_alias(one.found.alias, run.topic)
        run.count += 1
        run.payload_bytes += one.payload_length
        run.stop = at + head + length
        return OK

    cdef Py_ssize_t more_publishes(
        self, const uint8_t *base, Py_ssize_t at, Py_ssize_t size, Py_ssize_t *quota
    ) noexcept:
        """The end of the publishes that are as the last one but for id and payload: nothing of
        them has to be looked at that was not before. Whatever is not so takes the long way."""
        cdef PublishRun run = self.run
        cdef const uint8_t *topic = <const uint8_t *>PyBytes_AS_STRING(run.topic)
        cdef const uint8_t *p
        cdef const uint8_t *end = base + size
        cdef uint8_t first = base[run.start]
        cdef Py_ssize_t topic_length = len(run.topic), head, fixed
        cdef uint32_t length = 0
        cdef bint with_id = run.flags & QOS, modern = self.version == V5
        # Length and topic, then what comes between it and the payload.
        fixed = 2 + topic_length + (2 if with_id else 0) + modern
        while size - at > 2 and base[at] == first and at - run.start <= RUN_BYTES_MAX:
            head = packet_head(base + at, end, modern, &length)
            p = base + at + head
            if (
                head <= 0 or end - p < <Py_ssize_t>length or <Py_ssize_t>length < fixed
                or head + <Py_ssize_t>length > self.packet_bytes_max
                or be16(p) != topic_length or memcmp(p + 2, topic, topic_length) != 0
                or modern and p[fixed - 1] != 0
            ):
                break
            if with_id:
                p += 2 + topic_length
                if quota[0] <= 0 or be16(p) == 0:
                    break
                scratch_ids[self.ids_count] = be16(p)
                self.ids_count += 1
                quota[0] -= 1
            at += head + length
            run.count += 1
            run.payload_bytes += length - fixed
        run.stop = at
        return at

    cdef int begin(self, bytes topic, int flags, Py_ssize_t at) except -1:
        cdef PublishRun run = PublishRun.__new__(PublishRun)
        run.flags = flags
        run.topic = topic
        run.start = run.stop = at
        run.version = self.version
        run.role = self.role
        self.run = run
        return 0

    cdef void drop_if_empty(self) noexcept:
        if self.run.count == 0:
            self.run = None

    cdef bytes alias(self, uint16_t number):
        if self.aliases is None or number > len(self.aliases):
            return None
        return self.aliases[number - 1]

    cdef int set_alias(self, uint16_t number, bytes topic) except -1:
        cdef bytes before
        if self.aliases is None:
            self.aliases = []
        while len(self.aliases) < number:
            self.aliases.append(None)
        before = self.aliases[number - 1]
        if before is not topic:
            self.alias_bytes += len(topic) - (0 if before is None else len(before))
            self.aliases[number - 1] = topic
        return 0

    # --- acknowledgements ---

    cdef int take_ack(
        self, int kind, const uint8_t *p, Py_ssize_t length, list events
    ) except -1:
        cdef const uint8_t *end = p + length
        cdef uint8_t reason = 0
        cdef uint32_t properties
        cdef Found found
        cdef int size
        cdef Fault fault
        if length < 2 or length > 2 and self.version != V5:
            return BAD_LENGTH
        if be16(p) == 0:
            return NO_ID
        if length > 2:
            reason = p[2]
            if not reason_fits[kind][reason]:
                return BAD_REASON
        if length > 3:
            size = read_variable(p + 3, end, True, &properties)
            if size <= 0:
                return ENDS_EARLY if size == 0 else BAD_VARIABLE
            if end - p - 3 - size != <Py_ssize_t>properties:
                return BAD_LENGTH
            fault = read_properties(p + 3 + size, end, kind, self.role, &found)
            if fault != OK:
                return fault
        if self.ack_kind != kind:
            self.finish(events)
            self.ack_kind = kind
            self.ack_reasons = False
        scratch_ids[self.ids_count] = be16(p)
        scratch_reasons[self.ids_count] = reason
        self.ack_reasons |= reason != 0
        self.ids_count += 1
        return OK

    cdef Py_ssize_t more_acks(
        self, const uint8_t *base, Py_ssize_t at, Py_ssize_t size, uint8_t first
    ) noexcept:
        """The end of the acknowledgements that are as the last one, and no more than an id."""
        cdef Py_ssize_t count = self.ids_count
        while size - at >= 4 and base[at] == first and base[at + 1] == 2:
            if be16(base + at + 2) == 0:
                break
            scratch_ids[count] = be16(base + at + 2)
            scratch_reasons[count] = 0
            count += 1
            at += 4
        self.ids_count = count
        return at

    cdef int finish(self, list events) except -1:
        """Hand out what is being gathered."""
        if self.run is not None:
            if self.ids_count:
                self.run.packet_ids = taken_ids(self.ids_count)
            events.append((1, self.run))
            self.run = None
        elif self.ack_kind:
            events.append((
                2, self.ack_kind, taken_ids(self.ids_count),
                (<const char *>scratch_reasons)[:self.ids_count] if self.ack_reasons else None))
            self.ack_kind = 0
        self.ids_count = 0
        return 0
