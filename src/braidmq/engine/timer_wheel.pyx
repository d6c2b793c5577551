"""Every timer of a node: delays, retries, visibility, TTL, sessions.

    tick (10 ms)   63 … 26      25 … 20    19 … 14    13 … 8     7 … 0
                   revolution   level 3    level 2    level 1    level 0

                                  slots   one covers   all cover
               ┌─┬─┬─┬─┬─ … ─┬─┐
    level 0    │ │▪│ │ │     │ │    256   10 ms        2.56 s       one tick: fires in list order
               └─┴─┴─┴─┴─ … ─┴─┘
               ┌──┬──┬── … ──┬──┐    ↖ cascade, when the cursor enters the slot
    level 1    │  │▪▪│       │▪ │    64   2.56 s       2 min 44 s
               └──┴──┴── … ──┴──┘
               ┌──┬──┬── … ──┬──┐    ↖
    level 2    │  │  │       │▪ │    64   2 min 44 s   2 h 55 min
               └──┴──┴── … ──┴──┘
               ┌──┬──┬── … ──┬──┐    ↖
    level 3    │  │▪ │       │  │    64   2 h 55 min   7.77 days
               └──┴──┴── … ──┴──┘
                                     ↖ at most once a revolution
    overflow   ▪ ▪ ▪ ▪ ▪                               later revolutions, without end

    occupied   8 words, one bit a list: 0–3 level 0, 4 level 1, 5 level 2, 6 level 3, 7 overflow

A timer waits at the highest level where its tick and the cursor differ, so its list follows from
the two and is not stored, and every list behind the cursor is empty. The first bit of ``occupied``
is then what comes next, however far away: empty time costs nothing.

A list that timers cascade into is empty until then, and what is scheduled later goes behind them.
So lists are always in order of scheduling, and no timer carries a sequence number.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from posix.mman cimport MADV_HUGEPAGE, madvise
from posix.stdlib cimport posix_memalign

cdef extern from *:
    """
    static inline int braid_ctz(unsigned long long word) { return __builtin_ctzll(word); }
    """
    int braid_ctz(uint64_t word) noexcept nogil

cdef enum:
    TICK_MS = 10
    LEVEL_0_BITS = 8
    LEVEL_BITS = 6
    LEVEL_0_SLOTS = 1 << LEVEL_0_BITS
    LEVEL_SLOTS = 1 << LEVEL_BITS
    LEVEL_1_SHIFT = LEVEL_0_BITS
    LEVEL_2_SHIFT = LEVEL_1_SHIFT + LEVEL_BITS
    LEVEL_3_SHIFT = LEVEL_2_SHIFT + LEVEL_BITS
    REVOLUTION_SHIFT = LEVEL_3_SHIFT + LEVEL_BITS
    LEVEL_1 = LEVEL_0_SLOTS
    LEVEL_2 = LEVEL_1 + LEVEL_SLOTS
    LEVEL_3 = LEVEL_2 + LEVEL_SLOTS
    OVERFLOW = LEVEL_3 + LEVEL_SLOTS
    NO_TIMER = 0  # index 0 is never used, so zeroed lists are empty lists
    NO_LIST = -1
    CAPACITY_MIN = 64
    LINE_BYTES = 64
    HUGE_PAGE_BYTES = 2 << 20
    CHUNK_SHIFT = 15  # a chunk is a huge page
    CHUNK_TIMERS = 1 << 15
    CHUNK_MASK = CHUNK_TIMERS - 1

assert sizeof(TimerKind) == LINE_BYTES

cdef uint64_t NEVER = ~(<uint64_t>0)
# Indices are 32 bits, half of a handle.
cdef uint64_t CAPACITY_MAX = (<uint64_t>1) << 32


cdef TimerKind *allocate(uint64_t timers) except NULL:
    cdef size_t size = timers * sizeof(TimerKind)
    cdef void *memory = NULL
    if posix_memalign(&memory, min(size, <size_t>HUGE_PAGE_BYTES), size) != 0:
        raise MemoryError
    if size >= HUGE_PAGE_BYTES:
        # Timers are touched in no order: with small pages each touch would miss the TLB too.
        # It is a wish, and where it isn't granted the wheel is only slower.
        madvise(memory, size, MADV_HUGEPAGE)
    return <TimerKind *>memory


cdef class TimerWheel:
    """Timers by the time they are due; it is told the time and never asks for it."""

    def __cinit__(self, int64_t now_ms):
        if now_ms < 0:
            raise ValueError("time is not negative")
        self.now_ms = now_ms
        self.cursor = now_ms // TICK_MS
        self.used = 1
        self.first_revolution = NEVER

    def __dealloc__(self):
        cdef uint64_t i
        for i in range(self.chunk_count):
            free(self.chunks[i])
        free(self.chunks)

    # --- memory ---

    cdef inline TimerKind *at(self, uint32_t index) noexcept:
        return &self.chunks[index >> CHUNK_SHIFT][index & CHUNK_MASK]

    cdef int grow(self) except -1:
        """The first chunk doubles until it is whole; from then on there is one more each time, so
        that no growth moves more than one of them."""
        cdef uint64_t wanted = CHUNK_TIMERS
        cdef TimerKind *first
        if self.capacity < CHUNK_TIMERS:
            wanted = max(2 * self.capacity, <uint64_t>CAPACITY_MIN)
        if self.capacity + wanted > CAPACITY_MAX:
            raise OverflowError("too many timers for one wheel")
        if self.capacity == 0 or self.capacity >= CHUNK_TIMERS:
            self.add_chunk(wanted)
            self.capacity += wanted
            return 0
        first = allocate(wanted)
        memcpy(first, self.chunks[0], self.used * sizeof(TimerKind))
        free(self.chunks[0])
        self.chunks[0] = first
        self.capacity = wanted
        return 0

    cdef int add_chunk(self, uint64_t timers) except -1:
        cdef void *grown
        if self.chunk_count & (self.chunk_count - 1) == 0:
            # Its room doubles whenever the count is a power of two.
            grown = realloc(self.chunks, max(2 * self.chunk_count, 1) * sizeof(TimerKind *))
            if grown == NULL:
                raise MemoryError
            self.chunks = <TimerKind **>grown
        self.chunks[self.chunk_count] = allocate(timers)
        self.chunk_count += 1
        return 0

    cdef uint32_t acquire(self) except 0:
        cdef uint32_t index = self.first_free
        if index != NO_TIMER:
            self.first_free = self.at(index).next
        else:
            if self.used >= self.capacity:
                self.grow()
            index = <uint32_t>self.used
            self.used += 1
            self.at(index).generation = 0
        assert self.at(index).generation & 1 == 0
        self.at(index).generation += 1
        self.pending += 1
        return index

    cdef void release(self, uint32_t index) noexcept:
        cdef TimerKind *timer = self.at(index)
        timer.generation += 1
        self.pending -= 1
        # After 2**31 uses the generation is 0 again. Such an index is retired: 64 bytes lost, but
        # no handle ever means two timers.
        if timer.generation != 0:
            timer.next = self.first_free
            self.first_free = index

    cdef uint32_t find(self, uint64_t handle) noexcept:
        """The index of a pending timer; NO_TIMER for a stale handle or one never given out."""
        cdef uint32_t index = <uint32_t>handle
        cdef uint32_t generation = <uint32_t>(handle >> 32)
        if generation & 1 == 0 or index == NO_TIMER or index >= self.used:
            return NO_TIMER
        return index if self.at(index).generation == generation else NO_TIMER

    # --- lists ---

    cdef uint64_t tick_of(self, int64_t due_ms) noexcept:
        """Rounded up, so that no timer is early. What is overdue belongs to the tick of now."""
        if due_ms <= self.now_ms:
            return self.now_ms // TICK_MS
        return due_ms // TICK_MS + (due_ms % TICK_MS != 0)

    cdef int list_of(self, uint64_t tick) noexcept:
        cdef uint64_t differing = tick ^ self.cursor
        if differing >> LEVEL_1_SHIFT == 0:
            return <int>(tick & (LEVEL_0_SLOTS - 1))
        if differing >> LEVEL_2_SHIFT == 0:
            return LEVEL_1 + <int>((tick >> LEVEL_1_SHIFT) & (LEVEL_SLOTS - 1))
        if differing >> LEVEL_3_SHIFT == 0:
            return LEVEL_2 + <int>((tick >> LEVEL_2_SHIFT) & (LEVEL_SLOTS - 1))
        if differing >> REVOLUTION_SHIFT == 0:
            return LEVEL_3 + <int>((tick >> LEVEL_3_SHIFT) & (LEVEL_SLOTS - 1))
        return OVERFLOW

    cdef void append(self, uint32_t index) noexcept:
        cdef uint64_t tick = self.at(index).tick
        cdef int which = self.list_of(tick)
        cdef uint32_t last = self.tail[which]
        self.at(index).prev = last
        self.at(index).next = NO_TIMER
        self.tail[which] = index
        if last != NO_TIMER:
            self.at(last).next = index
        else:
            self.head[which] = index
            self.occupied[which >> 6] |= (<uint64_t>1) << (which & 63)
        if which == OVERFLOW:
            self.first_revolution = min(self.first_revolution, tick >> REVOLUTION_SHIFT)

    cdef void unlink(self, uint32_t index) noexcept:
        cdef uint32_t before = self.at(index).prev
        cdef uint32_t after = self.at(index).next
        cdef int which
        if before != NO_TIMER:
            self.at(before).next = after
        if after != NO_TIMER:
            self.at(after).prev = before
        if before != NO_TIMER and after != NO_TIMER:
            return
        which = self.list_of(self.at(index).tick)
        if before == NO_TIMER and after == NO_TIMER:
            self.forget_list(which)
        elif before == NO_TIMER:
            self.head[which] = after
        else:
            self.tail[which] = before

    cdef void forget_list(self, int which) noexcept:
        self.head[which] = self.tail[which] = NO_TIMER
        self.occupied[which >> 6] &= ~((<uint64_t>1) << (which & 63))
        if which == OVERFLOW:
            self.first_revolution = NEVER

    cdef void cascade(self, int which) noexcept:
        """File the timers of one list anew, in order; the cursor has just entered it."""
        cdef uint32_t index = self.head[which]
        cdef uint32_t after
        self.forget_list(which)
        while index != NO_TIMER:
            after = self.at(index).next
            self.append(index)
            index = after

    # --- time ---

    cdef int first_list(self) noexcept:
        cdef int word
        for word in range(WORD_COUNT):
            if self.occupied[word]:
                return 64 * word + braid_ctz(self.occupied[word])
        return NO_LIST

    cdef uint64_t start_of(self, int which) noexcept:
        """The first tick a list may hold; NEVER for NO_LIST."""
        cdef int shift
        if which == NO_LIST:
            return NEVER
        if which < LEVEL_1:
            return (self.cursor >> LEVEL_1_SHIFT << LEVEL_1_SHIFT) + which
        if which == OVERFLOW:
            # Cancelling may leave it too low: the cascade there finds nothing and corrects it.
            return self.first_revolution << REVOLUTION_SHIFT
        shift = LEVEL_1_SHIFT + LEVEL_BITS * ((which - LEVEL_1) >> LEVEL_BITS)
        return (self.cursor >> (shift + LEVEL_BITS) << (shift + LEVEL_BITS)) + (
            <uint64_t>(which & (LEVEL_SLOTS - 1)) << shift
        )

    cdef bint seek(self, uint64_t target) except -1:
        """Move the cursor to the next tick with a timer; to ``target`` and False if it is later."""
        cdef int which
        cdef uint64_t start
        while True:
            which = self.first_list()
            start = self.start_of(which)
            if start > target:
                self.cursor = max(self.cursor, target)
                return False
            assert start >= self.cursor
            self.cursor = start
            if which < LEVEL_1:
                return True
            self.cascade(which)

    cdef tuple pop(self):
        """Take the first timer of the cursor's tick."""
        cdef uint32_t index = self.head[self.cursor & (LEVEL_0_SLOTS - 1)]
        assert self.at(index).tick == self.cursor
        cdef TimerKind timer = self.at(index)[0]
        # Before any object is made: a collection could run a finalizer that comes back here.
        self.unlink(index)
        self.release(index)
        return timer.kind, timer.owner, timer.a, timer.b

    # --- for other kernels ---

    cdef uint64_t add(
        self, int64_t due_ms, uint8_t kind, uint32_t owner, int64_t a, int64_t b
    ) except 0:
        cdef uint32_t index = self.acquire()
        cdef TimerKind *timer = self.at(index)
        timer.tick = self.tick_of(due_ms)
        timer.due_ms = due_ms
        timer.a = a
        timer.b = b
        timer.kind = kind
        timer.owner = owner
        self.append(index)
        return (<uint64_t>self.at(index).generation << 32) | index

    cdef bint remove(self, uint64_t handle) noexcept:
        cdef uint32_t index = self.find(handle)
        if index == NO_TIMER:
            return False
        self.unlink(index)
        self.release(index)
        return True

    # --- for Python ---

    def __len__(self):
        return self.pending

    @property
    def memory_bytes(self):
        """Of the wheel and of room for as many timers as were ever pending at once."""
        return TimerWheel.__basicsize__ + self.capacity * sizeof(TimerKind)

    def schedule(self, int64_t due_ms, uint8_t kind, uint32_t owner, int64_t a=0, int64_t b=0):
        """Returns a handle, never 0. Due in the past or now fires on the next ``advance``."""
        return self.add(due_ms, kind, owner, a, b)

    def cancel(self, uint64_t handle):
        """False when it has fired or was cancelled before."""
        return self.remove(handle)

    def due_of(self, uint64_t handle):
        """When a pending timer is due, as it was scheduled; None when it is not pending."""
        cdef uint32_t index = self.find(handle)
        if index == NO_TIMER:
            return None
        return self.at(index).due_ms

    def next_due_ms(self):
        """When ``advance`` next has something to do, be it only a cascade; None when empty."""
        cdef int which = self.first_list()
        if which == NO_LIST:
            return None
        return self.start_of(which) * TICK_MS

    def advance(self, int64_t now_ms, int64_t limit=0x7fffffffffffffff):
        """``(kind, owner, a, b)`` of what is due, by tick and then in order of scheduling.

        At most ``limit`` of them; the next call, with the same time or a later one, has the rest.
        A time before the last one is ignored: nothing fires.
        """
        cdef list fired = []
        cdef int64_t count = 0
        if limit < 0:
            raise ValueError("a limit is not negative")
        if now_ms < self.now_ms:
            return fired
        self.now_ms = now_ms
        while count < limit and self.seek(now_ms // TICK_MS):
            fired.append(self.pop())
            count += 1
        return fired
