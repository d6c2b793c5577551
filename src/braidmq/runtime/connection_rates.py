"""The rates of one connection, as gateways have it: when it logs in, publishes, subscribes and is
given messages."""

from typing import Protocol

from braidmq.runtime.rate_limits import Brake, Client, RateLimits, until_given, until_read


class Held(Protocol):
    """A connection that can be made to wait."""

    def stop_reading(self) -> None: ...
    def read_again(self) -> None: ...
    def stop_giving(self) -> None: ...
    def give_again(self) -> None: ...


class ConnectionRates:
    def __init__(self, limits: RateLimits, host: str) -> None:
        self._limits = limits
        self._host = host
        self.late_ms = limits.arrived(host)
        """How long its log-in has to wait; below 0: it is refused."""
        self.client: Client | None = None
        """Once it is known who it is."""
        self._reading: Brake | None = None
        self._giving: Brake | None = None

    async def let_in(self) -> None:
        """Raises RateExceeded."""
        await self._limits.let_in(self.late_ms, self._host)

    def begin(self, namespace: str, user: str, held: Held) -> None:
        client = self.client = Client(self._limits, namespace, user, self._host)
        self._limits.live.add(client)
        self._reading = Brake(client, until_read, held.stop_reading, held.read_again)
        self._giving = Brake(client, until_given, held.stop_giving, held.give_again)

    @property
    def is_unread(self) -> bool:
        return self._reading is not None and self._reading.is_on

    @property
    def is_ungiven(self) -> bool:
        return self._giving is not None and self._giving.is_on

    @property
    def limits_deliveries(self) -> bool:
        return self.client is not None and self.client.deliveries is not None

    def publish(self, count: int, size: int) -> int:
        """How many of so many messages are let in."""
        assert self.client is not None
        assert self._reading is not None
        taken, wait_ms = self.client.publish(count, size)
        self._reading.wait(wait_ms, "messages")
        return taken

    def subscribe(self, count: int = 1) -> None:
        """Raises RateExceeded."""
        if self.client is not None and self._reading is not None:
            self._reading.wait(self.client.subscribe(count), "subscriptions")

    def gave(self, count: int, size: int) -> None:
        """So much was sent to it."""
        if self.limits_deliveries:
            assert self.client is not None
            assert self._giving is not None
            self._giving.wait(self.client.gave(count, size), "deliveries")

    def end(self) -> None:
        """The connection is over."""
        for brake in (self._reading, self._giving):
            if brake is not None:
                brake.end()
        # What knows itself is freed only when garbage is collected, which is rarely.
        self._reading = self._giving = self.client = None
