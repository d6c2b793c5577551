"""What a connection knows of where its publishes go, so that the scanner can put together those
that go to one place.

It holds only while no binding, exchange or topic of the namespace changes: whoever uses it asks
``are_current`` first.
"""

from braidmq.engine.routing.router import Router
from braidmq.engine.topics import Topic

ROUTES_MAX = 4096
"""Routes that a connection remembers: about 200 bytes each."""


class Destination:
    """The topics that some keys of one exchange lead to."""

    __slots__ = ("allowed_at", "topics")

    def __init__(self, topics: list[Topic]) -> None:
        self.topics = topics
        self.allowed_at = -1
        """As of which generation of permissions the connection's user may publish there."""

    def is_gone(self) -> bool:
        for topic in self.topics:  # noqa: SIM110 (compiled: a generator would be a call each)
            if topic.deleted:
                return True
        return False


class Routes:
    def __init__(self, router: Router) -> None:
        self._router = router
        self.generation = router.generation
        self._shared: dict[tuple[bytes, tuple[int, ...]], Destination] = {}
        self.known: dict[bytes, Destination] = {}
        """Exchange and key as they are in a frame → destination; for the scanner."""

    def are_current(self) -> bool:
        return self.generation == self._router.generation

    def refresh(self) -> None:
        """Forget what may no longer be so: before a chunk is scanned."""
        if self.generation != self._router.generation:
            self.generation = self._router.generation
            self.known.clear()
            self._shared.clear()

    def learn(self, exchange: bytes, key: bytes, topics: list[Topic]) -> None:
        """The same topics through the same exchange are the same destination."""
        if not self.are_current() or len(self.known) >= ROUTES_MAX:
            return
        place = exchange, tuple([topic.id for topic in topics])
        destination = self._shared.get(place)
        if destination is None or destination.is_gone():
            destination = self._shared[place] = Destination(topics)
        self.known[bytes([len(exchange)]) + exchange + bytes([len(key)]) + key] = destination
