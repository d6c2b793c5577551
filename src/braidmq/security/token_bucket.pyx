"""Token buckets: how much somebody may do in a time, exactly, and without a call for each message.

    level  ─────────────┐ full = burst × period      a token is `period_ms` units, and each
           ▒▒▒▒▒▒▒▒     │                            millisecond brings `rate` of them: whole
           ▒▒▒▒▒▒▒▒▒▒▒▒ │ ← whole tokens             numbers, nothing is rounded away
      0    ─────────────┤
           ░░░          │ debt: what was done before anybody could say no

Time is an argument. A clock that goes back brings nothing and takes nothing; a gap of any length
fills the bucket and no more. So what is granted is never more than ``rate × time + burst``.

A ``Throttle`` is the buckets of a client and of all it belongs to: its user, its namespace, the
node. What all of them have room for may be done, and it is taken from each.
"""

cdef enum:
    PERIOD_MS_MAX = 60_000

AMOUNT_MAX = 1 << 40
"""Of a rate, and of what may come at once: times a period both fit in 63 bits."""

cdef long long AMOUNT = 1 << 40

# How deep in debt one can be: a message may be larger than all that a bucket holds.
cdef long long DEBT_MAX = -(<long long>1 << 60)


cdef class Bucket:
    def __init__(self, long long rate, long long burst, long long now_ms, long long period_ms=1000):
        """``rate`` tokens in each period, ``burst`` at once. It is full."""
        self.at_ms = now_ms
        self.set(rate, burst, now_ms, period_ms)
        self.level = self.full

    def set(self, long long rate, long long burst, long long now_ms, long long period_ms=1000):
        """Other values from now on; what was used up stays used up."""
        cdef long long used
        if not (0 < rate <= AMOUNT and 0 < burst <= AMOUNT and 0 < period_ms <= PERIOD_MS_MAX):
            raise ValueError(f"a bucket of {rate} in {period_ms} ms, {burst} at once")
        if self.period_ms:
            self.refill(now_ms)
        used = (self.full - self.level) // self.period_ms if self.period_ms else 0
        self.rate, self.burst, self.period_ms = rate, burst, period_ms
        self.full = burst * period_ms
        self.level = self.full - used * period_ms

    cdef void refill(self, long long now_ms) noexcept:
        cdef long long passed_ms = now_ms - self.at_ms
        self.at_ms = now_ms
        if passed_ms <= 0 or self.level >= self.full:
            return
        # Not multiplied before it is known to fit: gaps may be of any length.
        if passed_ms > (self.full - self.level) // self.rate:
            self.level = self.full
        else:
            self.level += passed_ms * self.rate

    cdef long long whole(self) noexcept:
        return self.level // self.period_ms if self.level > 0 else 0

    cdef long long wait(self, long long tokens) noexcept:
        cdef long long missing = min(tokens * self.period_ms, self.full) - self.level
        return (missing + self.rate - 1) // self.rate if missing > 0 else 0

    def take(self, long long count, long long now_ms):
        """As many of ``count`` tokens as there are."""
        self.refill(now_ms)
        cdef long long taken = max(min(count, self.whole()), 0)
        self.level -= taken * self.period_ms
        return taken

    def spend(self, long long count, long long now_ms):
        """Take all of them, and go into debt for what is not there; how long until there is a token
        again, in milliseconds: 0 while there is one."""
        self.refill(now_ms)
        self.level = max(self.level - count * self.period_ms, DEBT_MAX)
        return self.wait(1)

    def wait_ms(self, long long now_ms, long long count=1):
        """How long until so many tokens are there; more than it can hold are never waited for."""
        self.refill(now_ms)
        return self.wait(count)

    def is_full(self, long long now_ms):
        """Whether it is as good as new."""
        self.refill(now_ms)
        return self.level >= self.full


cdef class Level:
    """What one client, user, namespace or node may do: messages, and bytes of their bodies. A rate
    of 0 is no limit."""

    def set(
        self, long long messages, long long messages_burst, long long size, long long size_burst,
        long long now_ms
    ):
        """Rates in a second, and what may come at once."""
        self.messages = made(self.messages, messages, messages_burst, now_ms)
        self.size = made(self.size, size, size_burst, now_ms)

    @property
    def is_limited(self):
        return self.messages is not None or self.size is not None


cdef Bucket made(Bucket known, long long rate, long long burst, long long now_ms):
    if rate == 0:
        return None
    if known is None:
        return Bucket(rate, burst, now_ms)
    if known.rate != rate or known.burst != burst:
        known.set(rate, burst, now_ms)
    return known


cdef class Throttle:
    """What a client may do, by its own limits and by those of all it belongs to."""

    def __init__(self, levels):
        self.levels = tuple(levels)

    cdef long long room(self, long long count, long long now_ms) except -1:
        """How many of so many messages all levels have room for. Of bytes one has to be there: a
        message may be larger than all that may come at once, and is paid for afterwards."""
        cdef Level level
        for level in self.levels:
            if level.messages is not None:
                level.messages.refill(now_ms)
                count = min(count, level.messages.whole())
            if level.size is not None:
                level.size.refill(now_ms)
                if level.size.whole() == 0:
                    count = 0
        return count

    cdef int charge(self, long long count, long long size) except -1:
        cdef Level level
        cdef Bucket bucket
        for level in self.levels:
            bucket = level.messages
            if bucket is not None:
                bucket.level = max(bucket.level - count * bucket.period_ms, DEBT_MAX)
            bucket = level.size
            if bucket is not None:
                bucket.level = max(bucket.level - size * bucket.period_ms, DEBT_MAX)
        return 0

    cpdef bint has_room(self, long long count, long long now_ms) except -1:
        """Whether so many messages could come now."""
        return self.room(count, now_ms) >= count

    cpdef bint admit(self, long long count, long long size, long long now_ms) except -1:
        """Whether so many messages may come now, and are taken from all levels: all or none."""
        if self.room(count, now_ms) < count:
            return False
        self.charge(count, size)
        return True

    cpdef long long take(self, long long count, long long size, long long now_ms) except -1:
        """How many of so many messages may come now, which are ``size`` bytes together: those are
        taken from all levels, with their part of the bytes."""
        cdef long long taken = self.room(count, now_ms)
        if taken > 0:
            self.charge(taken, size if taken == count else size * taken // count)
        return taken

    cpdef long long spend(self, long long count, long long size, long long now_ms) except -1:
        """They have come, whether or not there is room: how long until there is some again, in
        milliseconds; 0 while there is."""
        cdef Level level
        cdef long long wait_ms = 0
        self.room(0, now_ms)
        self.charge(count, size)
        for level in self.levels:
            if level.messages is not None:
                wait_ms = max(wait_ms, level.messages.wait(1))
            if level.size is not None:
                wait_ms = max(wait_ms, level.size.wait(1))
        return wait_ms

    def wait_ms(self, long long now_ms):
        """How long until a message may come."""
        return self.spend(0, 0, now_ms)
