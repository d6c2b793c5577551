"""paho-mqtt, the client most people have: both versions, over TCP and WebSocket."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from braidmq.testing.live import LiveNode

WAIT_S = 20.0

ways = pytest.mark.parametrize(
    ("protocol", "transport"),
    [
        (paho.MQTTv311, "tcp"),
        (paho.MQTTv5, "tcp"),
        (paho.MQTTv311, "websockets"),
        (paho.MQTTv5, "websockets"),
    ],
)


class Connected:
    """A client with a thread of its own; what it hears comes out of queues."""

    def __init__(self, node: LiveNode, client_id: str, protocol: Any, transport: str) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id, protocol=protocol, transport=transport
        )
        self.client.on_connect = lambda _c, _u, _f, code, _p: self.events.put(("connect", code))
        self.client.on_subscribe = lambda _c, _u, mid, codes, _p: self.events.put(
            ("subscribe", [each.value for each in codes])
        )
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self._port = node.ports["mqtt_port" if transport == "tcp" else "ws_port"]

    def connect(self, **options: Any) -> "Connected":
        self.client.connect("127.0.0.1", self._port, **options)
        self.client.loop_start()
        assert self.events.get(timeout=WAIT_S)[1] == 0
        return self

    def subscribe(self, *arguments: Any, **options: Any) -> list[int]:
        self.client.subscribe(*arguments, **options)
        name, codes = self.events.get(timeout=WAIT_S)
        assert name == "subscribe"
        return codes

    def publish(self, *arguments: Any, **options: Any) -> None:
        self.client.publish(*arguments, **options).wait_for_publish(WAIT_S)

    def message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT_S)


@contextmanager
def connected(
    node: LiveNode, client_id: str = "", protocol: Any = paho.MQTTv5, transport: str = "tcp"
) -> Iterator[Connected]:
    one = Connected(node, client_id, protocol, transport).connect()
    try:
        yield one
    finally:
        one.client.disconnect()
        one.client.loop_stop()


@ways
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_subscribe(
    node: LiveNode, name: str, protocol: Any, transport: str, qos: int
) -> None:
    with connected(node, "", protocol, transport) as client:
        assert client.subscribe(f"{name}/+", qos) == [qos]
        for number in range(50):
            client.publish(f"{name}/t", b"%d" % number, qos)
        got = [client.message() for _ in range(50)]
        assert [each.payload for each in got] == [b"%d" % number for number in range(50)]
        assert {each.qos for each in got} == {qos}


@ways
def test_a_message_larger_than_a_frame(
    node: LiveNode, name: str, protocol: Any, transport: str
) -> None:
    payload = bytes(range(256)) * 2000
    with connected(node, "", protocol, transport) as client:
        client.subscribe(name, 1)
        client.publish(name, payload, 1)
        assert client.message().payload == payload


def test_request_and_response(node: LiveNode, name: str) -> None:
    with connected(node) as asking, connected(node) as answering:
        asking.subscribe(f"{name}/answers")
        answering.subscribe(f"{name}/questions")
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = f"{name}/answers"
        properties.CorrelationData = b"17"
        asking.publish(f"{name}/questions", b"what?", properties=properties)
        question = answering.message()
        back = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        back.CorrelationData = question.properties.CorrelationData  # type: ignore[union-attr]
        topic = question.properties.ResponseTopic  # type: ignore[union-attr]
        answering.publish(topic, b"that", properties=back)
        answer = asking.message()
        assert (answer.payload, answer.properties.CorrelationData) == (b"that", b"17")  # type: ignore[union-attr]
