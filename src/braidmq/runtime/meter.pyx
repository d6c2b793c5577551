"""What the clients of one protocol published to a namespace and were given from it."""


cdef class Meter:
    """Messages, and bytes of their bodies. It only grows, and is read once a minute
    (``usage.py``): counting is all that publishing and delivering pay for it."""

    def took(self, long long count, long long size):
        """Clients published so much, and the node took it."""
        self.published += count
        self.published_bytes += size

    def gave(self, long long count, long long size):
        """So much was sent to clients: every copy and every attempt."""
        self.delivered += count
        self.delivered_bytes += size

    cdef void count(self, long long taken, long long taken_bytes, long long copies) noexcept:
        """What was published went to so many clients at once."""
        self.published += taken
        self.published_bytes += taken_bytes
        self.delivered += taken * copies
        self.delivered_bytes += taken_bytes * copies

    def counts(self):
        return self.published, self.published_bytes, self.delivered, self.delivered_bytes
