"""What is known of single messages, by offset.

There is a block for each 64 consecutive offsets that have any entry:

    all alike     present: one bit each ── one entry for all (their sizes beside it if they differ)
    otherwise     present: one bit each ── 64 entries of 24 bytes

What was handed out together is alike, and leaves by its bits being cleared: a run costs a step per
64 messages. A block gets entries for each once some of its messages go another way than the others.
A sorted list of ranges would be smaller still, and quadratic for scattered answers.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memmove, memset

from braidmq.record.block_directory cimport reserve_slot
from braidmq.record.offset_set cimport braid_ctz, braid_popcount, mask_between
from braidmq.record.batch cimport RecordBatch


cdef int64_t bytes_in(const Block *block, uint64_t mask) noexcept:
    """Bytes of the values of some messages of a block."""
    cdef int64_t total = 0
    if block.entries == NULL and block.sizes == NULL:
        return <int64_t>braid_popcount(mask) * block.common.size
    while mask:
        total += size_in(block, braid_ctz(mask))
        mask &= mask - 1
    return total


cdef int separate(Block *block) except -1:
    """Give each message of a block an entry of its own."""
    cdef uint64_t mask = block.present
    cdef int index
    cdef Entry *entries
    if block.entries != NULL:
        return 0
    entries = <Entry *>malloc(BLOCK_SIZE * sizeof(Entry))
    if entries == NULL:
        raise MemoryError
    while mask:
        index = braid_ctz(mask)
        entries[index] = block.common
        entries[index].size = size_in(block, index)
        mask &= mask - 1
    free(block.sizes)
    block.sizes = NULL
    block.entries = entries
    return 0


cdef void release(Block *block) noexcept:
    if block != NULL:
        free(block.entries)
        free(block.sizes)
        free(block)


cdef class RangeList:
    """Offsets in rising order, gathered into ranges."""

    def __cinit__(self):
        self.ranges = []
        self.start = self.stop = -1
        self.count = self.size = 0

    cdef int add(self, int64_t start, int64_t stop, int64_t size) except -1:
        self.count += stop - start
        self.size += size
        if start != self.stop:
            self.close()
            self.start = start
        self.stop = stop
        return 0

    cdef int add_mask(self, int64_t base, uint64_t mask, int64_t size) except -1:
        cdef int low, count
        self.size += size
        while mask:
            low = braid_ctz(mask)
            count = run_length(mask, low)
            self.add(base + low, base + low + count, 0)
            mask &= ~mask_between(low, low + count)
        return 0

    cdef int close(self) except -1:
        if self.start >= 0:
            self.ranges.append((self.start, self.stop))
            self.start = self.stop = -1
        return 0

    cdef tuple result(self):
        self.close()
        return self.ranges, self.count, self.size


cdef class EntryTable:
    """The directory of blocks. What the entries mean is its heir's business."""

    def __cinit__(self, *args):
        self.directory = NULL
        self.used = self.capacity = self.head = 0
        self.first_block = 0

    def __dealloc__(self):
        self.forget_entries()
        free(self.directory)

    @property
    def directory_size(self):
        return self.used

    cdef void forget_entries(self) noexcept:
        cdef Py_ssize_t i
        for i in range(self.used):
            release(self.directory[i])
        self.used = self.head = 0

    cdef Block *block_at(self, int64_t number) noexcept:
        cdef int64_t slot = number - self.first_block
        if slot < 0 or slot >= self.used:
            return NULL
        return self.directory[slot]

    cdef Block *make_block(self, int64_t number) except NULL:
        """A block where there was none; it has no entries."""
        cdef Block *block
        cdef bint was_empty = self.used == 0
        cdef int64_t before = reserve_slot(
            <void ***>&self.directory, &self.capacity, &self.used, &self.first_block,
            number, INT64_MAX,
        )
        if was_empty or before:
            self.head = 0
        block = <Block *>calloc(1, sizeof(Block))
        if block == NULL:
            raise MemoryError
        self.directory[number - self.first_block] = block
        self.head = min(self.head, number - self.first_block)
        return block

    cdef void drop_block(self, int64_t number) noexcept:
        cdef int64_t slot = number - self.first_block
        release(self.directory[slot])
        self.directory[slot] = NULL
        if slot == self.head:
            self.trim()

    cdef const Entry *peek(self, int64_t offset) noexcept:
        """What is known of a message, to look at; NULL when it has no entry."""
        cdef const Block *block = self.block_at(offset >> BLOCK_SHIFT)
        if block == NULL or not (block.present >> (offset & BLOCK_MASK)) & 1:
            return NULL
        return entry_in(block, offset & BLOCK_MASK)

    cdef Entry *find(self, int64_t offset) except? NULL:
        """The entry of a message, its own, to be changed; NULL when it has none."""
        cdef Block *block = self.block_at(offset >> BLOCK_SHIFT)
        cdef int index = offset & BLOCK_MASK
        if block == NULL or not (block.present >> index) & 1:
            return NULL
        if block.entries == NULL and block.present == <uint64_t>1 << index:
            block.common.size = size_in(block, index)
            free(block.sizes)
            block.sizes = NULL
            return &block.common
        separate(block)
        return &block.entries[index]

    cdef Entry *make(self, int64_t offset, uint32_t size, uint8_t lane) except NULL:
        """The entry of ``offset``, new ones in no state yet."""
        cdef Block *block = self.block_at(offset >> BLOCK_SHIFT)
        cdef uint64_t bit = <uint64_t>1 << (offset & BLOCK_MASK)
        cdef Entry *entry
        if block == NULL:
            block = self.make_block(offset >> BLOCK_SHIFT)
        elif not block.present & bit:
            separate(block)
        if not block.present & bit:
            entry = <Entry *>entry_in(block, offset & BLOCK_MASK)
            memset(entry, 0, sizeof(Entry))
            entry.state = NO_STATE
            entry.size = size
            entry.lane = lane
            block.present |= bit
        return self.find(offset)

    cdef void remove(self, int64_t offset) noexcept:
        """Give an entry back; the caller has taken it out of the counts."""
        cdef int64_t number = offset >> BLOCK_SHIFT
        cdef Block *block = self.directory[number - self.first_block]
        block.present &= ~(<uint64_t>1 << (offset & BLOCK_MASK))
        if block.present == 0:
            self.drop_block(number)

    cdef void trim(self) noexcept:
        """Moving blocks only once half of the directory is empty keeps the cost constant."""
        while self.head < self.used and self.directory[self.head] == NULL:
            self.head += 1
        if self.head == self.used:
            self.used = self.head = 0
        elif self.head * 2 >= self.used:
            self.used -= self.head
            memmove(self.directory, self.directory + self.head, self.used * sizeof(Block *))
            self.first_block += self.head
            self.head = 0

    # --- looking for entries ---

    def held_by(self, uint32_t consumer):
        """Ranges in flight at a consumer."""
        return self.entries_where(IN_FLIGHT, consumer)

    def in_state(self, uint8_t state):
        """Ranges of entries in a state."""
        return self.entries_where(state, 0)

    def entries_where(self, uint8_t state, uint32_t consumer):
        cdef RangeList found = RangeList()
        cdef Py_ssize_t i
        cdef int index
        cdef uint64_t mask
        cdef int64_t base
        cdef const Block *block
        cdef const Entry *entry
        for i in range(self.used):
            block = self.directory[i]
            if block == NULL:
                continue
            base = (self.first_block + i) << BLOCK_SHIFT
            mask = block.present
            while mask:
                index = braid_ctz(mask)
                entry = entry_in(block, index)
                if entry.state == state and (consumer == 0 or entry.consumer == consumer):
                    if block.entries == NULL:
                        found.add_mask(base, mask, 0)
                        break
                    found.add(base + index, base + index + 1, 0)
                mask &= mask - 1
        return found.result()[0]

    def look(self, int64_t offset):
        """``(state, attempts, consumer, nonce, deadline)`` of a message with an entry, or None."""
        cdef const Entry *entry = self.peek(offset)
        if entry == NULL:
            return None
        return entry.state, entry.attempts, entry.consumer, entry.nonce, entry.deadline_ms

    def delivery_runs(self, RecordBatch batch, Py_ssize_t first, Py_ssize_t stop):
        """How often records were delivered so far: ``(start, stop, deliveries)`` of each run."""
        cdef list found = []
        cdef Py_ssize_t i
        cdef int64_t offset, low = -1, high = -1
        cdef uint16_t attempts = 0, before = 0
        cdef const Entry *entry
        for i in range(first, stop):
            offset = batch.offset_of(i)
            entry = self.peek(offset)
            attempts = entry.attempts if entry != NULL else 0
            if offset != high or attempts != before:
                if low >= 0:
                    found.append((low, high, before))
                low = offset
                before = attempts
            high = offset + 1
        if low >= 0:
            found.append((low, high, before))
        return found

    def notes(self, outliving=frozenset()):
        """What a restart must know of delivered messages: (start, stop, attempts, state, deadline)
        of each run of equal entries that were delivered at least once. Of what is in flight the
        deadline counts at consumers that are ``outliving`` it: 0 for others."""
        cdef list found = []
        cdef Py_ssize_t i
        cdef const Block *block
        cdef const Entry *entry
        cdef uint64_t mask
        cdef int64_t offset, start = -1, stop = -1, deadline = 0, until
        cdef uint16_t attempts = 0
        cdef uint8_t state = 0
        for i in range(self.used):
            block = self.directory[i]
            mask = block.present if block != NULL else 0
            while mask:
                entry = entry_in(block, braid_ctz(mask))
                offset = ((self.first_block + i) << BLOCK_SHIFT) + braid_ctz(mask)
                mask &= mask - 1
                if entry.attempts == 0:
                    continue
                until = entry.deadline_ms if entry.state == WAITING else 0
                if entry.state == IN_FLIGHT and entry.deadline_ms and entry.consumer in outliving:
                    until = entry.deadline_ms
                if not (offset == stop and entry.attempts == attempts and entry.state == state
                        and until == deadline):
                    if start >= 0:
                        found.append((start, stop, attempts, state, deadline))
                    start = offset
                    attempts, state, deadline = entry.attempts, entry.state, until
                stop = offset + 1
        if start >= 0:
            found.append((start, stop, attempts, state, deadline))
        return found
