"""What a broker says of a message that was published."""

from typing import NamedTuple

from braidmq.client.errors import PublishError


class Place(NamedTuple):
    """Where a message is.

    ```python
    topic, partition, offset = place
    reading = broker.read(topic, partition=partition, from_offset=offset)
    ```
    """

    topic: str
    partition: int
    offset: int


class Confirm:
    """What became of a message, as ``publish`` and ``send`` return it and ``confirms`` gives it.

    ```python
    confirm = await broker.publish("orders", b"…")
    print(confirm.place)  # Place(topic='orders', partition=0, offset=17)
    ```

    ``error`` is None, or why nobody has it; only a stream of confirms has those with one, as
    ``publish`` and ``send`` raise it. ``places`` says where it is, one for each topic that it was
    routed to. It is empty when the broker does not say: it is not BraidMQ, the message was staged
    in a transaction, had been published before, or went straight to a caller.
    """

    __slots__ = ("error", "exchange", "places", "routing_key", "value")

    def __init__(
        self,
        exchange: str,
        routing_key: str,
        value: bytes,
        error: PublishError | None = None,
        places: tuple[Place, ...] = (),
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.value = value
        self.error = error
        self.places = places

    @property
    def place(self) -> Place | None:
        """Where it is, if that is one place."""
        return self.places[0] if len(self.places) == 1 else None

    def __repr__(self) -> str:
        what = self.error.code if self.error is not None else list(self.places)
        return f"Confirm({self.routing_key!r}, {len(self.value)} bytes, {what})"
