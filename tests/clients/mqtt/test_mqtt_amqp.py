"""amq.topic and the tree of MQTT topics are one space, for clients of both protocols."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.packets import Disconnect
from braidmq.wire.mqtt.properties import Properties

WAIT_S = 20


@pytest.fixture
def channel(node: LiveNode) -> Iterator[BlockingChannel]:
    with open_amqp(node) as connection:
        yield connection.channel()


def open_amqp(node: LiveNode) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], socket_timeout=WAIT_S)
    )


def bound_queue(channel: BlockingChannel, pattern: str) -> str:
    queue: str = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", pattern)
    return queue


def test_bindings_receive_what_mqtt_publishes(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    queue = bound_queue(channel, f"{name}.*.temperature")
    with RawMqtt(node) as client:
        client.connect()
        properties = Properties(
            content_type="text/plain",
            correlation_data=b"c-1",
            response_topic="answers/here",
            message_expiry_interval=60,
            user_properties=(("unit", "C"), ("user-id", "root")),
        )
        sent = client.publish(f"{name}/kitchen/temperature", b"21", 1, properties=properties)
        assert client.answer(sent) == 0
        assert client.answer(client.publish(f"{name}/kitchen/humidity", b"", 1)) == 0x10
    method, header, body = channel.basic_get(queue, auto_ack=True)
    assert method is not None
    assert (method.exchange, method.routing_key) == ("amq.topic", f"{name}.kitchen.temperature")
    assert (body, header.content_type, header.correlation_id) == (b"21", "text/plain", "c-1")
    assert (header.reply_to, header.expiration, header.delivery_mode) == (
        "answers.here",
        "60000",
        2,
    )
    assert header.headers == {"unit": "C", "user-id": "root"}
    assert header.user_id is None
    assert channel.basic_get(queue)[0] is None


def test_filters_receive_what_amqp_publishes(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    channel.confirm_delivery()
    with RawMqtt(node) as zero, RawMqtt(node) as one:
        zero.connect()
        zero.subscribe(f"{name}/+/temperature")
        one.connect()
        one.subscribe(f"{name}/#", qos=1)
        properties = pika.BasicProperties(
            content_type="text/plain",
            correlation_id="c-2",
            reply_to="answers.here",
            expiration="60000",
            headers={"unit": "C", "number": 5},
            message_id="m-1",
        )
        channel.basic_publish(
            "amq.topic", f"{name}.kitchen.temperature", b"21", properties, mandatory=True
        )
        for client, qos in ((zero, 0), (one, 1)):
            got = client.message()
            assert (got.topic, got.payload) == (f"{name}/kitchen/temperature", b"21")
            assert (got.qos, got.retain) == (qos, False)
            said = got.properties
            assert (said.content_type, said.correlation_data) == ("text/plain", b"c-2")
            assert said.response_topic == "answers/here"
            assert 0 < (said.message_expiry_interval or 0) <= 60
            assert set(said.user_properties) == {
                ("unit", "C"),
                ("number", "5"),
                ("message-id", "m-1"),
            }
            client.send(Disconnect())
            client.expect_end()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("amq.topic", f"{name}.kitchen.temperature", b"", mandatory=True)


def test_a_message_goes_to_both_and_to_each_once(
    node: LiveNode, channel: BlockingChannel, name: str
) -> None:
    queue = bound_queue(channel, f"{name}.#")
    with RawMqtt(node) as client:
        client.connect()
        client.subscribe(f"{name}/#", qos=1)
        channel.basic_publish("amq.topic", f"{name}.1", b"1")
        assert client.message().payload == b"1"
        client.publish(f"{name}/2", b"2")
        assert client.message().payload == b"2"
        assert client.ping() == []
    got = [channel.basic_get(queue, auto_ack=True)[2] for _ in range(3)]
    assert got == [b"1", b"2", None]


@pytest.mark.crash
def test_confirmed_over_amqp_reaches_a_session_after_a_kill(tmp_path: Path) -> None:
    kept = Properties(session_expiry_interval=3600)
    with live_node(tmp_path) as node:
        with RawMqtt(node) as client:
            client.connect("keeper", clean_start=False, properties=kept)
            client.subscribe("t/#", qos=1)
        connection = open_amqp(node)
        channel = connection.channel()
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("amq.topic", "t.x", b"safe", persistent, mandatory=True)
        node.kill()
        with pytest.raises(pika.exceptions.AMQPError):
            connection.close()
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        assert client.connect("keeper", clean_start=False, properties=kept).session_present
        assert client.message().payload == b"safe"


def test_a_namespace_limits_the_connections_of_all_protocols_together(
    node: LiveNode, name: str
) -> None:
    with httpx.Client(base_url=node.http_url, auth=("guest", "guest")) as admin:
        admin.put(f"/v1/namespaces/{name}").raise_for_status()
        admin.put(f"/v1/namespaces/{name}/limits", json={"max_connections": 1}).raise_for_status()
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        admin.put(f"/v1/permissions/{name}/guest", json=everything).raise_for_status()
    login = {"user_name": f"{name}:guest", "password": b"guest"}
    at = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], virtual_host=name)
    with RawMqtt(node) as first, RawMqtt(node) as second:
        assert first.connect(**login).reason == 0
        assert second.connect(**login).reason == Reason.QUOTA_EXCEEDED
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="connection limit"):
            pika.BlockingConnection(at)
    with pika.BlockingConnection(at), RawMqtt(node) as third:
        assert third.connect(**login).reason == Reason.QUOTA_EXCEEDED
