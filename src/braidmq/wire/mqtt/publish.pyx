"""PUBLISH packets, checked and turned into records. This module owns MQTT's envelope.

The envelope of a record that came over MQTT, format 2:

    ┌───────┬────────┬───────┬──────────────────────────────────┐
    │ flags │ length │ topic │ properties                       │
    └───────┴────────┴───────┴──────────────────────────────────┘
     1 byte   2 bytes, big-    as in PUBLISH of version 5, without their length
              endian           and the topic alias; empty from 3.1.1

    flags: QoS it was published with in bits 0 and 1, RETAIN in bit 2; bits 3 and 4 are never
    set here: the gateway marks copies with them that it makes for one session

A run is not a batch yet: its packets are still in the buffer, checked, from ``start`` to ``stop``.
Copied as they are they will do for subscribers of the same version at QoS 0; ``batch`` encodes
records of them for whoever must keep or change the messages.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from braidmq.record.batch cimport HEADER_BYTES, TRANSIENT, RecordBatch
from braidmq.wire.mqtt.fields cimport be16, be32, put16, read_variable
from braidmq.wire.utf8 cimport is_utf8

from braidmq.wire.mqtt.properties import PROPERTIES, Type

FLAG_QOS = 3
FLAG_RETAIN = 4
FLAG_DUP = 8
FLAG_PROPERTIES = 16
FLAG_USER_PROPERTIES = 32
FLAG_EXPIRY = 64
FLAG_ALIAS = 128

ENVELOPE_MQTT = FORMAT_MQTT

cdef enum:
    EXPIRY_INTERVAL = 0x02
    RESPONSE_TOPIC = 0x08
    SUBSCRIPTION_ID = 0x0B
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26

cdef enum:
    SMALL_ENVELOPE_BYTES = 512
    ALIAS_BYTES = 3
    FORMAT_MQTT = 2

# --- the table of properties, as the codec has it ---

cdef uint8_t type_of[256]          # a Type, or NO_TYPE
cdef uint16_t packets_of[256]      # a bit for each kind of packet

cdef enum:
    NO_TYPE = 255
    BYTE = 0
    U16 = 1
    U32 = 2
    VARIABLE = 3
    BINARY = 4
    STRING = 5
    PAIR = 6


cdef void fill_tables() except *:
    cdef int i
    assert (Type.BYTE, Type.U16, Type.U32, Type.VARIABLE) == (BYTE, U16, U32, VARIABLE)
    assert (Type.BINARY, Type.STRING, Type.PAIR) == (BINARY, STRING, PAIR)
    for i in range(256):
        type_of[i] = NO_TYPE
        packets_of[i] = 0
    for number, _, kind, packets in PROPERTIES:
        type_of[number] = kind
        for packet in packets:
            packets_of[number] |= 1 << packet


fill_tables()


# --- pieces of packets ---

cdef bint is_text(const uint8_t *p, Py_ssize_t length) noexcept:
    """Well-formed UTF-8 without U+0000."""
    return is_utf8(p, length, False)


cdef bint has_wildcard(const uint8_t *p, Py_ssize_t length) noexcept:
    cdef Py_ssize_t i
    for i in range(length):
        if p[i] == 43 or p[i] == 35:
            return True
    return False


cdef Fault read_properties(
    const uint8_t *p, const uint8_t *end, int packet, int role, Found *found
) noexcept:
    """Check all properties of a packet and note what matters of them."""
    cdef uint64_t seen = 0
    cdef uint8_t number
    cdef uint32_t value
    cdef int kind, size, _string
    while p < end:
        number = p[0]
        kind = type_of[number]
        if kind == NO_TYPE or not packets_of[number] >> packet & 1:
            return BAD_PROPERTY
        if seen >> number & 1 and number != USER_PROPERTY and number != SUBSCRIPTION_ID:
            return TWICE
        seen |= <uint64_t>1 << number
        p += 1
        if kind <= U32:
            size = 1 << kind
            if end - p < size:
                return ENDS_EARLY
            if number == EXPIRY_INTERVAL:
                found.expiry_s = be32(p)
                found.flags |= EXPIRY
            elif number == TOPIC_ALIAS:
                found.alias = be16(p)
                found.alias_at = p - 1
                if found.alias == 0:
                    return BAD_ALIAS
            elif kind == BYTE and p[0] > 1:
                return BAD_VALUE
            p += size
        elif kind == VARIABLE:
            size = read_variable(p, end, True, &value)
            if size <= 0:
                return ENDS_EARLY if size == 0 else BAD_VARIABLE
            if value == 0:
                return BAD_VALUE
            # MQTT-3.3.4-6
            if role == AS_SERVER:
                return NOT_FOR_SENDER
            p += size
        else:
            for _string in range(2 if kind == PAIR else 1):
                if end - p < 2 or end - p - 2 < be16(p):
                    return ENDS_EARLY
                if kind != BINARY and not is_text(p + 2, be16(p)):
                    return BAD_TEXT
                # MQTT-3.3.2-14
                if number == RESPONSE_TOPIC and has_wildcard(p + 2, be16(p)):
                    return RESPONSE_WILDCARD
                p += 2 + be16(p)
            if number == USER_PROPERTY:
                found.flags |= USER_PROPERTIES
        if number != TOPIC_ALIAS:
            found.flags |= HAS_PROPERTIES
    return OK


cdef Fault read_publish(
    const uint8_t *p, const uint8_t *end, uint8_t first, int version, int role, Publish *out
) noexcept:
    """Take the body of a PUBLISH apart and check all of it but the text of its topic."""
    cdef uint32_t length
    cdef int size
    cdef Fault fault
    out.found.flags = (first >> 1 & 3) | (first & 1) << 2 | (first & 8)
    out.found.alias_at = NULL
    out.found.alias = 0
    out.packet_id = 0
    if first >> 1 & 3 == 3:
        return BAD_QOS
    if first & 0x0e == 8:
        return BAD_DUP  # MQTT-3.3.1-2
    if end - p < 2 or end - p - 2 < be16(p):
        return ENDS_EARLY
    out.topic_length = be16(p)
    out.topic = p + 2
    p += 2 + out.topic_length
    if out.found.flags & QOS:
        if end - p < 2:
            return ENDS_EARLY
        out.packet_id = be16(p)
        if out.packet_id == 0:
            return NO_ID
        p += 2
    out.properties_length = 0
    if version == V5:
        if p < end and p[0] == 0:
            p += 1
        else:
            size = read_variable(p, end, True, &length)
            if size < 0:
                return BAD_VARIABLE
            if size == 0 or end - p - size < <Py_ssize_t>length:
                return ENDS_EARLY
            out.properties = p + size
            out.properties_length = length
            p += size + length
            fault = read_properties(out.properties, p, PUBLISH, role, &out.found)
            if fault != OK:
                return fault
    out.payload = p
    out.payload_length = end - p
    return OK


# --- runs ---

cdef class PublishRun:
    """Publishes to one topic with the same flags, still in the buffer they were scanned in."""
    @property
    def qos(self):
        return self.flags & QOS

    def batch(self, data, int64_t now_ms, bint transient=False):
        """The messages as records. ``data`` is the buffer the run was found in."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if self.stop > view.len:
                raise ValueError("not the buffer that this run was found in")
            return self.records(<const uint8_t *>view.buf + self.start, now_ms, transient)
        finally:
            PyBuffer_Release(&view)

    cdef RecordBatch records(self, const uint8_t *p, int64_t now_ms, bint transient):
        cdef RecordBatch batch = RecordBatch()
        cdef const uint8_t *stop = p + (self.stop - self.start)
        cdef uint32_t length
        cdef Py_ssize_t head
        cdef Publish one
        cdef bytes envelope = envelope_head(self.flags, self.topic)
        batch.reserve(
            self.stop - self.start + self.count * (HEADER_BYTES + 8 + len(envelope)), self.count)
        while p < stop:
            head = packet_head(p, stop, False, &length)
            if (
                head <= 0 or p[0] >> 4 != PUBLISH or stop - p - head < <Py_ssize_t>length
                or read_publish(
                    p + head, p + head + length, p[0], self.version, self.role, &one) != OK
            ):
                raise ValueError("not the buffer that this run was found in")
            put_record(batch, envelope, &one, now_ms, TRANSIENT if transient else 0)
            p += head + length
        return batch


cdef bytes envelope_head(int flags, bytes topic):
    """What the envelopes of a run share: flags, length of the topic, topic."""
    cdef Py_ssize_t length = len(topic)
    cdef bytes head = PyBytes_FromStringAndSize(NULL, 3 + length)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(head)
    p[0] = flags & (QOS | RETAIN)
    memcpy(put16(p + 1, <uint16_t>length), PyBytes_AS_STRING(topic), length)
    return head


cdef int put_record(
    RecordBatch batch, bytes head, const Publish *one, int64_t now_ms, uint8_t record_flags
) except -1:
    cdef uint8_t small[SMALL_ENVELOPE_BYTES]
    cdef bytes large
    cdef uint8_t *envelope = <uint8_t *>PyBytes_AS_STRING(head)
    cdef Py_ssize_t head_length = len(head), length = head_length, before
    cdef int64_t expires = 0
    if one.found.flags & HAS_PROPERTIES:
        length += one.properties_length
        envelope = small
        if length > SMALL_ENVELOPE_BYTES:
            large = PyBytes_FromStringAndSize(NULL, length)
            envelope = <uint8_t *>PyBytes_AS_STRING(large)
        memcpy(envelope, PyBytes_AS_STRING(head), head_length)
        if one.found.alias_at == NULL:
            memcpy(envelope + head_length, one.properties, one.properties_length)
        else:
            before = one.found.alias_at - one.properties
            length -= ALIAS_BYTES
            memcpy(envelope + head_length, one.properties, before)
            memcpy(
                envelope + head_length + before, one.found.alias_at + ALIAS_BYTES,
                one.properties_length - before - ALIAS_BYTES)
    if one.found.flags & EXPIRY:
        # At the earliest in a millisecond: a subscriber that is ready now gets it all the same.
        expires = now_ms + max(<int64_t>one.found.expiry_s * 1000, 1)
    return batch.put(
        NULL, 0, envelope, length, one.payload, one.payload_length,
        FORMAT_MQTT, record_flags, 0, now_ms, expires, 0)
