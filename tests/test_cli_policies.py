"""``braid policies`` and its HTTP pages, against a real node in its own process."""

import json
from pathlib import Path

import httpx
import pika

from braidmq.testing.live import LiveNode, live_node
from tests.test_cli_users import braid, complaint, done, listed

GUEST = ("guest", "guest")


def connected(node: LiveNode) -> pika.BlockingConnection:
    at = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    return pika.BlockingConnection(at)


def test_policies_hold_for_what_is_there_and_survive_a_kill(tmp_path: Path) -> None:
    definition = json.dumps({"max-length": 2})
    with live_node(tmp_path) as node:
        connection = connected(node)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("tasks", durable=True)
        durable = pika.BasicProperties(delivery_mode=2)
        for body in (b"a", b"b", b"c"):
            channel.basic_publish("", "tasks", body, durable)
        url = node.http_url
        done(braid(url, "policies", "set", "short", "^tasks$", definition, "--apply-to", "queues"))
        channel.basic_publish("", "tasks", b"d", durable)
        declared = channel.queue_declare("tasks", passive=True)
        assert declared.method.message_count == 2
        connection.close()
        node.kill()
    with live_node(tmp_path) as node:
        url = node.http_url
        assert listed(url, "policies") == [
            {
                "namespace": "/",
                "name": "short",
                "pattern": "^tasks$",
                "apply_to": "queues",
                "definition": {"max-length": 2},
                "priority": 0,
            }
        ]
        assert definition in done(braid(url, "policies", "list"))
        path = f"{url}/v1/policies/%2F/short"
        body = {"pattern": "t", "definition": {"max-length": 1}, "apply_to": "queues"}
        assert httpx.put(path, json=body, auth=GUEST).status_code == 200
        only_new = {"If-None-Match": "*"}
        assert httpx.put(path, json=body, auth=GUEST, headers=only_new).status_code == 412
        assert httpx.get(path, auth=GUEST).json()["definition"] == {"max-length": 1}
        assert httpx.get(path).status_code == 401
        with connected(node) as connection:
            assert connection.channel().basic_get("tasks", auto_ack=True)[2] == b"d"
        done(braid(url, "policies", "delete", "--yes", "short"))
        assert listed(url, "policies") == []
        assert "no policy" in complaint(braid(url, "policies", "delete", "--yes", "short"), 5)
        assert "JSON" in complaint(braid(url, "policies", "set", "a", "b", "{"), 2)
        assert "max-lenght" in complaint(
            braid(url, "policies", "set", "a", "b", '{"max-lenght": 1}'), 1
        )
        elsewhere = ("policies", "set", "a", "b", definition, "-n", "nowhere")
        assert "nowhere" in complaint(braid(url, *elsewhere), 5)
