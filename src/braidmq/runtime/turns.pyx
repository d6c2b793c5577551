"""The broker's turns, as kernels beside it see them: without a call for each message."""

from braidmq.net.tcp cimport monotonic_s


cdef class Turns:
    """``is_due``: something was done that a turn follows from, and it is not over. ``served_s``:
    when somebody was served last, in a turn or without one, by the loop's clock. ``epoch``: while
    it stays as it is, and no turn is due, nothing was done: whatever is done with the engine is
    followed by a turn, and who changes anything else that others may have looked at says so."""

    def read(self):
        """A connection was, and a turn will follow from it."""
        self.reads += 1

    def changed(self):
        """What was found before does not hold any more, whether or not a turn follows."""
        self.epoch += 1

    def end(self):
        if self.reads < CROWD:
            self.crowd = 0
        self.reads = 0
        self.is_due = False
        self.epoch += 1
        self.served_s = monotonic_s()

    cdef void serve(self, void *who) noexcept:
        """Somebody has had all it wanted without a turn."""
        self.last = who
        self.served_s = monotonic_s()
