"""Input that is not complete: how much of it all connections hold together, and who has to go.

A peer decides how much it sends of a message, and when the rest comes. What is kept until then is
memory as records are, so it counts as memory, and has limits of its own:

    a connection                  at most half of what all may hold
    all connections together      at most half of what records may take (`memory_block_bytes`)

Above one of them nobody waits for anybody: connections that each wait for room to finish in would
wait for ever. Whoever holds most is refused, with its protocol's error, until the rest fits; before
that nothing more is read of input that is not complete.
"""

LARGE_BYTES = LARGE
"""Who holds less is not looked at when somebody has to go."""

cdef enum:
    LARGE = 16 << 10

BYTES_MIN = 64 << 20
"""A node with little memory still takes the largest packets there are."""


cdef class InputBudget:
    def __init__(self, later, Py_ssize_t memory_bytes):
        """``later`` has a function called once whoever is being read now is done."""
        self.later = later
        self.resize(memory_bytes)
        self.holders = set()

    def resize(self, Py_ssize_t memory_bytes):
        """So much holds for what comes from now on."""
        self.bytes_max = max(memory_bytes // 2, BYTES_MIN)
        self.share_bytes_max = self.bytes_max // 2

    @property
    def is_crowded(self):
        """Whether what can wait elsewhere, as in a socket, should."""
        return self.held_bytes > self.bytes_max // 2

    def share(self, owner):
        """For one connection; ``owner.refuse_input(text)`` has to give all of it back."""
        cdef InputShare share = InputShare.__new__(InputShare)
        share.input_budget = self
        share.owner = owner
        return share

    def shed(self):
        """Refuse whoever holds too much, until the rest fits."""
        cdef InputShare share
        self.is_over = False
        for share in [each for each in self.holders if each.held_bytes > self.share_bytes_max]:
            self.refuse(
                share, f"{share.held_bytes} bytes of messages that are not complete: a connection "
                f"may hold {self.share_bytes_max}")
        while self.held_bytes > self.bytes_max and self.holders:
            share = max(self.holders, key=held_bytes)
            self.refuse(
                share, f"{self.held_bytes} bytes of messages that are not complete on all "
                f"connections: {self.bytes_max} may be, and this one held most, "
                f"{share.held_bytes}")

    def refuse(self, InputShare share, str text):
        owner = share.owner
        self.refused += 1
        self.holders.discard(share)
        if owner is not None:
            owner.refuse_input(text)


def held_bytes(InputShare share):
    return share.held_bytes


cdef class InputShare:
    """What one connection holds."""

    cpdef int hold(self, Py_ssize_t change) except -1:
        """So much more, or less."""
        cdef InputBudget input_budget = self.input_budget
        if self.owner is None or change == 0:
            return 0
        self.held_bytes += change
        input_budget.held_bytes += change
        if self.held_bytes >= LARGE:
            input_budget.holders.add(self)
        else:
            input_budget.holders.discard(self)
        if change > 0 and not input_budget.is_over and (
            input_budget.held_bytes > input_budget.bytes_max
            or self.held_bytes > input_budget.share_bytes_max
        ):
            input_budget.is_over = True
            input_budget.later(input_budget.shed)
        return 0

    def release(self):
        """The connection is over, and holds nothing."""
        self.hold(-self.held_bytes)
        self.owner = None
