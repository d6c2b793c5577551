"""The short way of QoS 0: whatever changes, the next message goes where it should."""

from collections.abc import Iterator

import httpx
import pika
import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    PingReq,
    PingResp,
    PubAck,
    Publish,
    Request,
    UnsubAck,
    Unsubscribe,
    encode,
)
from braidmq.wire.mqtt.properties import Properties

ADMIN = ("guest", "guest")


class Pair:
    """A publisher and a subscriber between whom the short way is open."""

    def __init__(self, node: LiveNode, topic: str, version: int) -> None:
        self.topic = topic
        self.publisher = RawMqtt(node, version)
        self.subscriber = RawMqtt(node, version)
        self.publisher.connect()
        self.subscriber.connect()
        self.subscriber.subscribe(topic, qos=1)
        for number in range(3):
            self.passes(b"%d" % number)

    def say(self, payload: bytes, **fields: object) -> None:
        self.publisher.publish(self.topic, payload, **fields)  # type: ignore[arg-type]

    def passes(self, payload: bytes) -> None:
        self.say(payload)
        got = self.subscriber.expect(Publish)
        assert (got.topic, got.payload, got.qos) == (self.topic, payload, 0)

    def close(self) -> None:
        self.publisher.sock.close()
        self.subscriber.sock.close()


@pytest.fixture(params=[Version.V3_1_1, Version.V5])
def pair(node: LiveNode, name: str, request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair(node, name, request.param)
    yield made
    made.close()


def test_subscribers_that_come_and_go(node: LiveNode, pair: Pair) -> None:
    with RawMqtt(node, Version.V5) as other, RawMqtt(node, Version.V3_1_1) as older:
        other.connect()
        other.subscribe(
            Request(pair.topic + "/#"), properties=Properties(subscription_identifiers=(7,))
        )
        older.connect()
        older.subscribe(pair.topic)
        pair.passes(b"to three")
        got = other.expect(Publish)
        assert (got.payload, got.properties.subscription_identifiers) == (b"to three", (7,))
        assert older.expect(Publish).payload == b"to three"
        other.send(Unsubscribe(9, (pair.topic + "/#",)))
        other.expect(UnsubAck)
        pair.passes(b"to two")
        assert other.ping() == []
        assert older.expect(Publish).payload == b"to two"
    pair.passes(b"to one")
    pair.subscriber.send(Unsubscribe(9, (pair.topic,)))
    pair.subscriber.expect(UnsubAck)
    pair.say(b"to nobody")
    assert pair.publisher.ping() == []
    assert pair.subscriber.ping() == []


def test_a_session_that_comes_back_in_another_version(node: LiveNode, name: str) -> None:
    pair = Pair(node, name, Version.V3_1_1)
    with RawMqtt(node, Version.V3_1_1) as before, RawMqtt(node, Version.V5) as after:
        before.connect(name, clean_start=False)
        before.subscribe(name)
        pair.passes(b"before")
        assert before.expect(Publish).payload == b"before"
        after.connect(name, clean_start=False)
        pair.passes(b"after")
        assert after.expect(Publish).payload == b"after"
    pair.close()


def test_bindings_of_amqp(node: LiveNode, pair: Pair) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(queue, "amq.topic", "#")
        pair.passes(b"to both")
        assert channel.basic_get(queue, auto_ack=True)[2] == b"to both"
        channel.queue_unbind(queue, "amq.topic", "#")
        pair.passes(b"to one")
        assert channel.basic_get(queue, auto_ack=True)[0] is None


def test_other_packets_between(pair: Pair) -> None:
    pair.publisher.send(Publish(pair.topic, b"a"), Publish(pair.topic, b"b"), PingReq())
    pair.publisher.expect(PingResp)
    assert [pair.subscriber.expect(Publish).payload for _ in range(2)] == [b"a", b"b"]
    data = encode(Publish(pair.topic, b"in two pieces"), pair.publisher.version)
    pair.publisher.send_bytes(
        encode(Publish(pair.topic, b"whole"), pair.publisher.version) + data[:7]
    )
    assert pair.subscriber.expect(Publish).payload == b"whole"
    pair.publisher.send_bytes(data[7:])
    assert pair.subscriber.expect(Publish).payload == b"in two pieces"
    assert pair.publisher.answer(pair.publisher.publish(pair.topic, b"1", 1)) == 0
    got = pair.subscriber.expect(Publish)
    assert (got.payload, got.qos) == (b"1", 1)
    pair.subscriber.send(PubAck(got.packet_id))
    pair.say(b"elsewhere", retain=True)
    assert pair.subscriber.expect(Publish).payload == b"elsewhere"
    pair.publisher.publish(pair.topic + "/below", b"not subscribed")
    pair.passes(b"last")


def test_what_is_retained_is_kept(node: LiveNode, pair: Pair) -> None:
    pair.say(b"kept", retain=True)
    assert pair.subscriber.expect(Publish).payload == b"kept"
    pair.passes(b"not kept")
    with RawMqtt(node) as late:
        late.connect()
        late.subscribe(pair.topic)
        assert late.expect(Publish).payload == b"kept"


def test_who_wants_no_copy_of_its_own(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as other:
        client.connect()
        other.connect()
        other.subscribe(name)
        client.subscribe(Request(name, no_local=True))
        for number in range(4):
            client.publish(name, b"%d" % number)
            assert other.expect(Publish).payload == b"%d" % number
        assert client.ping() == []


def test_rights_that_end(node: LiveNode, name: str) -> None:
    with httpx.Client(base_url=node.http_url, auth=ADMIN, timeout=20) as admin:
        admin.put(f"/v1/users/{name}", json={"password": "p", "tags": []}).raise_for_status()
        grants = {"configure": ".*", "write": ".*", "read": ".*"}
        admin.put(f"/v1/permissions/%2F/{name}", json=grants).raise_for_status()
        with RawMqtt(node) as client, RawMqtt(node) as watcher:
            client.connect(user_name=name, password=b"p")
            watcher.connect()
            watcher.subscribe(name)
            for number in range(3):
                client.publish(name, b"%d" % number)
                assert watcher.expect(Publish).payload == b"%d" % number
            grants["write"] = "^$"
            admin.put(f"/v1/permissions/%2F/{name}", json=grants).raise_for_status()
            client.publish(name, b"no more")
            assert client.closing() == Reason.NOT_AUTHORIZED
            assert watcher.ping() == []
