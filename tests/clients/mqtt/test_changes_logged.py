"""Every change is one kind of line, whatever it came over: who, from where, what."""

import httpx
import pika
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.packets import PubAck


def test_over_all_protocols(node: LiveNode, name: str) -> None:
    said = ("info    changes:", "user=guest", "peer=127.0.0.1")
    with pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    ) as amqp:
        channel = amqp.channel()
        for _ in range(2):
            channel.queue_declare(name, durable=True)
            channel.exchange_declare(f"{name}-e", "fanout")
            channel.queue_bind(name, f"{name}-e")
        channel.queue_purge(name)
        channel.queue_unbind(name, f"{name}-e")
        channel.exchange_delete(f"{name}-e")
        channel.queue_delete(name)
    for what, thing in (
        ("queue.declare", name),
        ("exchange.declare", f"{name}-e"),
        ("bind", name),
        ("queue.purge", name),
        ("unbind", name),
        ("exchange.delete", f"{name}-e"),
        ("queue.delete", name),
    ):
        # In this order, and once: declared again it is no change.
        node.wait_for_log(*said, f"changes: {what} ", "protocol=amqp", f"object={thing}")
    with RawMqtt(node) as client:
        client.connect()
        client.publish(f"$queue/{name}-m", b"x", 1)
        assert client.expect(PubAck).reason == 0
        body = b'{"limits": {"max_queue_depth": 5}}'
        client.publish(f"$admin/queue/{name}-m/config", body, 1)
        client.expect(PubAck)
    for what in ("queue.create", "queue.config"):
        words = (f"changes: {what} ", "protocol=mqtt", f"object={name}-m")
        node.wait_for_log(*said, *words)
    url = f"{node.http_url}/v1/topics/{name}-h"
    id_ = {"x-request-id": "mine"}
    httpx.put(url, json={}, auth=("guest", "guest"), headers=id_).raise_for_status()
    node.wait_for_log(*said, "protocol=http", "request_id=mine", f"object=/v1/topics/{name}-h")
    lines = [each for each in node.lines if "changes: queue.declare " in each and name in each]
    assert len(lines) == 1
