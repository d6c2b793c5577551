"""Sets of offsets: acknowledged, waiting for redelivery, in flight.

    offset   0 … floor-1        floor … (blocks of 4096 offsets)
             all members        ┌──────┬──────┬──────┬──────┐
             (OffsetSet only)   │ bits │ NULL │ FULL │ bits │   NULL: none   FULL: all 4096
                                └──────┴──────┴──────┴──────┘

Ranges go in and ranges come out, but inside they are bits: adding, removing or asking for one
offset is O(1) whatever its neighbours, a range costs a step per 64 offsets (per 4096 once whole
blocks are full), and a million scattered acknowledgements take 128 KiB. A sorted array of ranges
was quadratic when messages were requeued in scattered order.

``OffsetBits`` is the plain set. ``OffsetSet`` adds the floor, below which everything belongs to
it, and which rises by itself as the gap above it closes.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from braidmq.record.block_directory cimport reserve_slot

cdef enum:
    BLOCK_SHIFT = 12
    BLOCK_SIZE = 4096
    BLOCK_MASK = 4095
    # 2**24 blocks are 69 billion offsets between the lowest and the highest member: far beyond any
    # log whose lowest offset is still unacknowledged, and the directory is 128 MiB there.
    BLOCKS_MAX = 1 << 24

cdef Block full_block
memset(&full_block, 0xff, sizeof(Block))
full_block.count = BLOCK_SIZE
cdef Block *FULL = &full_block


cdef class OffsetBits:
    """A set of offsets, kept as blocks of bits."""

    def __cinit__(self, *args):
        self.directory = NULL
        self.capacity = 0
        self.used = 0
        self.first_block = 0
        self.size = 0

    def __dealloc__(self):
        self.release()

    cdef void release(self) noexcept:
        cdef Py_ssize_t i
        for i in range(self.used):
            if self.directory[i] != NULL and self.directory[i] != FULL:
                free(self.directory[i])
        free(self.directory)
        self.directory = NULL
        self.capacity = self.used = 0
        self.size = 0

    cdef Block *block_at(self, int64_t number) noexcept:
        cdef int64_t slot = number - self.first_block
        if slot < 0 or slot >= self.used:
            return NULL
        return self.directory[slot]

    cdef int reserve(self, int64_t number) except -1:
        """Stretch the directory so that it has a slot for block ``number``."""
        reserve_slot(
            <void ***>&self.directory, &self.capacity, &self.used, &self.first_block,
            number, BLOCKS_MAX,
        )
        return 0

    cdef int64_t change_in_block(
        self, int64_t number, int low, int high, bint present
    ) except -1:
        """Set or clear bits low … high-1 of one block; returns how many changed."""
        cdef Py_ssize_t slot = number - self.first_block
        cdef Block *block = self.directory[slot]
        cdef int64_t changed = 0
        cdef uint64_t mask, word
        cdef int i, first = low >> 6, last = (high - 1) >> 6
        if present and block == FULL or not present and block == NULL:
            return 0
        if low == 0 and high == BLOCK_SIZE:
            changed = BLOCK_SIZE - block.count if present and block != NULL else BLOCK_SIZE
            if not present:
                changed = block.count
            if block != NULL and block != FULL:
                free(block)
            self.directory[slot] = FULL if present else NULL
            return changed
        if block == NULL or block == FULL:
            block = <Block *>malloc(sizeof(Block))
            if block == NULL:
                raise MemoryError
            memset(block, 0 if present else 0xff, sizeof(Block))
            block.count = 0 if present else BLOCK_SIZE
            self.directory[slot] = block
        for i in range(first, last + 1):
            mask = mask_between(low - 64 * i if i == first else 0,
                                high - 64 * i if i == last else 64)
            word = block.words[i]
            if present:
                changed += braid_popcount(mask & ~word)
                block.words[i] = word | mask
            else:
                changed += braid_popcount(mask & word)
                block.words[i] = word & ~mask
        if present:
            block.count += changed
        else:
            block.count -= changed
        if block.count == 0 or block.count == BLOCK_SIZE:
            self.directory[slot] = FULL if block.count else NULL
            free(block)
        return changed

    cdef int64_t change(self, int64_t start, int64_t stop, bint present) except -1:
        cdef int64_t number, changed = 0, last
        cdef int low, high
        if start >= stop:
            return 0
        last = (stop - 1) >> BLOCK_SHIFT
        if present:
            if stop > 0x7fffffffffffffff - BLOCK_SIZE:
                raise OverflowError("offsets too high")
            self.reserve(start >> BLOCK_SHIFT)
            self.reserve(last)
        else:
            # Blocks outside the directory hold nothing to clear.
            start = max(start, self.first_block << BLOCK_SHIFT)
            stop = min(stop, (self.first_block + self.used) << BLOCK_SHIFT)
            if start >= stop:
                return 0
            last = (stop - 1) >> BLOCK_SHIFT
        for number in range(start >> BLOCK_SHIFT, last + 1):
            low = <int>(start & BLOCK_MASK) if number == start >> BLOCK_SHIFT else 0
            high = <int>((stop - 1) & BLOCK_MASK) + 1 if number == last else BLOCK_SIZE
            changed += self.change_in_block(number, low, high, present)
        self.size += changed if present else -changed
        if not present:
            self.trim()
        return changed

    cdef void trim(self) noexcept:
        """Give back empty blocks at the low end, so that a moving window stays small."""
        cdef Py_ssize_t empty = 0
        while empty < self.used and self.directory[empty] == NULL:
            empty += 1
        if empty == self.used:
            self.used = 0
        elif empty * 2 >= self.used:
            # Moving only once half is empty keeps the cost constant per removed block.
            self.used -= empty
            memmove(self.directory, self.directory + empty, self.used * sizeof(Block *))
            self.first_block += empty

    cdef bint has(self, int64_t offset) noexcept:
        cdef Block *block = self.block_at(offset >> BLOCK_SHIFT)
        if block == NULL:
            return False
        return (block.words[(offset & BLOCK_MASK) >> 6] >> (offset & 63)) & 1

    cdef int64_t scan(self, int64_t offset, bint present) noexcept:
        """The first offset at or after ``offset`` that is (not) a member; -1 for none."""
        cdef int64_t number
        cdef int64_t last = self.first_block + self.used
        cdef Block *block
        cdef uint64_t word
        cdef int i
        if present:
            offset = max(offset, self.first_block << BLOCK_SHIFT)
        number = offset >> BLOCK_SHIFT
        while number < last:
            block = self.block_at(number)
            if block == NULL or block == FULL:
                if (block == FULL) == present:
                    return max(offset, number << BLOCK_SHIFT)
            else:
                i = <int>((offset & BLOCK_MASK) >> 6) if number == offset >> BLOCK_SHIFT else 0
                word = block.words[i] if present else ~block.words[i]
                if number == offset >> BLOCK_SHIFT:
                    word &= ~(<uint64_t>0) << (offset & 63)
                while True:
                    if word:
                        return (number << BLOCK_SHIFT) + 64 * i + braid_ctz(word)
                    i += 1
                    if i == 64:
                        break
                    word = block.words[i] if present else ~block.words[i]
            number += 1
        return -1 if present else max(offset, last << BLOCK_SHIFT)

    cdef int64_t count_between(self, int64_t start, int64_t stop) noexcept:
        cdef int64_t number, total = 0
        cdef int low, high, i
        cdef Block *block
        start = max(start, self.first_block << BLOCK_SHIFT)
        stop = min(stop, (self.first_block + self.used) << BLOCK_SHIFT)
        if start >= stop:
            return 0
        for number in range(start >> BLOCK_SHIFT, ((stop - 1) >> BLOCK_SHIFT) + 1):
            block = self.block_at(number)
            if block == NULL:
                continue
            low = <int>(start & BLOCK_MASK) if number == start >> BLOCK_SHIFT else 0
            high = BLOCK_SIZE
            if number == (stop - 1) >> BLOCK_SHIFT:
                high = <int>((stop - 1) & BLOCK_MASK) + 1
            if low == 0 and high == BLOCK_SIZE:
                total += block.count
                continue
            for i in range(low >> 6, ((high - 1) >> 6) + 1):
                total += braid_popcount(block.words[i] & mask_between(
                    max(low - 64 * i, 0), min(high - 64 * i, 64)))
        return total

    cdef int unite_block(self, int64_t number, Block *other) except -1:
        """Add the members of another set's block; the directory has a slot for it."""
        cdef Py_ssize_t slot = number - self.first_block
        cdef Block *block = self.directory[slot]
        cdef int i, before = 0 if block == NULL else block.count
        if other == NULL or block == FULL:
            return 0
        if other == FULL:
            self.change_in_block(number, 0, BLOCK_SIZE, True)
            self.size += BLOCK_SIZE - before
            return 0
        if block == NULL:
            block = <Block *>malloc(sizeof(Block))
            if block == NULL:
                raise MemoryError
            memcpy(block, other, sizeof(Block))
            self.directory[slot] = block
        else:
            block.count = 0
            for i in range(64):
                block.words[i] |= other.words[i]
                block.count += braid_popcount(block.words[i])
        self.size += block.count - before
        if block.count == BLOCK_SIZE:
            self.directory[slot] = FULL
            free(block)
        return 0

    def __len__(self):
        return self.size

    def __bool__(self):
        return self.size > 0

    def __contains__(self, int64_t offset):
        return self.has(offset)

    def add(self, int64_t start, int64_t stop):
        """Add offsets ``start`` … ``stop - 1``; returns how many were not members before."""
        if start < 0:
            raise ValueError("offsets are not negative")
        return self.change(start, stop, True)

    def discard(self, int64_t start, int64_t stop):
        """Remove offsets ``start`` … ``stop - 1``; returns how many were members."""
        return self.change(start, stop, False)

    def clear(self):
        self.release()

    def first(self, int64_t at=0):
        """The first member at or after ``at``, or -1."""
        return self.scan(at, True)

    def first_missing(self, int64_t at=0):
        """The first offset at or after ``at`` that is not a member."""
        return self.scan(at, False)

    def run(self, int64_t at, int64_t limit):
        """The first unbroken run of members at or after ``at``, at most ``limit`` long, or None."""
        cdef int64_t start = self.scan(at, True)
        if start < 0:
            return None
        return start, start + min(self.scan(start, False) - start, limit)

    def count(self, int64_t start, int64_t stop):
        """How many of ``start`` … ``stop - 1`` are members."""
        return self.count_between(start, stop)

    def ranges(self, int64_t start=0, int64_t stop=0x7fffffffffffffff):
        """Members between ``start`` and ``stop`` as ``(first, after_last)`` pairs, in order."""
        cdef list found = []
        cdef int64_t low, high
        low = self.scan(start, True)
        while 0 <= low < stop:
            high = min(self.scan(low, False), stop)
            found.append((low, high))
            low = self.scan(high, True)
        return found

    def after(self, int64_t start, int64_t count):
        """The offset behind the first ``count`` members at or after ``start``; behind the last one
        if there are fewer."""
        cdef int64_t at = max(start, self.first_block << BLOCK_SHIFT)
        cdef int64_t number, high, found
        while count > 0:
            at = self.scan(at, True)
            if at < 0:
                return (self.first_block + self.used) << BLOCK_SHIFT
            number = at >> BLOCK_SHIFT
            high = (number + 1) << BLOCK_SHIFT
            found = self.count_between(at, high)
            if found >= count:
                # In this block: a run at a time.
                high = min(self.scan(at, False), high, at + count)
                found = high - at
            count -= found
            at = high
        return max(at, start)

    def take(self, int64_t limit):
        """Remove the lowest ``limit`` members and return them as ranges."""
        cdef list taken = []
        cdef int64_t low, high
        while limit > 0:
            low = self.scan(0, True)
            if low < 0:
                break
            high = low + min(self.scan(low, False) - low, limit)
            self.change(low, high, False)
            taken.append((low, high))
            limit -= high - low
        return taken


cdef class OffsetSet(OffsetBits):
    """A set of offsets with a floor: everything below it belongs, and it rises over full runs."""

    def __init__(self, int64_t floor=0):
        if floor < 0:
            raise ValueError("offsets are not negative")
        self.floor = floor

    cdef bint covers(self, int64_t offset) noexcept:
        return offset < self.floor or self.has(offset)

    def __contains__(self, int64_t offset):
        return self.covers(offset)

    def add(self, int64_t start, int64_t stop):
        """Add offsets; returns how many are new. The floor rises when the gap above it closes."""
        cdef int64_t added, risen
        if start < 0:
            raise ValueError("offsets are not negative")
        start = max(start, self.floor)
        if start >= stop:
            return 0
        if start == self.floor:
            # The common case, in order: no bits are needed at all.
            added = stop - start - self.change(start, stop, False)
            risen = stop
        else:
            return self.change(start, stop, True)
        if self.size:
            risen = self.scan(risen, False)
            self.change(stop, risen, False)
        self.floor = risen
        return added

    def discard(self, int64_t start, int64_t stop):
        """Remove offsets; removing below the floor lowers it. Returns how many were members."""
        cdef int64_t old = self.floor
        cdef int64_t removed = 0
        start = max(start, 0)
        if start >= stop:
            return 0
        if start < old:
            removed = min(stop, old) - start
            if stop < old:
                self.change(stop, old, True)
            self.floor = start
        if stop > old:
            removed += self.change(max(start, old), stop, False)
        return removed

    def reset(self, int64_t floor):
        """Forget everything but a new floor."""
        if floor < 0:
            raise ValueError("offsets are not negative")
        self.release()
        self.floor = floor

    cdef uint64_t word_at(self, int64_t number, int i) noexcept:
        """64 offsets of a block."""
        cdef int64_t base = (number << BLOCK_SHIFT) + 64 * i
        cdef Block *block = self.block_at(number)
        cdef uint64_t word = 0 if block == NULL else block.words[i]
        if base >= self.floor:
            return word
        if base + 64 <= self.floor:
            return ~(<uint64_t>0)
        return word | mask_between(0, <int>(self.floor - base))

    cdef bint is_empty_at(self, int64_t number) noexcept:
        return self.floor <= number << BLOCK_SHIFT and self.block_at(number) == NULL

    def update(self, OffsetBits other not None):
        """Add all members of another set that are kept as bits."""
        cdef Py_ssize_t i
        cdef int64_t floor = self.floor, risen
        if not other.used:
            return
        if other.scan(0, True) < floor:
            raise ValueError("members below the floor")
        self.reserve(other.first_block)
        self.reserve(other.first_block + other.used - 1)
        for i in range(other.used):
            self.unite_block(other.first_block + i, other.directory[i])
        if self.has(floor):
            risen = self.scan(floor, False)
            self.change(floor, risen, False)
            self.floor = risen

    def copy(self):
        cdef OffsetSet copied = OffsetSet(self.floor)
        cdef Py_ssize_t i
        if self.used:
            copied.reserve(self.first_block)
            copied.reserve(self.first_block + self.used - 1)
            for i in range(self.used):
                copied.unite_block(self.first_block + i, self.directory[i])
        return copied

    def first(self, int64_t at=0):
        return at if at < self.floor else self.scan(at, True)

    def first_missing(self, int64_t at=0):
        return self.scan(max(at, self.floor), False)

    def count(self, int64_t start, int64_t stop):
        cdef int64_t below = max(0, min(stop, self.floor) - start)
        return below + self.count_between(max(start, self.floor), stop)

    def ranges_above_floor(self):
        return OffsetBits.ranges(self, self.floor)

    def to_bytes(self):
        """Floor, then (gap, length) pairs, all as base-128 numbers."""
        cdef bytearray out = bytearray()
        cdef int64_t position = self.floor
        cdef int64_t low, high
        write_varint(out, self.floor)
        low = self.scan(position, True)
        while low >= 0:
            high = self.scan(low, False)
            write_varint(out, low - position)
            write_varint(out, high - low)
            position = high
            low = self.scan(high, True)
        return bytes(out)

    @staticmethod
    def from_bytes(const unsigned char[::1] data):
        """The inverse of ``to_bytes``; ValueError for anything it did not write."""
        cdef Py_ssize_t at = 0
        cdef int64_t position = read_varint(data, &at)
        cdef int64_t gap, length
        cdef OffsetSet found = OffsetSet(position)
        while at < data.shape[0]:
            gap = read_varint(data, &at)
            length = read_varint(data, &at)
            if gap == 0 or length == 0:
                raise ValueError("an empty range in an offset set")
            if gap > 0x7fffffffffffffff - position - length:
                raise ValueError("an offset set beyond 63 bits")
            position += gap
            try:
                found.change(position, position + length, True)
            except OverflowError:
                raise ValueError("an offset set too wide") from None
            position += length
        return found


def in_all(list sets not None, int64_t start, int64_t stop, OffsetSet without=None):
    """The offsets ``start`` … ``stop - 1`` that are in each of the sets and not in ``without``, 64
    at a time however scattered they are."""
    cdef OffsetBits found = OffsetBits()
    cdef OffsetSet each
    cdef Block block
    cdef uint64_t word
    cdef int64_t number, last = (stop - 1) >> BLOCK_SHIFT
    cdef int i, low, high
    cdef bint is_whole
    if start >= stop:
        return found
    for number in range(start >> BLOCK_SHIFT, last + 1):
        low = <int>(start & BLOCK_MASK) if number == start >> BLOCK_SHIFT else 0
        high = <int>((stop - 1) & BLOCK_MASK) + 1 if number == last else BLOCK_SIZE
        is_whole = high - low == BLOCK_SIZE and (without is None or without.is_empty_at(number))
        for each in sets:
            if each.is_empty_at(number):
                break
            is_whole = is_whole and each.floor >= (number + 1) << BLOCK_SHIFT
        else:
            if is_whole:
                found.reserve(number)
                found.unite_block(number, FULL)
                continue
            memset(&block, 0, sizeof(Block))
            for i in range(low >> 6, ((high - 1) >> 6) + 1):
                word = mask_between(max(low - 64 * i, 0), min(high - 64 * i, 64))
                for each in sets:
                    word &= each.word_at(number, i)
                if without is not None:
                    word &= ~without.word_at(number, i)
                block.words[i] = word
                block.count += braid_popcount(word)
            if block.count:
                found.reserve(number)
                found.unite_block(number, FULL if block.count == BLOCK_SIZE else &block)
    return found


cdef void write_varint(bytearray out, int64_t value):
    while value >= 0x80:
        out.append(<uint8_t>(value & 0x7f | 0x80))
        value >>= 7
    out.append(<uint8_t>value)


cdef int64_t read_varint(const unsigned char[::1] data, Py_ssize_t *at) except -1:
    cdef int64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at[0] < data.shape[0] and shift < 63:
        byte = data[at[0]]
        at[0] += 1
        value |= <int64_t>(byte & 0x7f) << shift
        if not byte & 0x80:
            if byte == 0 and shift:
                break
            return value
        shift += 7
    raise ValueError("a cut or overlong number in an offset set")
