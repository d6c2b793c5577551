"""The client's side of AMQP: publishes out, deliveries and confirms in.

    delivery:  method frame │ content header frame │ body frame      one channel, nothing between
    confirm:   basic.ack or basic.nack

Consecutive deliveries of one consumer become one *run*: their bytes, copied once, and where in
them each message is. Everything else, and every delivery that is not these frames in a row (bodies
of several frames, channels interleaved), is handed out frame by frame. As in ``scan``, no state is
kept between calls.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

from braidmq.wire.amqp.frames cimport (
    ACK, ACK_FRAME_BYTES, COMPLETE, DELIVER, FRAME_END, FRAME_HEADER, FRAME_METHOD, FRAME_OVERHEAD,
    Found, INCOMPLETE, NACK, NOT_A_RUN, PUBLISH, REJECT, be16, be32, be64, content_bytes,
    frame_start, piece_bytes, put16, put32, put_answer, put_content, whole_body,
)

from braidmq.wire.amqp.errors import FrameError

EVENT_FRAME = 0
EVENT_DELIVERIES = 1
EVENT_CONFIRM = 2

cdef tuple NO_ARGUMENTS = ()


# --- out ---


def publish_head(uint16_t channel, bytes exchange, bytes key, bint mandatory=False):
    """The basic.publish frame that precedes the content of every message to one place."""
    cdef Py_ssize_t length = 4 + 2 + 1 + len(exchange) + 1 + len(key) + 1
    cdef bytes out = PyBytes_FromStringAndSize(NULL, length + FRAME_OVERHEAD)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(out)
    if len(exchange) > 255 or len(key) > 255:
        raise ValueError("an exchange or a routing key has at most 255 bytes")
    p = put16(put32(frame_start(p, FRAME_METHOD, channel, <uint32_t>length), PUBLISH), 0)
    for part in (exchange, key):
        p[0] = <uint8_t>len(part)
        memcpy(p + 1, PyBytes_AS_STRING(part), len(part))
        p += 1 + len(part)
    p[0] = mandatory
    p[1] = FRAME_END
    return out


cdef class PublishBatch:
    """Messages that leave together: of each its head, its properties and its value.

    ``add`` says when there are ``count_max`` of them, or ``size_max`` bytes.
    """
    cdef list heads
    cdef list properties
    cdef list values
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t size       # bytes of values and properties
    cdef Py_ssize_t count_max
    cdef Py_ssize_t size_max

    def __cinit__(self, Py_ssize_t count_max=1 << 62, Py_ssize_t size_max=1 << 62):
        self.count_max = count_max
        self.size_max = size_max
        self.heads = []
        self.properties = []
        self.values = []

    def add(self, bytes head not None, bytes properties not None, bytes value not None):
        """Whether that is enough."""
        self.heads.append(head)
        self.properties.append(properties)
        self.values.append(value)
        self.count += 1
        self.size += len(properties) + len(value)
        return self.count >= self.count_max or self.size >= self.size_max

    def extend(self, bytes head not None, bytes properties not None, list values not None):
        cdef Py_ssize_t size = 0
        for value in values:
            if type(value) is not bytes:
                raise TypeError(f"a value is bytes, not {type(value).__name__}")
            size += len(<bytes>value)
        self.heads += [head] * len(values)
        self.properties += [properties] * len(values)
        self.values += values
        self.count += len(values)
        self.size += size + len(values) * len(properties)

    def message(self, Py_ssize_t index):
        """Head, properties and value of one message."""
        return self.heads[index], self.properties[index], self.values[index]

    def render(self, Py_ssize_t first, uint32_t frame_max):
        """The frames of the messages from ``first`` on."""
        cdef Py_ssize_t i, total = 0, piece = piece_bytes(frame_max)
        cdef bytes head, properties, value, out
        cdef uint8_t *p
        for i in range(first, self.count):
            head = self.heads[i]
            properties = self.properties[i]
            value = self.values[i]
            total += len(head) + content_bytes(len(properties), len(value), piece)
        out = PyBytes_FromStringAndSize(NULL, total)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        for i in range(first, self.count):
            head = self.heads[i]
            properties = self.properties[i]
            value = self.values[i]
            memcpy(p, PyBytes_AS_STRING(head), len(head))
            p = put_content(
                p + len(head), be16(<const uint8_t *>PyBytes_AS_STRING(head) + 1),
                <const uint8_t *>PyBytes_AS_STRING(properties), len(properties),
                <const uint8_t *>PyBytes_AS_STRING(value), len(value), piece)
        return out


# --- in ---


cdef struct Entry:
    Py_ssize_t route          # where the octet of the exchange's length is; the key follows
    Py_ssize_t properties
    Py_ssize_t body
    uint32_t properties_length
    uint32_t body_length
    uint8_t redelivered


cdef class DeliveryRun:
    """Consecutive deliveries to one consumer; delivery tags rise by one from ``first_tag``."""
    cdef bytes data
    cdef Entry *entries
    cdef Py_ssize_t capacity
    cdef Py_ssize_t start               # where in the scanned bytes the run begins
    cdef Py_ssize_t end
    cdef readonly Py_ssize_t count
    cdef readonly uint64_t first_tag
    cdef readonly uint16_t channel
    cdef readonly bytes consumer_tag

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count

    @property
    def last_tag(self):
        return self.first_tag + self.count - 1

    cdef int add(self, const Entry *entry) except -1:
        cdef Py_ssize_t wanted
        cdef void *grown
        if self.count == self.capacity:
            wanted = max(16, 2 * self.capacity)
            grown = realloc(self.entries, wanted * sizeof(Entry))
            if grown == NULL:
                raise MemoryError
            self.entries = <Entry *>grown
            self.capacity = wanted
        self.entries[self.count] = entry[0]
        self.count += 1
        return 0

    cdef const Entry *at(self, Py_ssize_t index) except NULL:
        if index < 0 or index >= self.count:
            raise IndexError(index)
        return self.entries + index

    cdef bytes part(self, Py_ssize_t start, Py_ssize_t length):
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.data) + start, length)

    def value(self, Py_ssize_t index):
        cdef const Entry *entry = self.at(index)
        return self.part(entry.body, entry.body_length)

    def values(self):
        cdef list out = []
        cdef Py_ssize_t i
        for i in range(self.count):
            out.append(self.part(self.entries[i].body, self.entries[i].body_length))
        return out

    def properties(self, Py_ssize_t index):
        """As they were on the wire: flags and values."""
        cdef const Entry *entry = self.at(index)
        return self.part(entry.properties, entry.properties_length)

    def redelivered(self, Py_ssize_t index):
        return bool(self.at(index).redelivered)

    def route(self, Py_ssize_t index):
        """Exchange and routing key."""
        cdef const Entry *entry = self.at(index)
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(self.data) + entry.route
        return (
            self.part(entry.route + 1, p[0]),
            self.part(entry.route + 2 + p[0], p[1 + p[0]]),
        )

    @staticmethod
    def single(
        uint16_t channel, bytes consumer_tag, uint64_t delivery_tag, bint redelivered,
        bytes exchange, bytes key, bytes properties, bytes body,
    ):
        """A message that came in pieces, as a run of its own."""
        cdef DeliveryRun run = DeliveryRun()
        cdef Entry entry
        run.data = b"".join((bytes((len(exchange),)), exchange, bytes((len(key),)), key,
                             properties, body))
        run.channel = channel
        run.consumer_tag = consumer_tag
        run.first_tag = delivery_tag
        entry.route = 0
        entry.properties = 2 + len(exchange) + len(key)
        entry.body = entry.properties + len(properties)
        entry.properties_length = <uint32_t>len(properties)
        entry.body_length = <uint32_t>len(body)
        entry.redelivered = redelivered
        run.add(&entry)
        return run


cdef class Delivery:
    """One message of a run: a place in it, until somebody asks for more.

    ``_ledger`` is where its answer goes. Subclasses say what a message can do; what is theirs alone
    has an underscore, as programs see all the rest.
    """
    cdef readonly DeliveryRun _run
    cdef readonly Py_ssize_t _index
    cdef readonly object _ledger
    cdef bytes kept

    @property
    def value(self):
        """Its bytes."""
        if self.kept is None:
            self.kept = self._run.value(self._index)
        return self.kept

    @property
    def delivery_tag(self):
        """What the broker calls this delivery, on its channel."""
        return self._run.first_tag + self._index

    @property
    def redelivered(self):
        """Whether it may have been delivered before."""
        return self._run.redelivered(self._index)

    def ack(self):
        """It is done with. Raises AlreadySettled, or DeliveryTimedOut."""
        cdef uint64_t tag = self._run.first_tag + self._index
        return self._ledger.ack(tag, tag)


def deliveries(DeliveryRun run not None, type kind, object ledger):
    """Each message of a run as an instance of ``kind``, a subclass of ``Delivery``."""
    cdef list out = []
    cdef Delivery one
    cdef Py_ssize_t i
    if not issubclass(kind, Delivery):
        raise TypeError(f"{kind.__name__} is no Delivery")
    for i in range(run.count):
        one = <Delivery>(<PyTypeObject *>kind).tp_new(kind, <PyObject *>NO_ARGUMENTS, NULL)
        one._run = run
        one._index = i
        one._ledger = ledger
        out.append(one)
    return out


cdef Found read_delivery(
    const uint8_t *data, Py_ssize_t at, Py_ssize_t size, uint32_t frame_max,
    Entry *entry, Py_ssize_t *end,
) noexcept:
    """Whether a delivery in three (with an empty body two) frames begins at ``at``; the caller has
    seen a whole method frame with the ids of basic.deliver. Places are from ``data``."""
    cdef const uint8_t *p = data + at
    cdef uint32_t length = be32(p + 3), header_length
    cdef uint64_t body_length
    cdef Py_ssize_t next_frame = at + length + FRAME_OVERHEAD, route = at + 12 + p[11] + 9
    # ids 4, tag 1 + n, delivery tag 8, bits 1, exchange 1 + n, key 1 + n
    if length < 4 + 1 + p[11] + 8 + 1 + 2:
        return NOT_A_RUN
    entry.redelivered = data[route - 1] & 1
    entry.route = route
    if route + 2 + data[route] >= next_frame:
        return NOT_A_RUN
    if route + 2 + data[route] + data[route + 1 + data[route]] + 1 != next_frame:
        return NOT_A_RUN
    if size - next_frame < 19:
        return INCOMPLETE
    p = data + next_frame
    if p[0] != FRAME_HEADER or p[1] != data[at + 1] or p[2] != data[at + 2]:
        return NOT_A_RUN
    header_length = be32(p + 3)
    body_length = be64(p + 11)
    if header_length < 14 or header_length > frame_max or body_length > frame_max - FRAME_OVERHEAD:
        return NOT_A_RUN
    if size - next_frame < <Py_ssize_t>header_length + FRAME_OVERHEAD:
        return INCOMPLETE
    if p[7 + header_length] != FRAME_END or be16(p + 7) != 60:
        return NOT_A_RUN
    entry.properties = next_frame + 19
    entry.properties_length = header_length - 12
    next_frame += <Py_ssize_t>header_length + FRAME_OVERHEAD
    entry.body = next_frame + 7
    entry.body_length = <uint32_t>body_length
    end[0] = next_frame
    if body_length == 0:
        return COMPLETE
    end[0] = next_frame + <Py_ssize_t>body_length + FRAME_OVERHEAD
    return whole_body(data, size, at, next_frame, body_length)


cdef bint continues(
    DeliveryRun run, uint16_t channel, const uint8_t *tag_text, uint64_t tag, Py_ssize_t at
) noexcept:
    return (
        run is not None and run.channel == channel and run.end == at
        and tag == run.first_tag + <uint64_t>run.count
        and len(run.consumer_tag) == tag_text[0]
        and memcmp(PyBytes_AS_STRING(run.consumer_tag), tag_text + 1, tag_text[0]) == 0
    )


cdef DeliveryRun finish(DeliveryRun run, const uint8_t *base, list events):
    """Hand a run out with bytes of its own. Gives None, for the next."""
    if run is not None:
        run.data = PyBytes_FromStringAndSize(
            <const char *>base + run.start, run.end - run.start)
        events.append((EVENT_DELIVERIES, run.channel, run))
    return None


def scan(const unsigned char[::1] data, Py_ssize_t size, uint32_t frame_max):
    """Events of the whole frames in the first ``size`` bytes, and how many bytes they took.

    - ``(EVENT_DELIVERIES, channel, run)``
    - ``(EVENT_CONFIRM, channel, first tag, last tag, positive)``: first 0 is the oldest there is
    - ``(EVENT_FRAME, kind, channel, payload)``

    Raises FrameError for what is no frame.
    """
    cdef const uint8_t *base = &data[0] if size else NULL
    cdef const uint8_t *p
    cdef list events = []
    cdef DeliveryRun run = None
    cdef Entry entry
    cdef Found outcome
    cdef Py_ssize_t at = 0, end = 0
    cdef uint32_t length, ids
    cdef uint16_t channel
    cdef uint64_t tag
    while size - at >= 7:
        p = base + at
        channel = be16(p + 1)
        length = be32(p + 3)
        if length > frame_max:
            raise FrameError(f"a frame of {length} bytes, at most {frame_max} were agreed")
        if size - at < <Py_ssize_t>length + FRAME_OVERHEAD:
            break
        if p[7 + length] != FRAME_END:
            raise FrameError("frame does not end with the frame-end octet")
        ids = be32(p + 7) if p[0] == FRAME_METHOD and length >= 13 else 0
        if ids == DELIVER:
            outcome = read_delivery(base, at, size, frame_max, &entry, &end)
            if outcome == INCOMPLETE:
                break
            if outcome == COMPLETE:
                tag = be64(p + 12 + p[11])
                if not continues(run, channel, p + 11, tag, at):
                    run = finish(run, base, events)
                    run = DeliveryRun()
                    run.channel = channel
                    run.start = at
                    run.first_tag = tag
                    run.consumer_tag = PyBytes_FromStringAndSize(<const char *>p + 12, p[11])
                entry.route -= run.start
                entry.properties -= run.start
                entry.body -= run.start
                run.add(&entry)
                run.end = at = end
                continue
        run = finish(run, base, events)
        if (ids == ACK or ids == NACK) and length == 13:
            tag = be64(p + 11)
            events.append((
                EVENT_CONFIRM, channel, 0 if p[19] & 1 else tag, tag, ids == ACK))
        else:
            events.append((
                EVENT_FRAME, p[0], channel,
                PyBytes_FromStringAndSize(<const char *>p + 7, length)))
        at += <Py_ssize_t>length + FRAME_OVERHEAD
    finish(run, base, events)
    return events, at


# --- answers ---


cdef enum:
    SETTLED = 0
    UNSETTLED = 1
    DUE = 2          # acknowledged, and the broker does not know yet
    HELD = 3         # a transaction answers for it, and the broker may not know yet


cdef class Ledger:
    """Delivery tags of one channel that wait for an answer, and acknowledgements that are due.

    Acknowledgements gather until ``take``: those with nothing unanswered below them become one
    frame, however many they are.
    """
    cdef uint8_t *states                # a ring by tag
    cdef uint64_t mask
    cdef uint64_t floor                 # every tag up to it is settled
    cdef readonly uint64_t delivered    # the last tag
    cdef uint64_t due_first
    cdef uint64_t due_last              # 0: nothing is due
    cdef readonly uint16_t channel
    cdef readonly Py_ssize_t unsettled

    def __cinit__(self, uint16_t channel):
        self.channel = channel
        self.mask = 1023
        self.states = <uint8_t *>calloc(self.mask + 1, 1)
        if self.states == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.states)

    cdef int grow(self) except -1:
        cdef uint64_t mask = 2 * self.mask + 1, tag
        cdef uint8_t *states = <uint8_t *>calloc(mask + 1, 1)
        if states == NULL:
            raise MemoryError
        for tag in range(self.floor + 1, self.delivered + 1):
            states[tag & mask] = self.states[tag & self.mask]
        free(self.states)
        self.states = states
        self.mask = mask
        return 0

    @property
    def room(self):
        """How many tags there is memory for."""
        return self.mask + 1

    def deliver(self, uint64_t first, uint64_t last):
        """Tags that were delivered: the next ones."""
        cdef uint64_t tag
        if first != self.delivered + 1 or last < first:
            raise FrameError(f"delivery tag {first} follows {self.delivered}")
        if last - self.floor > self.mask:
            self.pass_settled()
        while last - self.floor > self.mask:
            self.grow()
        for tag in range(first, last + 1):
            self.states[tag & self.mask] = UNSETTLED
        self.delivered = last
        self.unsettled += last + 1 - first

    def ack(self, uint64_t first, uint64_t last):
        """Acknowledge a range with the next ``take``; how many of it were unanswered."""
        cdef uint64_t tag
        cdef Py_ssize_t count = 0
        for tag in range(max(first, self.floor + 1), min(last, self.delivered) + 1):
            if self.states[tag & self.mask] == UNSETTLED:
                self.states[tag & self.mask] = DUE
                count += 1
        if count:
            if self.due_last == 0 or first < self.due_first:
                self.due_first = first
            self.due_last = max(self.due_last, min(last, self.delivered))
            self.unsettled -= count
        return count

    cdef void pass_settled(self) noexcept:
        """Move the floor up without acknowledging anything."""
        while self.floor < self.delivered and self.states[(self.floor + 1) & self.mask] == SETTLED:
            self.floor += 1

    cdef uint64_t advance(self) noexcept:
        """Move the floor up; gives the highest acknowledgement it passed that is due, or 0.

        Not past what is held: to the broker that may be unanswered, and an acknowledgement of all
        below would take it from its transaction.
        """
        cdef uint64_t top = 0
        cdef uint8_t *state
        while self.floor < self.delivered:
            state = self.states + ((self.floor + 1) & self.mask)
            if state[0] == UNSETTLED or state[0] == HELD:
                break
            self.floor += 1
            if state[0] == DUE:
                top = self.floor
            state[0] = SETTLED
        return top

    def take(self):
        """Frames for all that is due."""
        cdef uint64_t top, tag, first
        cdef Py_ssize_t count = 0
        cdef bytes out
        cdef uint8_t *p
        if self.due_last == 0:
            return b""
        top = self.advance()
        first = max(self.due_first, self.floor + 1)
        for tag in range(first, self.due_last + 1):
            count += self.states[tag & self.mask] == DUE
        count += top != 0
        out = PyBytes_FromStringAndSize(NULL, count * ACK_FRAME_BYTES)
        p = <uint8_t *>PyBytes_AS_STRING(out)
        if top:
            p = put_answer(p, self.channel, ACK, top, 1)
        for tag in range(first, self.due_last + 1):
            if self.states[tag & self.mask] == DUE:
                self.states[tag & self.mask] = SETTLED
                p = put_answer(p, self.channel, ACK, tag, 0)
        self.due_last = 0
        return out

    def settle(self, uint64_t first, uint64_t last):
        """Settle a range by other means than an acknowledgement, which the broker knows before it
        gets the next one; gives the ranges in it that were unanswered."""
        return self.mark(first, last, SETTLED)

    def hold(self, uint64_t first, uint64_t last):
        """As ``settle``, by a transaction: the broker knows once ``let_go`` says so."""
        return self.mark(first, last, HELD)

    def let_go(self, uint64_t first, uint64_t last):
        """What is held of a range is settled."""
        cdef uint64_t tag
        for tag in range(max(first, self.floor + 1), min(last, self.delivered) + 1):
            if self.states[tag & self.mask] == HELD:
                self.states[tag & self.mask] = SETTLED

    cdef list mark(self, uint64_t first, uint64_t last, uint8_t state):
        cdef list ranges = []
        cdef uint64_t tag, since = 0
        last = min(last, self.delivered)
        for tag in range(max(first, self.floor + 1), last + 2):
            if tag <= last and self.states[tag & self.mask] == UNSETTLED:
                self.states[tag & self.mask] = state
                self.unsettled -= 1
                since = since or tag
            elif since:
                ranges.append((since, tag - 1))
                since = 0
        return ranges

    def refuse(self, uint64_t first, uint64_t last, bint requeue):
        """basic.reject for what is unanswered of a range, one frame each: a nack of several would
        take in what is unanswered before it."""
        cdef uint64_t tag
        cdef list frames = []
        cdef uint8_t frame[ACK_FRAME_BYTES]
        for start, stop in self.settle(first, last):
            for tag in range(start, stop + 1):
                put_answer(frame, self.channel, REJECT, tag, requeue)
                frames.append(PyBytes_FromStringAndSize(<const char *>frame, ACK_FRAME_BYTES))
        return b"".join(frames)
