"""Rate limits with a clock of the test's: levels, brakes, and what an address may do."""

from collections.abc import Callable

import pytest

from braidmq.runtime import rate_limits
from braidmq.runtime.connection_rates import ConnectionRates
from braidmq.runtime.rate_limits import RateExceeded, RateLimits, network_of
from braidmq.runtime.rate_settings import OFF, RateSettings

FAR = "203.0.113.7"
NEAR = "127.0.0.1"


class World:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.limits = RateLimits(lambda: self.now_ms, self.after)

    def after(self, wait_ms: int, done: Callable[[], None]) -> None:
        assert wait_ms > 0
        self.timers.append((self.now_ms + wait_ms, done))

    def passes(self, for_ms: int) -> None:
        end_ms = self.now_ms + for_ms
        while self.timers and min(self.timers, key=lambda each: each[0])[0] <= end_ms:
            first = min(self.timers, key=lambda each: each[0])
            self.timers.remove(first)
            self.now_ms = max(self.now_ms, first[0])
            first[1]()
        self.now_ms = end_ms


class Held:
    """A connection that sends as soon as it is read."""

    def __init__(self) -> None:
        self.is_read = self.is_given = True

    def stop_reading(self) -> None:
        self.is_read = False

    def read_again(self) -> None:
        self.is_read = True

    def stop_giving(self) -> None:
        self.is_given = False

    def give_again(self) -> None:
        self.is_given = True


@pytest.fixture
def world() -> World:
    return World()


def connected(world: World, host: str = FAR, user: str = "ann") -> tuple[ConnectionRates, Held]:
    rates, held = ConnectionRates(world.limits, host), Held()
    rates.begin("shop", user, held)
    return rates, held


def is_limited(rates: ConnectionRates) -> bool:
    assert rates.client is not None
    return rates.client.throttle is not None


def flood(world: World, connections: list[tuple[ConnectionRates, Held]], for_ms: int) -> int:
    """Messages that come in when each sends ten whenever it is read, every millisecond."""
    came = 0
    for _ in range(for_ms):
        for rates, held in connections:
            if held.is_read:
                came += rates.publish(10, 1000)
        world.passes(1)
    return came


def test_who_is_slowed_sends_what_its_rate_allows_and_no_less(world: World) -> None:
    world.limits.replace(RateSettings(messages_per_s=500, messages_burst=50))
    came = flood(world, [connected(world)], 10_000)
    assert 5000 <= came <= 5000 + 50 + 10, "rate, burst and one read"
    assert world.limits.counts["messages", "slowed"] > 100


def test_all_of_a_user_and_all_of_the_node_have_their_limits(world: World) -> None:
    world.limits.replace(
        RateSettings(messages_per_s=0, user_messages_per_s=300, node_messages_per_s=400)
    )
    ann = [connected(world, user="ann") for _ in range(3)]
    assert 3000 <= flood(world, ann, 10_000) <= 3000 + 300 + 3 * 10
    for rates, _ in ann:
        rates.end()
    world.passes(60_000)
    everybody = [connected(world, user=f"user {number}") for number in range(5)]
    assert 4000 <= flood(world, everybody, 10_000) <= 4000 + 400 + 5 * 10


def test_a_namespace_is_limited_on_loopback_too_and_others_are_not(world: World) -> None:
    world.limits.set_namespace("shop", 100, None)
    rates, _ = connected(world, NEAR)
    assert is_limited(rates)
    other = ConnectionRates(world.limits, NEAR)
    other.begin("yard", "ann", Held())
    assert not is_limited(other)
    world.limits.set_namespace("shop", None, None)
    assert not is_limited(rates), "it was lifted while the client was there"


def test_off_is_no_throttle_at_all(world: World) -> None:
    world.limits.replace(RateSettings())
    assert not is_limited(connected(world, NEAR)[0])
    world.limits.replace(OFF)
    assert not is_limited(connected(world, FAR)[0])


def test_a_reload_keeps_what_was_used(world: World) -> None:
    world.limits.replace(RateSettings(messages_per_s=1, messages_burst=10, over_limit="refuse"))
    rates, _ = connected(world)
    assert rates.publish(10, 0) == 10
    world.limits.replace(RateSettings(messages_per_s=1, messages_burst=20, over_limit="refuse"))
    assert rates.publish(100, 0) == 10


def test_deliveries_wait(world: World) -> None:
    world.limits.set_namespace("shop", None, 100)
    rates, held = connected(world)
    rates.gave(150, 0)
    assert not held.is_given
    world.passes(400)
    assert not held.is_given
    world.passes(200)
    assert held.is_given


def test_subscriptions(world: World) -> None:
    world.limits.replace(
        RateSettings(subscriptions_per_s=1, subscriptions_burst=2, over_limit="refuse")
    )
    rates, _ = connected(world)
    rates.subscribe()
    rates.subscribe()
    with pytest.raises(RateExceeded) as refused:
        rates.subscribe()
    assert refused.value.wait_ms == 1000
    world.passes(1000)
    rates.subscribe()


def test_connections_of_an_address_are_put_off_and_then_refused(world: World) -> None:
    world.limits.replace(RateSettings(connections_per_min=60, connections_burst=2))
    late = [world.limits.arrived(FAR) for _ in range(9)]
    assert late == [0, 0, 1000, 2000, 3000, 4000, 5000, -1, -1]
    assert world.limits.arrived("203.0.113.8") == 0, "another address"
    assert [world.limits.arrived(NEAR) for _ in range(50)] == [0] * 50
    world.passes(60_000)
    assert world.limits.arrived(FAR) == 0


def test_connections_are_refused_at_once_where_that_is_wanted(world: World) -> None:
    world.limits.replace(
        RateSettings(connections_per_min=60, connections_burst=2, over_limit="refuse")
    )
    assert [world.limits.arrived(FAR) for _ in range(4)] == [0, 0, -1, -1]


def test_a_network_of_ipv6_is_one_address() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff") != network_of("2001:db9::1")
    assert network_of("::ffff:1.2.3.4") != network_of("::ffff:1.2.3.5")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")


def test_what_is_known_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "ADDRESSES_MAX", 10)
    monkeypatch.setattr(rate_limits, "CLIENTS_MAX", 10)
    world.limits.replace(RateSettings(user_messages_per_s=5))
    for number in range(50):
        world.limits.arrived(f"198.51.100.{number}")
        world.limits.client("shop", f"user {number}", FAR)
    assert len(world.limits._addresses) == 10
    assert len(world.limits._clients) == 10
    assert len(world.limits._users) == 10


def test_a_connection_that_is_over_is_not_read_on(world: World) -> None:
    world.limits.replace(RateSettings(messages_per_s=1, messages_burst=1))
    rates, held = connected(world)
    rates.publish(100, 0)
    rates.end()
    world.passes(200_000)
    assert not held.is_read
