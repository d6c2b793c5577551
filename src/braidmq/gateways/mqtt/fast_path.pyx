"""The short way: single messages from one connection's socket to those of the subscribers.

At low load a message comes alone, and what it costs is how long its subscribers wait. When all of
them are connected and nobody has to keep it, it needs no record, no queue and no turn of the
broker: the packet that came goes out as it is, but for the packet id. That holds for QoS 0, and for
QoS 1 to sessions that end with their connections: what such a client has not answered for when it
goes is nobody's any more (MQTT 5, 4.1), so all there is to know of a message is that its id is in
use.

Whatever is not just so takes the long way, and decides there whether the next may take this one:

    Match ── Route: where a topic leads, while no subscription, binding or connection changes
               └─ MqttFastPath …: one for each subscriber's connection

Whether the way that was found still holds is one question: whether anything was done since
(``Turns.epoch``). If so it is asked for again, of the publisher.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

from braidmq.engine.delivery cimport DeliveryState
from braidmq.gateways.mqtt.counters cimport Counters
from braidmq.net.tcp cimport FastPath, TcpLink
from braidmq.runtime.meter cimport Meter
from braidmq.runtime.turns cimport CROWD, Turns
from braidmq.security.token_bucket cimport Throttle
from braidmq.record.offset_set cimport braid_popcount
from braidmq.wire.mqtt.fields cimport be16, put16
from braidmq.wire.mqtt.publish cimport PUBLISH, V5, packet_head

cdef enum:
    PUBACK = 4
    PLAIN = PUBLISH << 4            # QoS 0, and nothing else
    ANSWERED = PUBLISH << 4 | 2     # QoS 1
    BYTES_MAX = 8192                # of more a message costs little anyway
    IDS = 64
    QUEUED_IDS = 0x7fff             # as the outbox has them
    FIRST = 0x8000

FIRST_ID = FIRST
"""Packet ids of QoS 1 that went this way are from here …"""
STOP_ID = FIRST + IDS
"""… to before this one."""
TARGETS_MAX = 64
"""A message for more connections than that goes the long way: most of the time is theirs."""

# Sockets that were ready together are read within less; who had to be woken first takes longer.
cdef double CROWD_S = 0.00002

cdef array.array NO_IDS = array.array("H")


cdef class Route:
    """Where single messages to one topic go, as far as they can go the short way."""
    cdef list targets
    cdef int version
    cdef bint takes_qos1
    cdef readonly long long moves, generation

    def __init__(
        self, long long moves, long long generation, int version=0, list targets=None,
        bint takes_qos1=False
    ):
        """``targets`` are the subscribers' connections, all of that version; None: they can't.
        QoS 1 may end with them. It is good for as long as the tree and the router have these
        numbers."""
        self.moves = moves
        self.generation = generation
        self.version = version
        self.targets = targets
        self.takes_qos1 = takes_qos1


cdef class MqttFastPath(FastPath):
    """One connection's part in it: it may publish this way, and be a target."""
    cdef object connection, publisher, credit, outbox
    cdef TcpLink link
    cdef Turns turns
    cdef Counters counters
    cdef Meter meter
    cdef object clock
    cdef Throttle throttle      # what limits it as a publisher; None: nothing does
    cdef long long payload_bytes    # of the packets that were counted last
    # The way that was found last, and when: None when there is none.
    cdef Route known
    cdef bytes known_topic
    cdef long long known_at
    cdef bint is_idle           # then it was owed no answer, so that PUBACK may go out at once
    cdef uint32_t packet_bytes_max
    cdef int version, quota
    cdef uint64_t open_ids
    cdef uint32_t next_id

    def __init__(self, connection, TcpLink link, publisher):
        """``link`` is None for a connection that is not plain TCP: it can only be a target."""
        self.connection = connection
        self.link = link
        self.publisher = publisher
        self.known_topic = b""
        self.known_at = -1
        self.turns = connection.node_loop.turns
        self.clock = connection.node_loop.clock
        self.counters = connection.router.counters
        self.meter = connection.session.meter
        self.outbox = connection.session.outbox
        self.credit = connection.credit
        self.version = connection.version
        self.packet_bytes_max = connection.settings.packet_bytes_max
        # 3.1.1 knows no such limit.
        self.quota = connection.settings.receive_maximum if self.version == V5 else IDS

    def limit(self, client):
        """What its client may send is limited by this from now on."""
        if client is not None:
            self.throttle = client.throttle
            client.when_refreshed = self.limit

    def let_go(self):
        """The connection is over. No route leads here any more, but some may be remembered."""
        self.link = None
        self.connection = self.publisher = self.credit = self.outbox = self.throttle = None

    # --- publishing ---

    cdef bint take(self, char *data, Py_ssize_t size) except -1:
        cdef uint8_t *p = <uint8_t *>data
        if size < 4 or size > BYTES_MAX:
            return False
        if p[0] == PLAIN:
            return self.take_plain(p, size)
        if p[0] == ANSWERED:
            return self.take_answered(p, size)
        return p[0] == PUBACK << 4 and self.take_acks(p, size)

    cdef bint take_plain(self, uint8_t *data, Py_ssize_t size) except -1:
        cdef MqttFastPath target
        cdef Py_ssize_t count = 0
        cdef Route route = self.route_to(data, data + size, NULL, &count)
        if route is None or not self.may_send(count):
            return False
        for target in route.targets:
            if not target.is_clear():
                return False
        for target in route.targets:
            target.put(data, size)
        self.served(count, len(route.targets))
        return True

    cdef bint take_answered(self, uint8_t *data, Py_ssize_t size) except -1:
        cdef MqttFastPath target
        cdef uint8_t *ids[IDS]
        cdef uint8_t answers[4 * IDS]
        cdef Py_ssize_t count = 0, i
        cdef Route route = self.route_to(data, data + size, ids, &count)
        if route is None or not route.targets or not route.takes_qos1:
            return False
        if not self.is_idle or count > self.quota or not self.is_clear():
            return False
        if not self.may_send(count):
            return False
        for target in route.targets:
            if not target.has_room(count):
                return False
        for i in range(count):
            answers[4 * i] = PUBACK << 4
            answers[4 * i + 1] = 2
            put16(answers + 4 * i + 2, be16(ids[i]))
        for target in route.targets:
            for i in range(count):
                put16(ids[i], target.new_id())
            target.charge(count)
            target.put(data, size)
        self.put(answers, 4 * count)
        self.served(count, len(route.targets))
        return True

    cdef bint may_go(self) noexcept:
        """Whether few are being read together: many are better gathered, and served in a turn.

        While none is due no connection has anything to say that is not written yet, but for those
        whose CONNACK waits for the disk."""
        if self.turns.is_due:
            return False
        if self.turns.last == <void *>self or self.link.heard_s - self.turns.served_s > CROWD_S:
            self.turns.crowd = 0
        self.turns.crowd += 1
        return self.turns.crowd < CROWD

    cdef bint may_send(self, Py_ssize_t count) except -1:
        """Whether its limits have room for so many; if not the long way makes it wait."""
        return self.throttle is None or self.throttle.has_room(count, self.clock.now_ms())

    cdef int served(self, Py_ssize_t count, Py_ssize_t targets) except -1:
        if self.throttle is not None:
            self.throttle.charge(count, self.payload_bytes)
        self.counters.received += count
        self.counters.sent += count * targets
        self.meter.count(count, self.payload_bytes, targets)
        self.turns.serve(<void *>self)
        return 0

    cdef Route route_to(
        self, uint8_t *data, const uint8_t *end, uint8_t **ids, Py_ssize_t *count
    ):
        """Where these packets go, and how many they are; None when they have to go the long way, or
        are not publishes to one topic. ``ids`` is where to say where their packet ids are."""
        cdef uint32_t length = 0
        cdef Py_ssize_t head = packet_head(data, end, True, &length)
        if not self.may_go() or head <= 0 or end - data - head < 2:
            return None
        count[0] = self.count_alike(data, end, data + head, ids)
        if count[0] == 0:
            return None
        if (
            self.known_at != self.turns.epoch
            or PyBytes_GET_SIZE(self.known_topic) != be16(data + head)
            or memcmp(data + head + 2, PyBytes_AS_STRING(self.known_topic), be16(data + head)) != 0
        ):
            self.find_route(
                PyBytes_FromStringAndSize(<const char *>data + head + 2, be16(data + head)))
        return self.known

    cdef int find_route(self, bytes topic) except -1:
        """The way that the long one has found to a topic that the client may publish to."""
        cdef Route route = self.publisher.short_way(topic)
        self.known_topic, self.known_at = topic, self.turns.epoch
        self.is_idle = self.publisher.is_idle
        self.known = None
        if route is not None and route.targets is not None:
            if route.version == self.version or not route.targets:
                self.known = route
        return 0

    cdef Py_ssize_t count_alike(
        self, uint8_t *p, const uint8_t *end, const uint8_t *topic, uint8_t **ids
    ) noexcept:
        """How many publishes these are, if they are nothing but publishes of one QoS to one topic,
        new, not retained and without properties; else 0. 3.1.1 lets a length have more bytes than
        it needs: that goes the long way, too."""
        cdef bint modern = self.version == V5
        cdef uint8_t kind = p[0]
        cdef uint32_t length = 0
        cdef Py_ssize_t topic_bytes = 2 + be16(topic), head, count = 0
        cdef Py_ssize_t fixed = topic_bytes + modern + (2 if ids != NULL else 0)
        self.payload_bytes = 0
        while end - p >= 2:
            head = packet_head(p, end, True, &length)
            if (
                p[0] != kind or head <= 0
                or end - p - head < <Py_ssize_t>length or <Py_ssize_t>length < fixed
                or head + <Py_ssize_t>length > self.packet_bytes_max
                or memcmp(p + head, topic, topic_bytes) != 0
                or modern and p[head + fixed - 1] != 0
            ):
                return 0
            if ids != NULL:
                if count == IDS or be16(p + head + topic_bytes) == 0:
                    return 0
                ids[count] = p + head + topic_bytes
            p += head + length
            count += 1
            self.payload_bytes += length - fixed
        return count if p == end else 0

    # --- as a target ---

    cdef bint is_clear(self) except -1:
        """Whether its socket has taken all that it was given."""
        if self.link is not None:
            return self.link.unsent_bytes == 0
        return self.connection.transport.unsent_bytes == 0

    cdef bint has_room(self, Py_ssize_t count) except -1:
        """Whether so many of QoS 1 would be right behind all that went to it before."""
        cdef DeliveryState waiting = self.outbox.state
        cdef object credit = self.credit
        if waiting is not None and waiting.count_ready() or not self.is_clear():
            return False
        if count > IDS - braid_popcount(self.open_ids):
            return False
        return <long long>credit.used + count <= <long long>credit.limit

    cdef uint16_t new_id(self) noexcept:
        """One that is free; it is in use until the client says PUBACK."""
        cdef uint32_t number
        while self.open_ids >> self.next_id % IDS & 1:
            self.next_id += 1
        number = self.next_id % IDS
        self.open_ids |= <uint64_t>1 << number
        self.next_id += 1
        return FIRST + number

    cdef int charge(self, Py_ssize_t count) except -1:
        self.credit.used += count

    cdef int put(self, const uint8_t *data, Py_ssize_t size) except -1:
        if self.link is not None:
            self.link.put(<const char *>data, size)
        else:
            self.connection.send_at_once(PyBytes_FromStringAndSize(<const char *>data, size))
        return 0

    # --- what a target answers ---

    cdef bint is_open(self, uint16_t number) noexcept:
        return number >= FIRST and number < FIRST + IDS and self.open_ids >> (number - FIRST) & 1

    cdef bint take_acks(self, const uint8_t *data, Py_ssize_t size) except -1:
        """While nobody waits for the room that they leave: of messages that came this way, or of
        those from the queue."""
        cdef Py_ssize_t at, freed = 0, queued = 0
        cdef uint16_t number
        if size % 4 or self.credit.awaited:
            return False
        for at in range(0, size, 4):
            number = be16(data + at + 2)
            if data[at] != PUBACK << 4 or data[at + 1] != 2 or number == 0:
                return False
            if number <= QUEUED_IDS:
                queued += 1
            elif not self.is_open(number):
                return False
        if queued and (4 * queued != size or not self.note_acks(data, queued)):
            return False
        for at in range(0, size, 4):
            freed += self.forget(be16(data + at + 2))
        if freed:
            self.charge(-freed)
        return True

    cdef bint note_acks(self, const uint8_t *data, Py_ssize_t count) except -1:
        cdef array.array ids = array.clone(NO_IDS, count, zero=False)
        cdef Py_ssize_t i
        for i in range(count):
            ids.data.as_ushorts[i] = be16(data + 4 * i + 2)
        return self.connection.note_acks(ids)

    cdef int forget(self, uint16_t number) noexcept:
        """How many ids are free by that: none, if it was one already."""
        if not self.is_open(number):
            return 0
        self.open_ids &= ~(<uint64_t>1 << (number - FIRST))
        return 1

    def holds(self, int number):
        """Whether this is the id of a message that it has not answered for."""
        return 0 <= number <= 0xffff and self.is_open(number)

    def settle(self, packet_ids):
        """PUBACK, on the long way: the ids that were none of ours, and how many were."""
        if not self.open_ids:
            return packet_ids, 0
        others = array.array("H", [each for each in packet_ids if not self.is_open(each)])
        cdef int count = 0
        for each in packet_ids:
            count += self.forget(each)
        return others, count
