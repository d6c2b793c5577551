"""What one subscription knows of one partition's messages: the delivery states, in ranges.

    settled.floor        cursor                             end
         ▼                 ▼                                 ▼
    ─────┬─────────────────┬─────────────────────────────────┬───
     done│ delivered once: │ fresh: never delivered          │
         │ have an entry,  │ no entries, but for offsets in  │
         │ or settled      │ ``ahead`` (delayed, prioritised,│
         │                 │ settled early, no record)       │
    ─────┴─────────────────┴─────────────────────────────────┴───

A fresh message costs nothing here; one that was delivered has an entry until it is settled.
``entries`` keeps them, one for up to 64 messages that are alike. Which state follows which is the
table of ``braidmq.engine.states``.

Ready messages that have an entry also have a bit in the set of their lane, which hands them out
lowest offset first, so that a requeued message keeps its place. Fresh ones belong to lane 0.

At or above ``ceiling`` nothing is ready, whatever its entry says: it waits for messages of other
partitions (``braidmq.engine.barriers``). Everything else is as without it.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memset

from braidmq.engine.entries cimport (
    BLOCK_MASK, BLOCK_SHIFT, BLOCK_SIZE, DELAYED, FIRST_TERMINAL, IN_FLIGHT, READY, WAITING, Block,
    Entry, RangeList, bytes_in, entry_in, separate,
)
from braidmq.engine.lane_table cimport LaneTable
from braidmq.engine.record_times cimport RecordClock
from braidmq.record.offset_set cimport OffsetBits, OffsetSet, braid_ctz, mask_between
from braidmq.record.batch cimport TIMED, RecordBatch, RecordHeader

from braidmq.engine import states

cdef enum:
    ILLEGAL = 255

cdef enum:
    DELIVER = 0

cdef int64_t OFFSET_MAX = 0x7fffffffffffffff

cdef RecordClock NO_LEAD = RecordClock()

cdef uint8_t TABLE[256]


cdef int load_table() except -1:
    cdef bytes cells = states.table()
    cdef int i
    memset(TABLE, ILLEGAL, sizeof(TABLE))
    for i in range(len(cells)):
        TABLE[i] = cells[i]
    assert (states.State.READY, states.State.IN_FLIGHT, states.State.WAITING,
            states.State.DELAYED) == (READY, IN_FLIGHT, WAITING, DELAYED)
    assert min(states.TERMINAL) == FIRST_TERMINAL and states.Event.DELIVER == DELIVER
    return 0

load_table()

cdef inline uint8_t next_state(uint8_t state, int event) noexcept:
    return TABLE[16 * state + event]


cdef inline void hand_to(Entry *entry, const Entry *delivered) noexcept:
    """A message that was delivered before is at a consumer again."""
    if entry.attempts < 0xffff:
        entry.attempts += 1
    entry.consumer = delivered.consumer
    entry.deadline_ms = delivered.deadline_ms
    entry.nonce = delivered.nonce


cdef inline uint8_t following_of(
    const Entry *entry, int event, uint32_t consumer, int64_t not_after_ms
) noexcept:
    """Where an event takes a message; ILLEGAL when it is not for it."""
    if (consumer and entry.consumer != consumer) or entry.deadline_ms > not_after_ms:
        return ILLEGAL
    return next_state(entry.state, event)


cdef inline void answer(Entry *entry, uint8_t following, int64_t deadline_ms) noexcept:
    entry.deadline_ms = deadline_ms
    if following != IN_FLIGHT:
        entry.consumer = 0


cdef Py_ssize_t admit_block(
    DeliveryState state, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t offset,
    int64_t now_ms, const uint8_t *lane_of, RecordClock clock,
) except -1:
    """``DeliveryState.admit`` for the first of some records, which stands at ``offset``, and for
    all that fall into its block with it as long as the messages of the block stay alike. Returns
    the index behind them."""
    cdef const RecordHeader *header = batch.header_at(first)
    cdef int64_t number = offset >> BLOCK_SHIFT
    cdef int low = offset & BLOCK_MASK
    cdef Py_ssize_t end = first + 1
    cdef uint8_t lane
    cdef uint64_t mask
    cdef Block *block
    if lane_of == NULL or batch.summary & TIMED or offset < state.cursor:
        state.admit(header, offset, now_ms, lane_of, clock)
        return end
    lane = lane_of[header.priority]
    stop = min(stop, first + BLOCK_SIZE - low)
    while end < stop and (
        lane_of[batch.header_at(end).priority] == lane
        and batch.header_at(end).value_length == header.value_length
        and (batch.dense or batch.offset_of(end) == batch.offset_of(end - 1) + 1)
    ):
        end += 1
    mask = mask_between(low, low + <int>(end - first))
    block = state.block_at(number)
    if block == NULL:
        block = state.make_block(number)
        block.common.size = header.value_length
        block.common.lane = lane
        block.common.state = READY
    elif (
        block.entries != NULL or block.sizes != NULL or block.present & mask
        or block.common.state != READY or block.common.lane != lane or block.common.attempts
        or block.common.size != header.value_length
    ):
        state.admit(header, offset, now_ms, lane_of, clock)
        return first + 1
    block.present |= mask
    state.counts[READY] += end - first
    state.sizes[READY] += (end - first) * <int64_t>header.value_length
    state.ahead.change(offset, offset + end - first, True)
    state.change_lane(lane, number << BLOCK_SHIFT, mask, True)
    return end


cdef bint can_be_handed_over(const Entry *entry, uint32_t consumer) noexcept:
    if entry.state == IN_FLIGHT:
        return entry.consumer == consumer
    return consumer == 0 and (entry.state == READY or entry.state == WAITING)


cdef class DeliveryState(LaneTable):

    def __cinit__(self, OffsetSet settled, int64_t cursor, int64_t end):
        if not settled.floor <= cursor <= end:
            raise ValueError(f"floor {settled.floor} <= cursor {cursor} <= end {end} must hold")
        self.settled = settled
        self.cursor = cursor
        self.end = end
        self.ceiling = OFFSET_MAX
        self.fresh_bytes = 0
        self.ahead = OffsetBits()
        self.nonce = 0

    # --- what there is ---

    cdef int64_t count_fresh(self) noexcept:
        if self.ceiling >= self.end:
            return self.end - self.cursor - self.ahead.size
        if self.ceiling <= self.cursor:
            return 0
        return self.ceiling - self.cursor - self.ahead.count_between(self.cursor, self.ceiling)

    @property
    def fresh(self):
        """Messages never delivered, and free to be."""
        return self.count_fresh()

    cdef int64_t count_ready(self) noexcept:
        cdef int64_t count
        if self.ceiling >= self.end:
            return self.end - self.cursor - self.ahead.size + self.counts[READY]
        count = self.count_fresh()
        for bits in self.lanes:
            if bits is not None:
                count += (<OffsetBits>bits).count_between(0, self.ceiling)
        return count

    @property
    def held(self):
        """Messages that would be ready if it were not for the ceiling."""
        if self.ceiling >= self.end:
            return 0
        return (self.end - self.cursor - self.ahead.size + self.counts[READY]
                - self.count_ready())

    @property
    def ready(self):
        return self.count_ready()

    @property
    def ready_bytes(self):
        return self.fresh_bytes + self.sizes[READY]

    @property
    def in_flight(self):
        return self.counts[IN_FLIGHT]

    @property
    def in_flight_bytes(self):
        return self.sizes[IN_FLIGHT]

    @property
    def waiting(self):
        return self.counts[WAITING]

    @property
    def delayed(self):
        return self.counts[DELAYED]

    @property
    def depth(self):
        """Messages not settled, in whatever state."""
        return (self.end - self.cursor - self.ahead.size + self.counts[READY]
                + self.counts[IN_FLIGHT] + self.counts[WAITING] + self.counts[DELAYED])

    @property
    def depth_bytes(self):
        return (self.fresh_bytes + self.sizes[READY] + self.sizes[IN_FLIGHT]
                + self.sizes[WAITING] + self.sizes[DELAYED])

    def lane_ready(self, int lane):
        """How many messages are ready in one lane."""
        cdef int64_t count = 0
        if lane < len(self.lanes) and self.lanes[lane] is not None:
            count = (<OffsetBits>self.lanes[lane]).size
            if self.ceiling < self.end:
                count = (<OffsetBits>self.lanes[lane]).count_between(0, self.ceiling)
        if lane == 0:
            count += self.count_fresh()
        return count

    def ready_lanes(self):
        """Lanes that have something ready, most important first."""
        return [lane for lane in range(len(self.lanes)) if self.lane_ready(lane)]

    def waits_below(self, int64_t offset):
        """Whether a message before ``offset`` waits for its retry."""
        cdef int64_t at
        cdef const Entry *entry
        if self.counts[WAITING] == 0:
            return False
        at = self.settled.floor
        offset = min(offset, self.end)
        while at < offset:
            if self.block_at(at >> BLOCK_SHIFT) == NULL:
                at = ((at >> BLOCK_SHIFT) + 1) << BLOCK_SHIFT
                continue
            entry = self.peek(at)
            if entry != NULL and entry.state == WAITING:
                return True
            at += 1
        return False

    def first_unsettled(self, int64_t start, int64_t stop):
        """The first of some offsets that somebody is still to get, or has: not settled, and not
        delayed either, because a delay gives up its place. -1: there is none."""
        cdef int64_t at = max(start, self.settled.floor), known = min(stop, self.end)
        cdef const Entry *entry
        while at < known:
            if at >= self.cursor:
                if not self.ahead.has(at):
                    return at
            elif self.block_at(at >> BLOCK_SHIFT) == NULL:
                at = min(((at >> BLOCK_SHIFT) + 1) << BLOCK_SHIFT, self.cursor)
                continue
            entry = self.peek(at)
            if entry != NULL and entry.state != DELAYED:
                return at
            at += 1
        # What is behind the end is yet to be told of: its transaction is open.
        return max(at, self.end) if max(at, self.end) < stop else -1

    # --- arriving ---

    def published(self, RecordBatch batch, int64_t base_offset, int64_t now_ms,
                  bytes lane_of=None, RecordClock clock not None=NO_LEAD):
        """New records at the end, the first at ``base_offset``.
        ``lane_of`` maps priorities to lanes where the topic has them, ``clock`` reads their times.
        """
        cdef Py_ssize_t i
        cdef const uint8_t *lanes = NULL
        if base_offset < self.end:
            raise ValueError("records arrive in order")
        if base_offset > self.end:
            # Transient records were lost with a restart: nothing stands at these offsets.
            self.vacate(self.end, base_offset)
        self.end = base_offset + batch.count
        if lane_of is None and not batch.summary & TIMED:
            self.fresh_bytes += batch.value_bytes
            return
        if lane_of is not None:
            lanes = <const uint8_t *>lane_of
        i = 0
        while i < batch.count:
            i = admit_block(self, batch, i, batch.count, base_offset + i, now_ms, lanes, clock)
        self.skip_ahead()

    def told(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t now_ms,
             bytes lane_of=None, RecordClock clock not None=NO_LEAD):
        """As ``published``, for a part of a batch that stands at its own offsets, without gaps."""
        cdef Py_ssize_t i
        cdef const uint8_t *lanes = <const uint8_t *>lane_of if lane_of is not None else NULL
        if batch.offset_of(first) != self.end:
            raise ValueError("records arrive in order")
        self.end = batch.offset_of(stop - 1) + 1
        if lane_of is None and not batch.summary & TIMED:
            if stop - first == batch.count:
                self.fresh_bytes += batch.value_bytes
            else:
                self.fresh_bytes += batch.value_bytes_between(first, stop)
            return
        i = first
        while i < stop:
            i = admit_block(self, batch, i, stop, batch.offset_of(i), now_ms, lanes, clock)
        self.skip_ahead()

    cdef int admit(
        self, const RecordHeader *header, int64_t offset, int64_t now_ms, const uint8_t *lane_of,
        RecordClock clock,
    ) except -1:
        """One record that may be delayed or prioritised: it gets an entry, or stays fresh."""
        cdef int64_t due = clock.due(header)
        cdef uint8_t lane = lane_of[header.priority] if lane_of != NULL else 0
        cdef Entry *entry
        if due <= now_ms and lane_of == NULL:
            self.fresh_bytes += header.value_length
            return 0
        entry = self.make(offset, header.value_length, lane)
        self.ahead.change(offset, offset + 1, True)
        if due > now_ms:
            entry.deadline_ms = due
            return self.set_state(entry, offset, DELAYED)
        return self.set_state(entry, offset, READY)

    cdef void skip_ahead(self) noexcept:
        """Move the cursor over offsets that are not fresh."""
        cdef int64_t start = self.cursor
        if self.ahead.size and self.ahead.has(start):
            self.cursor = min(self.ahead.scan(start, False), self.end)
            self.ahead.change(start, self.cursor, False)

    def vacate(self, int64_t start, int64_t stop):
        """No record stands at these offsets, which nobody was told of: they are never fresh."""
        self.end = max(self.end, stop)
        start = max(start, self.cursor)
        if start < stop:
            self.ahead.change(start, stop, True)
            self.skip_ahead()

    def rebuild(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, int64_t now_ms,
                bytes lane_of=None, RecordClock clock not None=NO_LEAD):
        """Records found in the log at start-up, or when the lanes of a topic change.
        Those with an entry only get the lane they belong to. Of the others that are not settled,
        those below the cursor were ready or delayed before; above, they arrive.
        """
        cdef Py_ssize_t i
        cdef int64_t offset
        cdef const RecordHeader *header
        cdef const uint8_t *lanes = <const uint8_t *>lane_of if lane_of is not None else NULL
        cdef Entry *entry
        cdef bint untouched
        # Nothing of what follows the cursor was settled, or has an entry.
        untouched = (
            stop > first and batch.offset_of(first) >= self.cursor and self.settled.size == 0
            and not self.ahead.size and self.settled.floor <= self.cursor
        )
        if untouched and lanes == NULL and not batch.summary & TIMED:
            self.fresh_bytes += batch.value_bytes_of(first, stop)
            return
        i = first
        while i < stop:
            offset = batch.offset_of(i)
            header = batch.header_at(i)
            if (
                offset >= self.cursor and offset >= self.settled.floor and self.settled.size == 0
                and self.peek(offset) == NULL
            ):
                i = admit_block(self, batch, i, stop, offset, now_ms, lanes, clock)
                continue
            i += 1
            if self.peek(offset) != NULL:
                self.move_to_lane(offset, lanes[header.priority] if lanes != NULL else 0)
                continue
            if self.settled.covers(offset):
                continue
            if offset >= self.cursor or clock.due(header) > now_ms:
                self.admit(header, offset, now_ms, lanes, clock)
                if offset < self.cursor:
                    self.ahead.change(offset, offset + 1, False)
            else:
                entry = self.make(
                    offset, header.value_length,
                    lanes[header.priority] if lanes != NULL else 0)
                self.set_state(entry, offset, READY)

    def recount(self):
        """Before ``rebuild``: what is fresh is counted again, everything with an entry stays."""
        self.fresh_bytes = 0

    def rebuild_done(self):
        self.skip_ahead()

    def rebuild_fresh(self, int64_t value_bytes):
        """Records known to be fresh and plain without looking at each."""
        self.fresh_bytes += value_bytes

    def restore(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, uint16_t attempts,
                uint8_t state, int64_t deadline_ms, bytes lane_of=None):
        """Records below the cursor with what was noted of their last delivery."""
        cdef Py_ssize_t i
        cdef int64_t offset
        cdef Entry *entry
        cdef uint8_t lane
        for i in range(first, stop):
            offset = batch.offset_of(i)
            if self.settled.covers(offset):
                continue
            lane = 0
            if lane_of is not None:
                lane = (<const uint8_t *>lane_of)[batch.header_at(i).priority]
            entry = self.make(offset, batch.header_at(i).value_length, lane)
            entry.attempts = attempts
            entry.deadline_ms = deadline_ms
            self.set_state(entry, offset, state)
            if offset >= self.cursor:
                self.ahead.change(offset, offset + 1, True)
        self.skip_ahead()

    # --- handing out ---

    def next_run(self, int lane, int64_t limit):
        """The next ready messages of a lane, ``(start, stop, attempts so far)``, or None.

        All of them have been delivered equally often. Nothing changes. The cursor stands at the
        first fresh message, so whatever has an entry at a lower offset comes before it, and a
        delayed one that has become ready behind it comes after.
        """
        cdef int64_t start = 0, stop = 0, offset
        cdef uint16_t attempts
        if not self.first_ready(lane, limit, self.ceiling, &start, &stop):
            return None
        if start >= self.cursor and lane == 0:
            return start, stop, 0
        attempts = self.peek(start).attempts
        offset = start + 1
        while offset < stop:
            if self.peek(offset).attempts != attempts:
                stop = offset
                break
            offset += 1
        return start, stop, attempts

    def next_to_drop(self):
        """What goes first when there are too many, ``(lane, start, stop)``: the oldest messages of
        the least important lane that has any; None when nothing is ready."""
        cdef int lane
        cdef int64_t start = 0, stop = 0
        for lane in range(<int>len(self.lanes) - 1, -1, -1):
            if self.first_ready(lane, OFFSET_MAX, OFFSET_MAX, &start, &stop):
                return lane, start, stop
        return None

    def oldest_ready(self):
        """The lowest offset that is ready; -1: none is."""
        cdef int lane
        cdef int64_t start = 0, stop = 0, lowest = -1
        for lane in range(len(self.lanes)):
            if self.first_ready(lane, 1, self.ceiling, &start, &stop):
                lowest = start if lowest < 0 else min(lowest, start)
        return lowest

    cdef bint first_ready(
        self, int lane, int64_t limit, int64_t ceiling, int64_t *start, int64_t *stop
    ) except -1:
        """The first ready messages of a lane that stand together, however often delivered."""
        cdef OffsetBits bits
        cdef int64_t offset, end = min(self.end, ceiling)
        if lane < len(self.lanes) and self.lanes[lane] is not None:
            bits = self.lanes[lane]
            offset = bits.scan(0, True) if bits.size else -1
            if 0 <= offset < end and (lane or offset < self.cursor):
                start[0] = offset
                stop[0] = min(bits.scan(offset, False), end)
                if stop[0] - offset > limit:
                    stop[0] = offset + limit
                return True
        if lane == 0 and self.cursor < end and self.end - self.cursor > self.ahead.size:
            start[0] = self.cursor
            stop[0] = end
            if self.ahead.size:
                offset = self.ahead.scan(self.cursor, True)
                if offset >= 0:
                    stop[0] = min(stop[0], offset)
            if stop[0] - self.cursor > limit:
                stop[0] = self.cursor + limit
            return True
        return False

    def deliver(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, uint32_t consumer,
                int64_t deadline_ms, int64_t now_ms):
        """Mark ready messages as being at a consumer; returns the bytes of their values."""
        cdef Py_ssize_t at = first, count
        cdef int64_t offset
        cdef bint unbroken
        cdef Entry delivered
        if stop <= first:
            return 0
        self.nonce += 1
        self.begin_flight(self.nonce, now_ms)
        memset(&delivered, 0, sizeof(Entry))
        delivered.state = next_state(READY, DELIVER)
        delivered.attempts = 1
        delivered.consumer = consumer
        delivered.deadline_ms = deadline_ms
        delivered.nonce = self.nonce
        unbroken = batch.offset_of(stop - 1) - batch.offset_of(first) == stop - 1 - first
        while at < stop:
            offset = batch.offset_of(at)
            count = min(stop - at, BLOCK_SIZE - (offset & BLOCK_MASK)) if unbroken else 1
            if offset >= self.cursor:
                self.deliver_fresh(batch, at, at + count, &delivered)
            else:
                count = min(count, self.cursor - offset)
                self.deliver_again(offset, count, &delivered)
            at += count
        self.pass_over(batch, first, stop)
        return batch.value_bytes_of(first, stop)

    cdef int deliver_fresh(
        self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop, const Entry *delivered
    ) except -1:
        """Messages of one block that were never delivered."""
        cdef int64_t offset = batch.offset_of(first), number = offset >> BLOCK_SHIFT
        cdef int low = offset & BLOCK_MASK, high = low + <int>(stop - first), i
        cdef uint64_t mask = mask_between(low, high)
        cdef int64_t size = batch.value_bytes_of(first, stop)
        cdef Block *block = self.block_at(number)
        if block != NULL:
            if block.present & mask:
                raise ValueError(f"offset {offset} is not fresh")
            separate(block)
            for i in range(low, high):
                block.entries[i] = delivered[0]
                block.entries[i].size = batch.header_at(first + i - low).value_length
        else:
            block = self.make_block(number)
            block.common = delivered[0]
            block.common.size = batch.header_at(first).value_length
            if not batch.is_even():
                block.sizes = <uint32_t *>malloc(BLOCK_SIZE * sizeof(uint32_t))
                if block.sizes == NULL:
                    self.drop_block(number)
                    raise MemoryError
                for i in range(low, high):
                    block.sizes[i] = batch.header_at(first + i - low).value_length
        block.present |= mask
        self.fresh_bytes -= size
        self.counts[delivered.state] += high - low
        self.count_in_flight(delivered.nonce, high - low)
        self.sizes[delivered.state] += size
        return 0

    cdef int deliver_again(
        self, int64_t offset, Py_ssize_t count, const Entry *delivered
    ) except -1:
        """Messages of one block that have an entry."""
        cdef int64_t number = offset >> BLOCK_SHIFT, base = number << BLOCK_SHIFT
        cdef int low = offset & BLOCK_MASK, high = low + <int>count, i
        cdef uint64_t mask = mask_between(low, high)
        cdef Block *block = self.block_at(number)
        cdef Entry *entry
        if block == NULL or mask & ~block.present:
            raise ValueError(f"offset {offset} is not ready")
        for i in range(low, high):
            if entry_in(block, i).state != READY:
                raise ValueError(f"offset {base + i} is not ready")
        if block.entries == NULL and mask == block.present:
            hand_to(&block.common, delivered)
            return self.move_alike(block, number, mask, delivered.state)
        separate(block)
        for i in range(low, high):
            entry = &block.entries[i]
            hand_to(entry, delivered)
            self.set_state(entry, base + i, delivered.state)
        return 0

    def consume(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
        """Hand out ready messages that count as acknowledged at once; returns their bytes."""
        cdef Py_ssize_t i, fresh = max(first, min(stop, batch.index_of(self.cursor)))
        cdef int64_t offset
        cdef Entry *entry
        for i in range(first, fresh):
            offset = batch.offset_of(i)
            entry = self.find(offset)
            if entry == NULL or entry.state != READY:
                raise ValueError(f"offset {offset} is not ready")
            self.set_state(entry, offset, FIRST_TERMINAL)
        self.fresh_bytes -= batch.value_bytes_of(fresh, stop)
        self.pass_over(batch, first, stop)
        return batch.value_bytes_of(first, stop)

    def materialise(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
        """Give fresh records entries of their own, so that they can be handed out in any order."""
        cdef Py_ssize_t i
        cdef int64_t offset
        cdef Entry *entry
        for i in range(first, stop):
            offset = batch.offset_of(i)
            if offset < self.cursor or self.ahead.has(offset):
                continue
            entry = self.make(offset, batch.header_at(i).value_length, 0)
            self.fresh_bytes -= entry.size
            self.set_state(entry, offset, READY)
        self.pass_over(batch, first, stop)

    cdef int pass_over(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop) except -1:
        """The fresh ones among these were just handed out: the cursor moves behind them."""
        cdef int64_t after = batch.offset_of(stop - 1) + 1 if stop > first else 0
        if after > self.cursor:
            if self.ahead.size:
                self.ahead.change(self.cursor, after, False)
            self.cursor = after
            self.skip_ahead()
        return 0

    # --- answers and time ---

    def apply(self, int event, int64_t start, int64_t stop, uint32_t consumer=0,
              int64_t deadline_ms=0, int64_t not_after_ms=0x7fffffffffffffff):
        """Apply an event to the messages with an entry among ``start`` … ``stop - 1``.

        Only to those at ``consumer`` (0: anybody's), whose deadline is not after ``not_after_ms``,
        and for which the table has the event. ``deadline_ms`` is the new deadline. Returns the
        ranges that changed, how many messages and how many bytes of values.
        """
        cdef RangeList changed = RangeList()
        cdef int64_t number, base
        cdef uint64_t mask
        cdef Block *block
        # Blocks that aren't there are skipped whole.
        start = max(start, self.first_block << BLOCK_SHIFT)
        stop = min(stop, (self.first_block + self.used) << BLOCK_SHIFT)
        for number in range(start >> BLOCK_SHIFT, (stop + BLOCK_MASK) >> BLOCK_SHIFT):
            block = self.block_at(number)
            if block == NULL:
                continue
            base = number << BLOCK_SHIFT
            mask = block.present & mask_between(
                <int>max(start - base, 0), <int>min(stop - base, BLOCK_SIZE))
            if mask:
                self.apply_in(block, number, mask, event, consumer, deadline_ms, not_after_ms,
                              changed)
        return changed.result()

    cdef int apply_in(
        self, Block *block, int64_t number, uint64_t mask, int event, uint32_t consumer,
        int64_t deadline_ms, int64_t not_after_ms, RangeList changed,
    ) except -1:
        """``apply`` within one block, to some of its messages."""
        cdef Entry *entry
        cdef uint8_t following
        cdef int64_t base = number << BLOCK_SHIFT
        cdef int index
        if block.entries == NULL:
            following = following_of(&block.common, event, consumer, not_after_ms)
            if following == ILLEGAL:
                return 0
            if following >= FIRST_TERMINAL or mask == block.present:
                changed.add_mask(base, mask, bytes_in(block, mask))
                if following < FIRST_TERMINAL:
                    answer(&block.common, following, deadline_ms)
                return self.move_alike(block, number, mask, following)
            separate(block)
        while mask:
            index = braid_ctz(mask)
            mask &= mask - 1
            entry = &block.entries[index]
            following = following_of(entry, event, consumer, not_after_ms)
            if following == ILLEGAL:
                continue
            changed.add(base + index, base + index + 1, entry.size)
            if following < FIRST_TERMINAL:
                answer(entry, following, deadline_ms)
            # May give the block back, but only with its last message.
            self.set_state(entry, base + index, following)
        return 0

    def delay(self, int64_t offset, int64_t due_ms):
        """A delayed message has another time: the clock that decides its date was set."""
        cdef Entry *entry
        if self.peek(offset) != NULL and self.peek(offset).state == DELAYED:
            entry = self.find(offset)
            entry.deadline_ms = due_ms

    def hand_over(self, int64_t start, int64_t stop, uint32_t consumer, uint32_t holder):
        """What is in flight at ``consumer`` is ``holder``'s from now on, without a deadline.

        Consumer 0, after a restart: what is ready goes to it, waits, or is in flight at nobody who
        is known, as if it had been its before. No delivery is counted. Returns as ``apply``.
        """
        cdef RangeList changed = RangeList()
        cdef int64_t number, base
        cdef uint64_t mask
        cdef Block *block
        cdef Entry *entry
        cdef int index
        start = max(start, self.first_block << BLOCK_SHIFT)
        stop = min(stop, (self.first_block + self.used) << BLOCK_SHIFT)
        for number in range(start >> BLOCK_SHIFT, (stop + BLOCK_MASK) >> BLOCK_SHIFT):
            block = self.block_at(number)
            if block == NULL:
                continue
            base = number << BLOCK_SHIFT
            mask = block.present & mask_between(
                <int>max(start - base, 0), <int>min(stop - base, BLOCK_SIZE))
            if block.entries == NULL and mask == block.present:
                entry = &block.common
                if can_be_handed_over(entry, consumer):
                    changed.add_mask(base, mask, bytes_in(block, mask))
                    self.move_alike(block, number, mask, IN_FLIGHT)
                    entry.consumer = holder
                    entry.deadline_ms = 0
                continue
            while mask:
                index = braid_ctz(mask)
                mask &= mask - 1
                entry = self.find(base + index)
                if can_be_handed_over(entry, consumer):
                    changed.add(base + index, base + index + 1, entry.size)
                    self.set_state(entry, base + index, IN_FLIGHT)
                    entry.consumer = holder
                    entry.deadline_ms = 0
        return changed.result()

    def settle_early(self, int64_t start, int64_t stop):
        """Offsets at or after the cursor that were settled without being handed out."""
        if stop > self.cursor:
            self.ahead.change(max(start, self.cursor), min(stop, self.end), True)
            self.skip_ahead()
            if self.cursor == self.end:
                # Bytes of records that vanished unseen: nobody could say how many they were.
                self.fresh_bytes = 0

    def take_out(self, int event, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
        """Apply EXPIRE or DROP to records, fresh ones included; as ``apply``."""
        cdef RangeList changed = RangeList()
        cdef Py_ssize_t i
        cdef int64_t offset
        cdef uint32_t size
        cdef uint8_t following
        cdef const Entry *known
        if self.is_all_fresh(batch, first, stop) and next_state(READY, event) != ILLEGAL:
            # The oldest of a queue that nobody reads: the cursor passes them, and that is all.
            offset = batch.offset_of(first)
            changed.add(offset, offset + stop - first, batch.value_bytes_of(first, stop))
            self.fresh_bytes -= changed.size
            self.pass_over(batch, first, stop)
            return changed.result()
        if (
            stop > first and batch.offset_of(stop - 1) < self.cursor
            and batch.offset_of(stop - 1) - batch.offset_of(first) == stop - 1 - first
        ):
            # None of them is fresh.
            return self.apply(event, batch.offset_of(first), batch.offset_of(stop - 1) + 1)
        for i in range(first, stop):
            offset = batch.offset_of(i)
            size = batch.header_at(i).value_length
            known = self.peek(offset)
            if known != NULL:
                following = next_state(known.state, event)
                if following == ILLEGAL:
                    continue
                self.set_state(self.find(offset), offset, following)
            elif offset >= self.cursor and not self.ahead.has(offset):
                if next_state(READY, event) == ILLEGAL:
                    continue
                self.fresh_bytes -= size
                self.ahead.change(offset, offset + 1, True)
            else:
                continue
            changed.add(offset, offset + 1, size)
        self.skip_ahead()
        return changed.result()

    cdef bint is_all_fresh(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop) noexcept:
        """Whether these stand together at the cursor, with nothing behind it that is not fresh."""
        cdef int64_t offset
        if stop <= first or self.ahead.size:
            return False
        offset = batch.offset_of(first)
        return (
            offset == self.cursor and offset + stop - first <= self.end
            and batch.offset_of(stop - 1) - offset == stop - 1 - first
        )

    def take_out_all_fresh(self):
        """DROP for everything fresh, without looking at the records."""
        cdef int64_t start = self.cursor, stop
        cdef list ranges = []
        cdef int64_t size = self.fresh_bytes, count = self.end - self.cursor - self.ahead.size
        while start < self.end:
            start = self.ahead.scan(start, False)
            if start >= self.end:
                break
            stop = self.ahead.scan(start, True)
            stop = self.end if stop < 0 else min(stop, self.end)
            ranges.append((start, stop))
            start = stop
        self.ahead.clear()
        self.cursor = self.end
        self.fresh_bytes = 0
        return ranges, count, size

    def rewind(self, int64_t offset):
        """Forget all entries and begin again at ``offset``; ``rebuild`` then counts the records."""
        self.forget_entries()
        self.forget_states()
        self.ahead.clear()
        self.fresh_bytes = 0
        self.cursor = offset

    # --- looking at single messages ---

    def is_ready(self, int64_t offset):
        cdef const Entry *entry = self.peek(offset)
        if entry != NULL:
            return entry.state == READY
        return self.cursor <= offset < self.end and not self.ahead.has(offset)

    def attempt_runs(self, int64_t start, int64_t stop, uint32_t consumer=0):
        """Messages in flight in a range (at one consumer), as runs delivered equally often."""
        cdef list found = []
        cdef int64_t offset, low = -1, high = -1
        cdef uint16_t attempts = 0
        cdef const Entry *entry
        for offset in range(max(start, self.settled.floor), min(stop, self.end)):
            entry = self.peek(offset)
            if (
                entry == NULL or entry.state != IN_FLIGHT
                or (consumer and entry.consumer != consumer)
            ):
                continue
            if offset != high or entry.attempts != attempts:
                if low >= 0:
                    found.append((low, high, attempts))
                low = offset
                attempts = entry.attempts
            high = offset + 1
        if low >= 0:
            found.append((low, high, attempts))
        return found

    def overdue_runs(self, int64_t start, int64_t stop, int64_t now_ms):
        """``(start, stop, consumer)`` of deliveries in a range whose time is over."""
        cdef list found = []
        cdef int64_t offset, low = -1
        cdef uint32_t consumer = 0
        cdef const Entry *entry
        stop = min(stop, self.end)
        for offset in range(max(start, self.settled.floor), stop + 1):
            entry = self.peek(offset) if offset < stop else NULL
            # No deadline is no timeout: the timer is left from an earlier delivery.
            if entry != NULL and not (entry.state == IN_FLIGHT and 0 < entry.deadline_ms <= now_ms):
                entry = NULL
            if low >= 0 and (entry == NULL or entry.consumer != consumer):
                found.append((low, offset, consumer))
                low = -1
            if entry != NULL and low < 0:
                low, consumer = offset, entry.consumer
        return found
