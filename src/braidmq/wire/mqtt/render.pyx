"""From runs of records to the bytes a subscriber's socket gets: PUBLISH and acknowledgements.

    PUBLISH   3:4 dup:1 qos:2 retain:1 │ remaining length │ topic │ [packet id] │ [length │
              properties for this subscriber │ the message's own] │ payload

In brackets: with QoS, and in version 5. Subscribers of one version and with the same options get
the same bytes at QoS 0: render once, write to all. The message's own properties go out as they
came, except that a message expiry interval counts down.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy

from braidmq.record.batch cimport (
    HEADER_BYTES, TIMED, RecordBatch, RecordHeader, RecordTiming, header_bytes,
)
from braidmq.wire.mqtt.fields cimport (
    be16, be32, put16, put32, put_variable, read_variable, variable_bytes,
)

import array

cdef enum:
    ENVELOPE_MQTT = 2
    ENVELOPE_HEAD_BYTES = 3    # flags and the topic's length
    V5 = 5
    PUBLISH = 3
    PUBREL = 6
    ALIAS_BYTES = 3
    PACKET_ID_MAX = 0xffff
    PACKET_BYTES_MAX = 5 + 0x0fffffff    # what the remaining length can say

cdef enum:
    PAYLOAD_FORMAT = 0x01
    EXPIRY_INTERVAL = 0x02
    SUBSCRIPTION_ID = 0x0B
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26

cdef array.array IDS = array.array("H")


cdef struct Parts:
    const uint8_t *topic       # behind its length
    const uint8_t *properties
    const uint8_t *payload
    Py_ssize_t topic_length
    Py_ssize_t properties_length
    Py_ssize_t payload_length


cdef inline void take_apart(const RecordHeader *header, Parts *parts) noexcept:
    cdef const uint8_t *envelope = (
        <const uint8_t *>header + header_bytes(header) + header.key_length)
    parts.topic_length = be16(envelope + 1)
    parts.topic = envelope + ENVELOPE_HEAD_BYTES
    parts.properties = parts.topic + parts.topic_length
    parts.payload = envelope + header.envelope_length
    parts.properties_length = parts.payload - parts.properties
    parts.payload_length = header.value_length


cdef Py_ssize_t property_bytes(const uint8_t *p, const uint8_t *end) noexcept:
    """The length of the property at ``p``; -1 for what is none."""
    cdef uint32_t value
    cdef Py_ssize_t length
    cdef int size
    if end - p < 2:
        return -1
    if p[0] == EXPIRY_INTERVAL:
        length = 5
    elif p[0] == PAYLOAD_FORMAT:
        length = 2
    elif p[0] == SUBSCRIPTION_ID:
        size = read_variable(p + 1, end, False, &value)
        if size <= 0:
            return -1
        length = 1 + size
    else:
        if end - p < 3:
            return -1
        length = 3 + be16(p + 1)
        if p[0] == USER_PROPERTY:
            if end - p < length + 2:
                return -1
            length += 2 + be16(p + length)
    return length if length <= end - p else -1


cdef Py_ssize_t expiry_at(const uint8_t *properties, Py_ssize_t length) noexcept:
    """Where the value of the message expiry interval is; -1: there is none."""
    cdef const uint8_t *p = properties
    cdef const uint8_t *end = p + length
    cdef Py_ssize_t size = property_bytes(p, end)
    while size > 0:
        if p[0] == EXPIRY_INTERVAL:
            return p + 1 - properties
        p += size
        size = property_bytes(p, end)
    return -1


cdef uint32_t seconds_left(const RecordHeader *header, int64_t now_ms) noexcept:
    cdef const RecordTiming *timing = (
        <const RecordTiming *>(<const uint8_t *>header + HEADER_BYTES))
    return <uint32_t>max(0, (timing.expires_at_ms - now_ms + 999) // 1000)


def delivery_runs(RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
    """Records ``first`` … ``stop - 1`` cut where topic or flags change.

    A list of ``(stop, envelope format, flags, topic)``; of other formats than MQTT's only the
    format is told.
    """
    cdef list runs = []
    cdef Py_ssize_t i, begun = first
    cdef const RecordHeader *header
    cdef Parts last, one
    cdef uint8_t form = 0
    if not 0 <= first <= stop <= batch.count:
        raise IndexError(f"records {first} to {stop} of {batch.count}")
    for i in range(first, stop):
        header = batch.header_at(i)
        if i > begun and header.envelope_format == form and form != ENVELOPE_MQTT:
            continue
        if header.envelope_format == ENVELOPE_MQTT:
            take_apart(header, &one)
            if (
                i > begun and form == ENVELOPE_MQTT and one.topic_length == last.topic_length
                # From the flags on: they stand in front of the topic.
                and memcmp(
                    one.topic - ENVELOPE_HEAD_BYTES, last.topic - ENVELOPE_HEAD_BYTES,
                    ENVELOPE_HEAD_BYTES + one.topic_length) == 0
            ):
                continue
        if i > begun:
            runs.append(described(i, form, &last))
            begun = i
        form = header.envelope_format
        if form == ENVELOPE_MQTT:
            last = one
    if stop > begun:
        runs.append(described(stop, form, &last))
    return runs


cdef tuple described(Py_ssize_t stop, uint8_t form, const Parts *parts):
    if form != ENVELOPE_MQTT:
        return stop, form, 0, b""
    return (
        stop, form, parts.topic[-ENVELOPE_HEAD_BYTES],
        PyBytes_FromStringAndSize(<const char *>parts.topic, parts.topic_length))


# --- what only the broker knows of a message, as user properties ---

cdef bint is_fact(const uint8_t *p) noexcept:
    """Whether a user property is called as a fact is."""
    cdef Py_ssize_t length = be16(p + 1)
    p += 3
    return (
        length == 9 and memcmp(p, b"partition", 9) == 0
        or length == 6 and memcmp(p, b"offset", 6) == 0
        or length == 14 and memcmp(p, b"delivery-count", 14) == 0
        or length == 12 and memcmp(p, b"timestamp-ms", 12) == 0)


cdef Py_ssize_t keep_properties(uint8_t *out, const uint8_t *p, Py_ssize_t length) noexcept:
    """Copy properties but those that publishers call as we do facts, or with NULL only see how
    many bytes they have. Behind what is no property all is kept."""
    cdef const uint8_t *end = p + length
    cdef Py_ssize_t kept = 0, size = property_bytes(p, end)
    while size > 0:
        if p[0] != USER_PROPERTY or not is_fact(p):
            if out != NULL:
                memcpy(out + kept, p, size)
            kept += size
        p += size
        size = property_bytes(p, end)
    if out != NULL:
        memcpy(out + kept, p, end - p)
    return kept + (end - p)


cdef struct Facts:
    int64_t partition          # -1: they are not wanted
    int64_t attempts


cdef inline Py_ssize_t fact_bytes(Py_ssize_t name_length, int64_t number) noexcept:
    cdef Py_ssize_t digits = 1
    while number > 9:
        number //= 10
        digits += 1
    return 5 + name_length + digits


cdef inline uint8_t *put_fact(
    uint8_t *p, const char *name, Py_ssize_t name_length, int64_t number
) noexcept:
    cdef Py_ssize_t digits = fact_bytes(name_length, number) - 5 - name_length, i
    p[0] = USER_PROPERTY
    p = put16(p + 1, <uint16_t>name_length)
    memcpy(p, name, name_length)
    p = put16(p + name_length, <uint16_t>digits)
    for i in range(digits - 1, -1, -1):
        p[i] = 48 + <uint8_t>(number % 10)
        number //= 10
    return p + digits


cdef inline Py_ssize_t facts_bytes(
    const Facts *facts, const Parts *one, int64_t offset, int64_t timestamp_ms
) noexcept:
    """How much longer the properties are by facts."""
    if facts.partition < 0:
        return 0
    return (
        fact_bytes(9, facts.partition) + fact_bytes(6, offset)
        + fact_bytes(14, facts.attempts) + fact_bytes(12, timestamp_ms)
        + keep_properties(NULL, one.properties, one.properties_length) - one.properties_length)


cdef uint8_t *put_facts(
    uint8_t *p, const Facts *facts, int64_t offset, int64_t timestamp_ms
) noexcept:
    p = put_fact(p, "partition", 9, facts.partition)
    p = put_fact(p, "offset", 6, offset)
    p = put_fact(p, "delivery-count", 14, facts.attempts)
    return put_fact(p, "timestamp-ms", 12, timestamp_ms)


def render_publishes(
    RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, *, int version, int qos=0,
    bint retain=False, bint dup=False, array.array packet_ids=None,
    bytes properties not None=b"", uint16_t topic_alias=0, bint alias_is_set=False,
    int64_t now_ms=0, Py_ssize_t packet_bytes_max=PACKET_BYTES_MAX,
    int64_t partition=-1, int64_t attempts=1,
):
    """PUBLISH for records ``first`` … ``stop - 1``, which must have come over MQTT.

    With QoS the packet id of record i is ``packet_ids[i - first]``. ``properties`` (encoded, such
    as subscription identifiers) stand before the message's own. A ``topic_alias`` is set by the
    first packet unless it ``is set``, and all others have no topic: only for records of one topic.
    With a ``partition`` each says in user properties what the broker knows of it.

    Returns the bytes, and the index of the first record that was left out: ``stop``, or that of a
    packet larger than ``packet_bytes_max``, which must not be sent (MQTT-3.1.2-24).
    """
    cdef Py_ssize_t i, total = 0, extra = len(properties), own, told
    cdef Facts facts
    cdef bint modern = version == V5, with_topic = topic_alias == 0 or not alias_is_set
    cdef const RecordHeader *header
    cdef Parts one
    cdef bytes out
    cdef uint8_t *p
    cdef uint8_t kind = PUBLISH << 4 | dup << 3 | qos << 1 | retain
    if not 0 <= first <= stop <= batch.count:
        raise IndexError(f"records {first} to {stop} of {batch.count}")
    if qos and (packet_ids is None or len(packet_ids) < stop - first):
        raise ValueError("a packet id for each record")
    cdef const unsigned short *ids = numbers(packet_ids) if qos else NULL
    facts.partition = partition if modern else -1
    facts.attempts = attempts
    if not modern:
        topic_alias, with_topic = 0, True
    if topic_alias:
        extra += ALIAS_BYTES
    for i in range(first, stop):
        header = batch.header_at(i)
        if header.envelope_format != ENVELOPE_MQTT:
            raise ValueError("a record that did not come over MQTT")
        take_apart(header, &one)
        told = facts_bytes(&facts, &one, batch.offset_of(i), header.timestamp_ms)
        own = publish_body(&one, modern, qos, extra + told, with_topic)
        own += 1 + variable_bytes(own)
        if own > packet_bytes_max:
            stop = i
            break
        total += own
        with_topic = topic_alias == 0
    with_topic = topic_alias == 0 or not alias_is_set
    out = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    for i in range(first, stop):
        header = batch.header_at(i)
        take_apart(header, &one)
        told = facts_bytes(&facts, &one, batch.offset_of(i), header.timestamp_ms)
        p[0] = kind
        p = put_variable(p + 1, publish_body(&one, modern, qos, extra + told, with_topic))
        if with_topic:
            memcpy(p, one.topic - 2, 2 + one.topic_length)
            p += 2 + one.topic_length
        else:
            p = put16(p, 0)
        with_topic = topic_alias == 0
        if qos:
            p = put16(p, ids[i - first])
        if modern:
            p = put_variable(p, extra + told + one.properties_length)
            if extra:
                memcpy(p, PyBytes_AS_STRING(properties), len(properties))
                p += len(properties)
                if topic_alias:
                    p[0] = TOPIC_ALIAS
                    p = put16(p + 1, topic_alias)
            if facts.partition >= 0:
                p = put_facts(p, &facts, batch.offset_of(i), header.timestamp_ms)
            if one.properties_length:
                p = put_properties(p, &one, header, now_ms, facts.partition >= 0)
        memcpy(p, one.payload, one.payload_length)
        p += one.payload_length
    assert p == <uint8_t *>PyBytes_AS_STRING(out) + total
    return out, stop


cdef inline Py_ssize_t publish_body(
    const Parts *one, bint modern, int qos, Py_ssize_t extra, bint with_topic
) noexcept:
    cdef Py_ssize_t size = 2 + one.payload_length + (2 if qos else 0)
    if with_topic:
        size += one.topic_length
    if modern:
        extra += one.properties_length
        size += variable_bytes(extra) + extra
    return size


cdef uint8_t *put_properties(
    uint8_t *p, const Parts *one, const RecordHeader *header, int64_t now_ms, bint with_facts
) noexcept:
    cdef Py_ssize_t at, length = one.properties_length
    if with_facts:
        length = keep_properties(p, one.properties, length)
    else:
        memcpy(p, one.properties, length)
    if header.flags & TIMED:
        at = expiry_at(p, length)
        if at >= 0:
            # The interval 0 is kept for a millisecond, and is not to become a second by that.
            put32(p + at, min(be32(p + at), seconds_left(header, now_ms)))
    return p + length


cdef const unsigned short *numbers(array.array packet_ids) except? NULL:
    if packet_ids.ob_descr.itemsize != sizeof(unsigned short):
        raise ValueError("packet ids have two bytes each")
    return packet_ids.data.as_ushorts


def render_acks(int kind, array.array packet_ids not None, int version, uint8_t reason=0):
    """PUBACK, PUBREC, PUBREL or PUBCOMP for each of the packet ids, all with one reason, which
    3.1.1 does not hear."""
    cdef Py_ssize_t i, count = len(packet_ids)
    cdef const unsigned short *ids = numbers(packet_ids)
    cdef int length = 3 if reason and version == V5 else 2
    cdef bytes out = PyBytes_FromStringAndSize(NULL, count * (2 + length))
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(out)
    cdef uint8_t first = kind << 4 | (2 if kind == PUBREL else 0)
    for i in range(count):
        p[0] = first
        p[1] = length
        p = put16(p + 2, ids[i])
        if length == 3:
            p[0] = reason
            p += 1
    return out


def id_runs(array.array packet_ids not None):
    """Packet ids cut where one does not follow the last: a list of ``(first, behind the last)``."""
    cdef list runs = []
    cdef Py_ssize_t i, count = len(packet_ids)
    cdef const unsigned short *ids = numbers(packet_ids)
    cdef int first
    if count == 0:
        return runs
    first = ids[0]
    for i in range(1, count):
        if ids[i] != ids[i - 1] + 1:
            runs.append((first, ids[i - 1] + 1))
            first = ids[i]
    runs.append((first, ids[count - 1] + 1))
    return runs


def sequential_ids(int first, Py_ssize_t count, int last=PACKET_ID_MAX):
    """``count`` packet ids from ``first`` on; ``last`` is followed by 1."""
    cdef array.array ids = array.clone(IDS, count, zero=False)
    cdef Py_ssize_t i
    if not 0 < first <= last <= PACKET_ID_MAX:
        raise ValueError(f"{first} is no packet id")
    for i in range(count):
        ids.data.as_ushorts[i] = <unsigned short>first
        first = 1 if first == last else first + 1
    return ids
