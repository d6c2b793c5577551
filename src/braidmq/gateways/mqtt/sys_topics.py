"""$SYS: what the broker says of itself, to whoever subscribes to it."""

from typing import TYPE_CHECKING

from braidmq import __version__
from braidmq.gateways.mqtt.message import make_arrival
from braidmq.gateways.mqtt.subscription_index import Subscription

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection
    from braidmq.gateways.mqtt.listener import MqttGateway


class SysTopics:
    def __init__(self, gateway: "MqttGateway") -> None:
        self._gateway = gateway
        self._started = gateway.node_loop.loop.time()
        self._published = self._started

    def values(self) -> dict[str, str]:
        """Of all namespaces together."""
        gateway = self._gateway
        router, connected = gateway.router, len(gateway.connections)
        subscriptions = sum(index.count for index in router.indexes.values())
        numbers = {
            "clients/connected": connected,
            "clients/disconnected": max(len(gateway.sessions) - connected, 0),
            "clients/total": max(len(gateway.sessions), connected),
            "messages/received": router.counters.received,
            "publish/messages/received": router.counters.received,
            "publish/messages/sent": router.counters.sent,
            "publish/messages/dropped": router.counters.dropped,
            "retained messages/count": router.retained.count,
            "subscriptions/count": subscriptions,
        }
        uptime_s = int(gateway.node_loop.loop.time() - self._started)
        values = {"version": f"BraidMQ version {__version__}", "uptime": f"{uptime_s} seconds"}
        values |= {name: str(number) for name, number in numbers.items()}
        return {f"$SYS/broker/{name}": value for name, value in values.items()}

    def send_to(self, connection: "MqttConnection", new: Subscription) -> None:
        """Who subscribes gets the values of now, as if they were retained."""
        now_ms = connection.node_loop.now_ms()
        for topic, value in self.values().items():
            if matches(new.filter, topic) and connection.grants.may_read(topic):
                arrival = make_arrival(topic.encode(), value.encode(), now_ms, retain=True)
                limit = connection.packet_bytes_max
                connection.send(arrival.rendered(connection.version, True, b"", limit))

    def beat(self, now: float) -> None:
        """Publish them when it is time and anybody listens."""
        interval_s = self._gateway.settings.sys_interval_s
        if not interval_s or now < self._published + interval_s:
            return
        self._published = now
        now_ms = self._gateway.node_loop.now_ms()
        for topic, value in self.values().items():
            name = topic.encode()
            for index in self._gateway.router.indexes.values():
                match = index.match(name)
                arrival = make_arrival(name, value.encode(), now_ms)
                for session, options in match.sessions.items():
                    self._gateway.router.send(arrival, session, options)


def matches(pattern: str, topic: str) -> bool:
    """Whether a filter matches one topic, both below $SYS."""
    wanted, levels = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted, levels = wanted[:-1], levels[: len(wanted) - 1]
    pairs = zip(wanted, levels, strict=False)
    return len(wanted) == len(levels) and all(w in ("+", level) for w, level in pairs)
