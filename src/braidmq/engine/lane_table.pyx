"""Entries that move between states, counted, and those that are ready by the lane they belong to.

Ready messages that have an entry have a bit in the set of their lane. Where the order of keys is
kept, too, ``key_queues`` hears of every change of those bits.

What is in flight is counted by when it was handed out, all that was within ``GRAIN_MS`` together:
the nonce of a delivery says in which of those flights it was.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from braidmq.engine.entries cimport (
    BLOCK_SHIFT, FIRST_TERMINAL, IN_FLIGHT, NO_STATE, READY, Block, Entry, EntryTable, bytes_in,
    run_length,
)
from braidmq.engine.key_queues cimport KeyQueues
from braidmq.record.batch cimport KEYED, RecordBatch, RecordHeader
from braidmq.record.key_hash cimport hash_of_record
from braidmq.record.offset_set cimport OffsetBits, braid_ctz, braid_popcount, mask_between

cdef enum:
    LANES_MAX = 256         # a lane for each value of a priority at most
    GRAIN_MS = 100


cdef class LaneTable(EntryTable):

    def __cinit__(self, *args):
        self.lane_flights = NULL
        self.flights = NULL
        self.forget_states()

    def __dealloc__(self):
        free(self.lane_flights)
        if self.flights != NULL:
            free(self.flights.places)
            free(self.flights)

    cdef void forget_states(self) noexcept:
        """Nothing has an entry any more."""
        memset(self.counts, 0, sizeof(self.counts))
        memset(self.sizes, 0, sizeof(self.sizes))
        self.lanes = [None]
        self.key_queues = None
        if self.flights != NULL:
            self.flights.used = 0
        if self.lane_flights != NULL:
            memset(self.lane_flights, 0, LANES_MAX * sizeof(int64_t))

    cdef OffsetBits lane_bits(self, int lane):
        while len(self.lanes) <= lane:
            self.lanes.append(None)
        if self.lanes[lane] is None:
            self.lanes[lane] = OffsetBits()
        return self.lanes[lane]

    cdef int change_lane(self, int lane, int64_t base, uint64_t mask, bint ready) except -1:
        cdef int low, count
        while mask:
            low = braid_ctz(mask)
            count = run_length(mask, low)
            self.set_ready(lane, base + low, base + low + count, ready)
            mask &= ~mask_between(low, low + count)
        return 0

    cdef int set_ready(self, int lane, int64_t start, int64_t stop, bint ready) except -1:
        self.lane_bits(lane).change(start, stop, ready)
        if self.key_queues is not None:
            if ready:
                self.key_queues.ready(start, stop)
            else:
                self.key_queues.left(start, stop)
        return 0

    cdef int count_flights(self, int lane, int64_t count) except -1:
        """Messages of a lane are in flight, or were. Those of lane 0 are what others leave."""
        if self.lane_flights == NULL:
            self.lane_flights = <int64_t *>calloc(LANES_MAX, sizeof(int64_t))
            if self.lane_flights == NULL:
                raise MemoryError
        self.lane_flights[lane] += count
        return 0

    # --- since when ---

    cdef int begin_flight(self, uint32_t nonce, int64_t now_ms) except -1:
        """What is delivered from now on, with ``nonce`` and those after it."""
        cdef Flights *flights = self.flights
        cdef Flight *last = NULL
        if flights != NULL and flights.used > 1:
            last = &flights.places[flights.used - 1]
            if last.count and now_ms - last.since_ms < GRAIN_MS:
                flights.last_nonce = nonce
                return 0
        if last == NULL or last.count:
            self.reserve_flights()
            flights = self.flights
            last = &flights.places[flights.used]
            flights.used += 1
        flights.last_nonce = nonce
        last.nonce, last.since_ms, last.count = nonce, now_ms, 0
        return 0

    cdef int reserve_flights(self) except -1:
        """Room for one more: that of those of which nothing is in flight any more, first."""
        cdef int i, kept = 1, capacity
        cdef Flights *flights
        cdef Flight *grown
        if self.flights == NULL:
            self.flights = <Flights *>calloc(1, sizeof(Flights))
            if self.flights == NULL:
                raise MemoryError
        flights = self.flights
        if flights.used == flights.capacity:
            for i in range(1, flights.used):
                if flights.places[i].count:
                    flights.places[kept] = flights.places[i]
                    kept += 1
            flights.used = min(flights.used, kept)
            if flights.used * 2 >= flights.capacity:
                capacity = 2 * flights.capacity + 4
                grown = <Flight *>realloc(flights.places, capacity * sizeof(Flight))
                if grown == NULL:
                    raise MemoryError
                flights.places = grown
                flights.capacity = capacity
        if flights.used == 0:
            memset(flights.places, 0, sizeof(Flight))
            flights.used = 1
        return 0

    cdef Flight *flight_of(self, uint32_t nonce) noexcept:
        """The last that began with ``nonce`` or before; they wrap around."""
        cdef Flights *flights = self.flights
        cdef int low = 0, high = flights.used - 1, middle
        cdef uint32_t age = flights.last_nonce - nonce
        while low < high:
            middle = (low + high + 1) // 2
            if <uint32_t>(flights.last_nonce - flights.places[middle].nonce) >= age:
                low = middle
            else:
                high = middle - 1
        return &flights.places[low]

    cdef int count_in_flight(self, uint32_t nonce, int64_t count) except -1:
        cdef Flight *flight
        cdef int i
        if self.flights == NULL or self.flights.used == 0:
            self.reserve_flights()
        flight = self.flight_of(nonce)
        flight.count += count
        if flight.count < 0:
            # Nobody knows when what a restart left in flight was handed out: its nonces mean
            # nothing.
            for i in range(self.flights.used):
                if self.flights.places[i].count >= -flight.count:
                    self.flights.places[i].count += flight.count
                    flight.count = 0
                    break
        return 0

    @property
    def in_flight_since_ms(self):
        """When the oldest delivery that is not answered was handed out, as far as this process
        knows; -1: nothing is in flight, or it was before a restart."""
        cdef int i
        if self.flights != NULL:
            for i in range(1, self.flights.used):
                if self.flights.places[i].count > 0:
                    return self.flights.places[i].since_ms
        return -1

    cdef int set_state(self, Entry *entry, int64_t offset, uint8_t state) except -1:
        """Move an entry between states; terminal ones are removed."""
        if entry.state != NO_STATE:
            self.counts[entry.state] -= 1
            self.sizes[entry.state] -= entry.size
            if entry.state == READY:
                self.set_ready(entry.lane, offset, offset + 1, False)
            elif entry.state == IN_FLIGHT:
                self.count_in_flight(entry.nonce, -1)
                if entry.lane:
                    self.count_flights(entry.lane, -1)
        if state >= FIRST_TERMINAL:
            self.remove(offset)
            return 0
        entry.state = state
        self.counts[state] += 1
        self.sizes[state] += entry.size
        if state == READY:
            self.set_ready(entry.lane, offset, offset + 1, True)
        elif state == IN_FLIGHT:
            self.count_in_flight(entry.nonce, 1)
            if entry.lane:
                self.count_flights(entry.lane, 1)
        return 0

    cdef int move_alike(self, Block *block, int64_t number, uint64_t mask, uint8_t state) except -1:
        """The same for messages of a block that are alike: for all of them, or out of it."""
        cdef uint8_t before = block.common.state
        cdef int count = braid_popcount(mask)
        cdef int64_t size = bytes_in(block, mask)
        self.counts[before] -= count
        self.sizes[before] -= size
        cdef int lane = block.common.lane
        if before == READY:
            self.change_lane(lane, number << BLOCK_SHIFT, mask, False)
        elif before == IN_FLIGHT:
            self.count_in_flight(block.common.nonce, -count)
            if lane:
                self.count_flights(lane, -count)
        if state >= FIRST_TERMINAL:
            block.present &= ~mask
            if block.present == 0:
                self.drop_block(number)
            return 0
        block.common.state = state
        self.counts[state] += count
        self.sizes[state] += size
        if state == READY:
            self.change_lane(lane, number << BLOCK_SHIFT, mask, True)
        elif state == IN_FLIGHT:
            self.count_in_flight(block.common.nonce, count)
            if lane:
                self.count_flights(lane, count)
        return 0

    cdef int move_to_lane(self, int64_t offset, uint8_t lane) except -1:
        cdef Entry *entry
        if self.peek(offset).lane != lane:
            entry = self.find(offset)
            if entry.state == READY:
                self.set_ready(entry.lane, offset, offset + 1, False)
                self.set_ready(lane, offset, offset + 1, True)
            elif entry.state == IN_FLIGHT:
                if entry.lane:
                    self.count_flights(entry.lane, -1)
                if lane:
                    self.count_flights(lane, 1)
            entry.lane = lane
        return 0

    def lane_in_flight(self, int lane):
        """How many messages of one lane are in flight."""
        cdef int64_t others = 0
        cdef int each
        if self.lane_flights == NULL:
            return 0 if lane else self.counts[IN_FLIGHT]
        if lane:
            return self.lane_flights[lane]
        for each in range(1, LANES_MAX):
            others += self.lane_flights[each]
        return self.counts[IN_FLIGHT] - others

    # --- the order of keys, where there are lanes ---

    def queue_keys(self):
        """Keep the ready messages by key from now on, until ``forget_key_queues`` or a rewind."""
        cdef OffsetBits bits
        cdef int64_t low, high
        if self.key_queues is None:
            self.key_queues = KeyQueues()
            for bits in self.lanes:
                low = bits.scan(0, True) if bits is not None else -1
                while low >= 0:
                    high = bits.scan(low, False)
                    self.key_queues.ready(low, high)
                    low = bits.scan(high, True)
        return self.key_queues

    def forget_key_queues(self):
        self.key_queues = None

    def read_keys(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
        """Records that are ready, and whose keys were not known, enter their queues."""
        cdef KeyQueues queues = self.key_queues
        cdef const RecordHeader *header
        cdef Py_ssize_t i
        cdef int64_t offset
        cdef bint keyed
        for i in range(first, stop):
            offset = batch.offset_of(i)
            if queues.unread.has(offset):
                header = batch.header_at(i)
                keyed = header.flags & KEYED != 0
                queues.enter(
                    offset, self.peek(offset).lane, hash_of_record(header) if keyed else 0, keyed)
