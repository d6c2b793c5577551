"""What a node logs and counts of its MQTT clients, and the trace of one of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Disconnect, PubAck
from braidmq.wire.mqtt.properties import Properties

GUEST = ("guest", "guest")
SECRET = "s3cret-of-guest"


@pytest.fixture
def talker(tmp_path: Path) -> Iterator[LiveNode]:
    """A node that logs everything, as JSON."""
    config = tmp_path / "braid.toml"
    config.write_text('[log]\nformat = "json"\nlevel = "debug"\n')
    with live_node(tmp_path / "data", config=config) as node:
        yield node


def next_line(node: LiveNode, message: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(node.wait_for_log(f'"message":"{message}"'))
    return line


def test_a_connection_from_its_login_to_its_end(talker: LiveNode) -> None:
    with RawMqtt(talker) as client:
        client.connect("worker-1")
        opened = next_line(talker, "connection opened")
        assert (opened["user"], opened["namespace"], opened["client"]) == ("guest", "/", "worker-1")
        assert opened["peer"].startswith("127.0.0.1:")
        client.subscribe("$queue/made", qos=1)
        created = next_line(talker, "topic created")
        assert (created["topic"], created["connection"]) == ("made", opened["connection"])
        listed = httpx.get(f"{talker.http_url}/v1/connections", auth=GUEST).json()
        (found,) = [each for each in listed if each["id"] == opened["connection"]]
        assert (found["protocol"], found["client"], found["peer"]) == (
            "mqtt",
            "worker-1",
            opened["peer"],
        )
        client.send(Disconnect())
        closed = next_line(talker, "connection closed")
        assert (closed["reason"], closed["client"]) == ("the client closed it", "worker-1")


def test_a_refused_login_is_logged_without_its_password(talker: LiveNode) -> None:
    with RawMqtt(talker) as client:
        answer = client.connect("x", user_name="guest", password=SECRET.encode())
        assert answer.reason == Reason.BAD_USER_NAME_OR_PASSWORD
    refused = next_line(talker, "login refused")
    assert (refused["user"], refused["level"]) == ("guest", "warning")
    assert talker.stop() == 0
    assert not any(SECRET in line for line in talker.lines)


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
def test_a_trace_has_every_packet_of_one_connection_and_no_other(
    talker: LiveNode, version: int
) -> None:
    with RawMqtt(talker, version) as client, RawMqtt(talker, version) as other:
        client.connect("traced")
        traced = next_line(talker, "connection opened")["connection"]
        other.connect("other")
        url = f"{talker.http_url}/v1/connections/{traced}/trace"
        assert httpx.put(url, auth=GUEST).json() == {"connection": traced, "trace": True}
        client.subscribe("t/#", qos=1)
        other.subscribe("t/#", qos=1)
        properties = Properties(content_type="text/plain") if version == Version.V5 else None
        given = {"properties": properties} if properties is not None else {}
        client.publish("t/x", b"p" * 300_000, 1, **given)
        packets = {type(client.packet()) for _ in range(2)}
        assert PubAck in packets
        assert client.ping() == []
        assert httpx.delete(url, auth=GUEST).json() == {"connection": traced, "trace": False}
        client.ping()
    assert talker.stop() == 0
    lines = [json.loads(line) for line in talker.lines if '"logger":"braidmq.trace"' in line]
    assert {line["connection"] for line in lines} == {traced}
    said = [line["message"] for line in lines]
    assert said[:3] == ["received SUBSCRIBE", "sent SUBACK", "received PUBLISH"]
    assert sorted(said[3:5]) == ["sent PUBACK", "sent PUBLISH"]
    assert said[5:] == ["received PINGREQ", "sent PINGRESP"]
    published = lines[2]["fields"]
    assert (published["topic"], published["payload"]) == ("t/x", "300000 bytes")
    assert published.get("content_type") == ("text/plain" if version == Version.V5 else None)


def test_metrics_by_protocol(fresh_node: LiveNode) -> None:
    def read(name: str) -> float:
        text = httpx.get(f"{fresh_node.http_url}/metrics").text
        (line,) = [each for each in text.splitlines() if each.startswith(name)]
        return float(line.rpartition(" ")[2])

    mqtt = '{protocol="mqtt"}'
    with RawMqtt(fresh_node) as client, RawMqtt(fresh_node) as stranger:
        client.connect("one")
        stranger.connect(user_name="guest", password=b"wrong")
        client.subscribe("t", qos=1)
        for qos in (0, 1):
            client.publish("t", b"x" * 1000, qos)
        assert PubAck in {type(client.packet()) for _ in range(3)}
        assert read(f"braid_connections_opened_total{mqtt}") == 1
        assert read(f"braid_logins_refused_total{mqtt}") == 1
        assert read(f"braid_channels{mqtt}") == 1
        assert read(f"braid_received_messages_total{mqtt}") == 2
        assert read(f"braid_sent_messages_total{mqtt}") == 2
        assert read(f"braid_missed_messages_total{mqtt}") == 0
        assert read(f"braid_received_bytes_total{mqtt}") > 2000
    assert read(f"braid_sent_bytes_total{mqtt}") > 2000
