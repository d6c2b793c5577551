"""Who may go how fast: token buckets of the node, of namespaces, users, clients and addresses.

    node ─► namespace ─► user ─► client        messages and bytes: a Throttle has the levels that
                                               limit its client, and is None where none does
    address                                    connections
    client                                     subscriptions

Whoever is too fast waits, by a timer of the node's wheel, or is refused, as the operator wants it.
What was let in is charged once for each run of messages, by compiled code.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from ipaddress import IPv6Address, ip_address
from typing import Final
from weakref import WeakSet

from braidmq.logs import FewLines
from braidmq.model.errors import BraidError, Kind
from braidmq.runtime.rate_settings import OFF, RateSettings
from braidmq.security.accounts import is_loopback
from braidmq.security.token_bucket import Bucket, Level, Throttle

MINUTE_MS: Final = 60_000

ADDRESSES_MAX: Final = 65_536
"""Addresses that are known at once; above that those go that were not seen for longest."""

CLIENTS_MAX: Final = 16_384
"""The same of users, and of HTTP's clients, which have no connection that ends."""

LOGIN_WAIT_MAX_MS: Final = 5000
"""A connection that would have to wait longer for its log-in is refused: handshakes have a time."""

SLOWED: Final = "slowed"
REFUSED: Final = "refused"

logger = logging.getLogger(__name__)


class RateExceeded(BraidError):
    """A client is faster than it may be."""

    kind = Kind.REFUSED
    code = "rate-limited"
    remedy = "Send more slowly, or have the limit raised"

    def __init__(self, text: str, wait_ms: int = 1000) -> None:
        super().__init__(text)
        self.wait_ms = wait_ms


class RateLimits:
    def __init__(
        self,
        now_ms: Callable[[], int],
        after: Callable[[int, Callable[[], None]], None],
    ) -> None:
        """``after`` has something done once so many milliseconds have passed. Nobody is too fast
        until ``replace`` says so."""
        self.now_ms = now_ms
        self.after = after
        self.counts: Counter[tuple[str, str]] = Counter()
        """By kind, and whether somebody was slowed or refused."""
        self.live: WeakSet[Client] = WeakSet()
        """Of connections: they may have other levels after a change, or none."""
        self.on_change: list[Callable[[], None]] = []
        self._lines = FewLines(logger, "more clients were too fast")
        self._node = Level()
        self._users: OrderedDict[str, Level] = OrderedDict()
        self._namespaces: dict[str, Level] = {}
        self._deliveries: dict[str, Level] = {}
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._clients: OrderedDict[tuple[str, str, str], Client] = OrderedDict()
        self.settings = OFF

    def replace(self, settings: RateSettings) -> None:
        """For all clients, from now on. What they used up stays used up."""
        now_ms, self.settings = self.now_ms(), settings
        self._node.set(*_whole(settings.node_messages_per_s, settings.node_bytes_per_s), now_ms)
        self._addresses.clear()
        self._changed()

    def _changed(self) -> None:
        for client in (*self._clients.values(), *self.live):
            client.refresh()
        for tell in self.on_change:
            tell()

    def set_namespace(self, namespace: str, published: int | None, delivered: int | None) -> None:
        """Messages a second that all of a namespace's clients may publish, and be given."""
        now_ms = self.now_ms()
        for levels, rate in ((self._namespaces, published), (self._deliveries, delivered)):
            if rate is None:
                levels.pop(namespace, None)
            else:
                # A bucket has to hold one: of a rate of 0 nothing ever comes.
                levels.setdefault(namespace, Level()).set(*_whole(max(rate, 1), 0), now_ms)
        self._changed()

    @property
    def refuses(self) -> bool:
        return self.settings.over_limit == "refuse"

    def is_limited(self, host: str) -> bool:
        return self.settings.limit_loopback or not is_loopback(host)

    def throttle(self, namespace: str, user: str, host: str, own: Level) -> Throttle | None:
        """The levels that limit what a client publishes."""
        settings, levels = self.settings, [self._namespaces.get(namespace)]
        if self.is_limited(host):
            now_ms = self.now_ms()
            own.set(
                settings.messages_per_s,
                settings.messages_burst,
                settings.bytes_per_s,
                settings.bytes_burst,
                now_ms,
            )
            levels = [self._node, *levels, self._user(user), own]
        return _throttle(levels)

    def _user(self, user: str) -> Level | None:
        settings = self.settings
        if not settings.user_messages_per_s and not settings.user_bytes_per_s:
            return None
        found = self._users.get(user)
        if found is None:
            found = self._users[user] = Level()
            if len(self._users) > CLIENTS_MAX:
                self._users.popitem(last=False)
        whole = _whole(settings.user_messages_per_s, settings.user_bytes_per_s)
        found.set(*whole, self.now_ms())
        return found

    def deliveries(self, namespace: str) -> Throttle | None:
        """The level that limits what clients of a namespace are given."""
        return _throttle([self._deliveries.get(namespace)])

    def subscriptions(self, host: str, known: Bucket | None) -> Bucket | None:
        settings = self.settings
        if not settings.subscriptions_per_s or not self.is_limited(host):
            return None
        values = settings.subscriptions_per_s, settings.subscriptions_burst, self.now_ms()
        if known is None:
            return Bucket(*values)
        known.set(*values)
        return known

    # --- connections ---

    def arrived(self, host: str) -> int:
        """Somebody has connected: how long its log-in has to wait, in milliseconds. Below 0: it is
        refused."""
        settings = self.settings
        if not settings.connections_per_min or not self.is_limited(host):
            return 0
        bucket, now_ms = self._address(host), self.now_ms()
        if self.refuses:
            return 0 if bucket.take(1, now_ms) else -1
        wait_ms = bucket.wait_ms(now_ms)
        if wait_ms > LOGIN_WAIT_MAX_MS:
            return -1
        bucket.spend(1, now_ms)
        return wait_ms

    async def let_in(self, late_ms: int, host: str) -> None:
        """Before a log-in; raises RateExceeded."""
        if late_ms < 0:
            self.count("connections", REFUSED, host)
            raise self.too_many_connections(host)
        if late_ms:
            self.count("connections", SLOWED, host)
            await self.wait(late_ms)

    def too_many_connections(self, host: str) -> RateExceeded:
        return RateExceeded(
            f"{self.settings.connections_per_min} connections from one address in a minute, and"
            f" {host} has made more",
            MINUTE_MS // max(self.settings.connections_per_min, 1),
        )

    def _address(self, host: str) -> Bucket:
        """Of IPv6 the network: one machine has as many addresses in it as it likes."""
        key = network_of(host)
        found = self._addresses.get(key)
        if found is None:
            settings = self.settings
            found = self._addresses[key] = Bucket(
                settings.connections_per_min, settings.connections_burst, self.now_ms(), MINUTE_MS
            )
            if len(self._addresses) > ADDRESSES_MAX:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(key)
        return found

    # --- clients without a connection of their own ---

    def client(self, namespace: str, user: str, host: str) -> "Client":
        key = (namespace, user, network_of(host))
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = Client(self, namespace, user, host)
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        self._clients.move_to_end(key)
        return found

    async def wait(self, wait_ms: int) -> None:
        done = asyncio.get_running_loop().create_future()
        self.after(wait_ms, partial(_set, done))
        await done

    def count(self, kind: str, how: str, who: str) -> None:
        self.counts[kind, how] += 1
        self._lines.say("client is too fast", {"limit": kind, "client": who, "it is": how})


class Client:
    """One that publishes, subscribes and is given messages."""

    def __init__(self, limits: RateLimits, namespace: str, user: str, host: str) -> None:
        self.limits = limits
        self._namespace = namespace
        self._user = user
        self._host = host
        self._own = Level()
        self.when_refreshed: Callable[[Client], None] | None = None
        """For who keeps the throttle where it has it at hand."""
        self._subscriptions: Bucket | None = None
        self.throttle: Throttle | None = None
        self.deliveries: Throttle | None = None
        self.refresh()

    def refresh(self) -> None:
        """Limits have changed."""
        limits, host = self.limits, self._host
        self.throttle = limits.throttle(self._namespace, self._user, host, self._own)
        self.deliveries = limits.deliveries(self._namespace)
        self._subscriptions = limits.subscriptions(host, self._subscriptions)
        if self.when_refreshed is not None:
            self.when_refreshed(self)

    @property
    def named(self) -> str:
        return f"{self._user}@{self._host}"

    def publish(self, count: int, size: int) -> tuple[int, int]:
        """It sends so many messages: how many of them are let in, and how long it has to wait."""
        throttle, limits = self.throttle, self.limits
        if throttle is None:
            return count, 0
        if not limits.refuses:
            return count, throttle.spend(count, size, limits.now_ms())
        taken = throttle.take(count, size, limits.now_ms())
        if taken < count:
            limits.count("messages", REFUSED, self.named)
        return taken, 0

    def subscribe(self, count: int = 1) -> int:
        """It begins so many subscriptions: how long it has to wait. Raises RateExceeded."""
        bucket, limits = self._subscriptions, self.limits
        if bucket is None:
            return 0
        now_ms = limits.now_ms()
        if not limits.refuses:
            return bucket.spend(count, now_ms)
        if bucket.take(count, now_ms) < count:
            limits.count("subscriptions", REFUSED, self.named)
            raise RateExceeded(
                f"{bucket.rate} subscriptions in a second, and {self.named} wants more",
                bucket.wait_ms(now_ms, count),
            )
        return 0

    def gave(self, count: int, size: int) -> int:
        """So much was sent to it: how long the next has to wait."""
        if self.deliveries is None:
            return 0
        return self.deliveries.spend(count, size, self.limits.now_ms())

    def too_fast(self) -> RateExceeded:
        throttle = self.throttle
        assert throttle is not None
        return RateExceeded(
            f"{self.named} publishes more than it may", throttle.wait_ms(self.limits.now_ms())
        )


class Brake:
    """Has a connection wait that was too fast, until there is room."""

    def __init__(
        self,
        client: Client,
        left_ms: Callable[[Client], int],
        hold: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self.client = client
        self.is_on = self._is_over = False
        self._left_ms = left_ms
        self._hold = hold
        self._release = release

    def wait(self, wait_ms: int, kind: str) -> None:
        if not wait_ms or self.is_on or self._is_over:
            return
        client = self.client
        self.is_on = True
        self._hold()
        client.limits.count(kind, SLOWED, client.named)
        client.limits.after(wait_ms, self._due)

    def _due(self) -> None:
        """Others may have used what it waited for."""
        if self._is_over:
            return
        left_ms = self._left_ms(self.client)
        if left_ms:
            self.client.limits.after(left_ms, self._due)
            return
        self.is_on = False
        self._release()

    def end(self) -> None:
        self._is_over, self.is_on = True, False


def until_read(client: Client) -> int:
    """How long until a client may be read."""
    throttle = client.throttle
    return 0 if throttle is None else throttle.wait_ms(client.limits.now_ms())


def until_given(client: Client) -> int:
    """How long until a client may be given more."""
    throttle = client.deliveries
    return 0 if throttle is None else throttle.wait_ms(client.limits.now_ms())


# Asked at each request, mostly of the same few.
@lru_cache(maxsize=1024)
def network_of(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"{int(address) >> 64:x}/64"
    return host


def _whole(messages: int, size: int) -> tuple[int, int, int, int]:
    """What comes in a second may come at once."""
    return messages, max(messages, 1), size, max(size, 1)


def _throttle(levels: "list[Level | None]") -> Throttle | None:
    limited = [each for each in levels if each is not None and each.is_limited]
    return Throttle(limited) if limited else None


def _set(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
