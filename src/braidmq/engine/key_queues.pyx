"""Which ready messages of a partition with priorities may go next: the first of each key.

    key a     3 background ─ 17 critical ─ 40 normal
    key b     5 critical
    no key    8 high
              ▼
    firsts    critical: 5    high: 8    background: 3

17 is critical and waits for 3 all the same: the messages of a key are never out of order. Where
neither of them stands in a window of so many messages, nobody could know without this.

A message is told of when it is ready (``unread``: its key is not known yet), enters its chain when
its record is read, and leaves when it is handed out or gone. One that leaves from the middle of a
chain stays there, not ``live``, until it is reached. Keys are told apart by their hash: two that
share one wait for each other now and then.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove

from braidmq.record.block_directory cimport reserve_slot
from braidmq.record.offset_set cimport OffsetBits

cdef enum:
    SHIFT = 6
    MASK = 63
    SLOTS_MIN = 64


cdef class KeyQueues:

    def __cinit__(self):
        self.unread = OffsetBits()
        self.firsts = []
        self.directory = NULL
        self.used = self.capacity = self.head = 0
        self.first_block = 0
        self.slots = self.count = 0
        self.hint = self.next_offset = -1
        self.next_lane = 0
        self.chains = NULL
        self.resize(SLOTS_MIN)

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.used):
            free(self.directory[i])
        free(self.directory)
        free(self.chains)

    # --- what changes ---

    cdef int ready(self, int64_t start, int64_t stop) except -1:
        self.unread.change(start, stop, True)
        return 0

    cdef int left(self, int64_t start, int64_t stop) except -1:
        """These are not ready any more, whatever they are now."""
        cdef int64_t offset
        if self.unread.change(start, stop, False) == stop - start:
            return 0
        for offset in range(start, stop):
            self.leave(offset)
        return 0

    cdef int enter(self, int64_t offset, uint8_t lane, uint32_t hashed, bint keyed) except -1:
        """A ready message whose record was read."""
        cdef int64_t number = offset >> SHIFT
        cdef uint64_t bit = <uint64_t>1 << (offset & MASK)
        cdef Links *links = self.links_at(number)
        cdef Link *link
        self.unread.change(offset, offset + 1, False)
        if links == NULL:
            if self.used == 0 or number < self.first_block + self.head:
                self.head = 0
            reserve_slot(
                <void ***>&self.directory, &self.capacity, &self.used, &self.first_block, number,
                INT64_MAX)
            links = <Links *>calloc(1, sizeof(Links))
            if links == NULL:
                raise MemoryError
            self.directory[number - self.first_block] = links
        link = &links.links[offset & MASK]
        link.lane = lane
        links.live |= bit
        if links.chained & bit:
            return 0  # it is ready again before its chain noticed that it was not
        links.chained |= bit
        link.next = -1
        link.hash = hashed
        if keyed:
            return self.enter_chain(offset, link)
        links.unkeyed |= bit
        return self.show(offset, lane, True)

    cdef int enter_chain(self, int64_t offset, Link *link) except -1:
        cdef Py_ssize_t slot = self.slot_of(link.hash)
        cdef Chain *chain = &self.chains[slot]
        cdef Link *before
        cdef int64_t at
        if not chain.used:
            chain.used = True
            chain.hash = link.hash
            chain.first = chain.last = offset
            self.count += 1
            self.show(offset, link.lane, True)
            if self.count * 4 > self.slots * 3:
                self.resize(self.slots * 2)
            return 0
        if offset > chain.last:
            self.link_at(chain.last).next = offset
            chain.last = offset
            return 0
        if offset < chain.first:
            link.next = chain.first
            self.show(chain.first, self.link_at(chain.first).lane, False)
            chain.first = offset
            self.hint = offset
            return self.show(offset, link.lane, True)
        # What was handed back comes in order, so that the last one's place is near.
        at = chain.first
        before = self.link_at(self.hint) if chain.first < self.hint < offset else NULL
        if before != NULL and before.hash == link.hash:
            at = self.hint
        before = self.link_at(at)
        while before.next >= 0 and before.next < offset:
            before = self.link_at(before.next)
        link.next = before.next
        before.next = offset
        self.hint = offset
        return 0

    cdef int leave(self, int64_t offset) except -1:
        cdef Link *link
        cdef Links *links = self.links_at(offset >> SHIFT)
        cdef uint64_t bit = <uint64_t>1 << (offset & MASK)
        cdef Py_ssize_t slot
        cdef int64_t at, following
        if links == NULL or not links.live & bit:
            return 0
        link = &links.links[offset & MASK]
        links.live &= ~bit
        if links.unkeyed & bit:
            self.show(offset, link.lane, False)
            self.unlink(offset)
            return 0
        slot = self.slot_of(link.hash)
        if self.chains[slot].first != offset:
            return 0
        self.show(offset, link.lane, False)
        at = offset
        while at >= 0 and not self.is_live(at):
            following = self.link_at(at).next
            self.unlink(at)
            at = following
        if at < 0:
            return self.forget_chain(slot)
        self.chains[slot].first = at
        self.next_offset = at
        self.next_lane = self.link_at(at).lane
        return self.show(at, <uint8_t>self.next_lane, True)

    cdef int show(self, int64_t offset, uint8_t lane, bint first) except -1:
        """Whether a message is the first of its key."""
        while len(self.firsts) <= lane:
            self.firsts.append(OffsetBits())
        (<OffsetBits>self.firsts[lane]).change(offset, offset + 1, first)
        return 0

    # --- what there is ---

    def run(self, int lane, int64_t at, int64_t limit):
        """The next messages of a lane that are the first of their keys and stand together, from
        ``at`` on, ``(start, stop)``; None when there are none, or only behind some whose keys
        nobody knows yet."""
        cdef int64_t ceiling = self.unread.scan(0, True), start, stop
        if lane >= len(self.firsts):
            return None
        start = (<OffsetBits>self.firsts[lane]).scan(at, True)
        if start < 0 or (ceiling >= 0 and start >= ceiling):
            return None
        stop = min((<OffsetBits>self.firsts[lane]).scan(start, False), start + limit)
        return start, min(stop, ceiling) if ceiling >= 0 else stop

    def take_next(self):
        """``(lane, offset)`` of the message that became the first of its key when the last one
        left, or None; once."""
        cdef int64_t offset = self.next_offset
        self.next_offset = -1
        return (self.next_lane, offset) if offset >= 0 else None

    # --- links by offset ---

    cdef Links *links_at(self, int64_t number) noexcept:
        cdef int64_t slot = number - self.first_block
        if slot < 0 or slot >= self.used:
            return NULL
        return self.directory[slot]

    cdef Link *link_at(self, int64_t offset) noexcept:
        cdef Links *links = self.links_at(offset >> SHIFT)
        if links == NULL or not (links.chained >> (offset & MASK)) & 1:
            return NULL
        return &links.links[offset & MASK]

    cdef bint is_live(self, int64_t offset) noexcept:
        return (self.links_at(offset >> SHIFT).live >> (offset & MASK)) & 1

    cdef void unlink(self, int64_t offset) noexcept:
        cdef int64_t number = offset >> SHIFT
        cdef Links *links = self.links_at(number)
        cdef uint64_t bit = <uint64_t>1 << (offset & MASK)
        links.chained &= ~bit
        links.unkeyed &= ~bit
        if links.chained:
            return
        free(links)
        self.directory[number - self.first_block] = NULL
        while self.head < self.used and self.directory[self.head] == NULL:
            self.head += 1
        if self.head == self.used:
            self.used = self.head = 0
        elif self.head * 2 >= self.used:
            # Moving only once half is empty keeps the cost constant.
            self.used -= self.head
            memmove(self.directory, self.directory + self.head, self.used * sizeof(Links *))
            self.first_block += self.head
            self.head = 0

    # --- chains by hash: an open table, what is displaced stands right behind ---

    cdef Py_ssize_t slot_of(self, uint32_t hashed) noexcept:
        """Where the chain of a hash is, or would be."""
        cdef Py_ssize_t slot = hashed & (self.slots - 1)
        while self.chains[slot].used and self.chains[slot].hash != hashed:
            slot = (slot + 1) & (self.slots - 1)
        return slot

    cdef int resize(self, Py_ssize_t slots) except -1:
        cdef Chain *old = self.chains
        cdef Py_ssize_t before = self.slots, i
        cdef Chain *new = <Chain *>calloc(slots, sizeof(Chain))
        if new == NULL:
            raise MemoryError
        self.chains = new
        self.slots = slots
        for i in range(before):
            if old[i].used:
                self.chains[self.slot_of(old[i].hash)] = old[i]
        free(old)
        return 0

    cdef int forget_chain(self, Py_ssize_t slot) except -1:
        cdef Py_ssize_t mask = self.slots - 1, hole = slot, at = slot, home
        self.chains[hole].used = False
        self.count -= 1
        while True:
            at = (at + 1) & mask
            if not self.chains[at].used:
                break
            home = self.chains[at].hash & mask
            # Whoever is looked for from its home on must be found before a hole.
            if (at - home) & mask >= (at - hole) & mask:
                self.chains[hole] = self.chains[at]
                self.chains[at].used = False
                hole = at
        if self.slots > SLOTS_MIN and self.count * 8 < self.slots:
            self.resize(self.slots // 2)
        return 0
