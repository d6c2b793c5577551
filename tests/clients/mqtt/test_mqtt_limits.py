"""What an operator sets, on a node with small limits, and what users may do."""

from array import array
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Kind, Reason, Version
from braidmq.wire.mqtt.packets import ConnAck, Connect, PubAck, Publish, Will
from braidmq.wire.mqtt.properties import Properties
from braidmq.wire.mqtt.render import render_acks
from braidmq.wire.mqtt.scan import CLIENT, EVENT_PUBLISH, Scanner

SETTINGS = """
[mqtt]
packet_bytes_max = 2048
maximum_qos = 1
keep_alive_s_max = 100
session_expiry_s_max = 1000
session_messages_max = 3
subscriptions_max = 2
retained_messages_max = 1
share_strategy = "sticky"
"""
ID_MAX = 0x7FFF
KEPT = Properties(session_expiry_interval=3600)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    where = tmp_path_factory.mktemp("limited")
    (where / "braid.toml").write_text(SETTINGS)
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node


def test_connack_names_them(limited: LiveNode) -> None:
    with RawMqtt(limited) as client:
        said = client.connect(keep_alive_s=500, properties=KEPT).properties
    assert (said.maximum_packet_size, said.maximum_qos) == (2048, 1)
    assert (said.server_keep_alive, said.session_expiry_interval) == (100, 1000)


def test_qos_is_granted_up_to_the_maximum_and_refused_above(limited: LiveNode) -> None:
    with RawMqtt(limited) as client:
        client.connect()
        assert client.subscribe("qos", qos=2) == (1,)
        client.publish("qos", b"", 2)
        assert client.closing() == Reason.QOS_NOT_SUPPORTED
    with RawMqtt(limited) as client:
        client.send(Connect(client_id="w", will=Will("w", qos=2)))
        assert client.expect(ConnAck).reason == Reason.QOS_NOT_SUPPORTED


def test_what_3_1_1_publishes_above_the_maximum_is_downgraded(limited: LiveNode, name: str) -> None:
    with RawMqtt(limited, Version.V3_1_1) as client, RawMqtt(limited) as watcher:
        watcher.connect()
        assert watcher.subscribe(name, qos=2) == (1,)
        client.connect(name, will=Will(name, b"will", 2))
        client.answer(client.publish(name, b"published", 2))
        assert (message := watcher.message()).payload == b"published"
        assert message.qos == 1
        client.sock.close()
        assert (message := watcher.message()).payload == b"will"
        assert message.qos == 1


def test_a_packet_that_is_too_large(limited: LiveNode) -> None:
    with RawMqtt(limited) as client:
        client.connect()
        client.publish("t", b"x" * 2048)
        assert client.closing() == Reason.PACKET_TOO_LARGE


def test_the_oldest_leave_a_session_that_is_full(limited: LiveNode, name: str) -> None:
    with RawMqtt(limited) as client:
        client.connect(name, clean_start=False, properties=KEPT)
        client.subscribe(name, qos=1)
    with RawMqtt(limited) as sender:
        sender.connect()
        for number in range(5):
            assert sender.answer(sender.publish(name, b"%d" % number, 1)) == 0
    with RawMqtt(limited) as client:
        client.connect(name, clean_start=False, properties=KEPT)
        assert [client.message().payload for _ in range(3)] == [b"2", b"3", b"4"]
        assert client.ping() == []


def test_subscriptions_and_retained_messages(limited: LiveNode, name: str) -> None:
    with RawMqtt(limited) as client:
        client.connect()
        assert client.subscribe("a", "b", "c") == (0, 0, Reason.QUOTA_EXCEEDED)
        assert client.subscribe("a", qos=1) == (1,)
        assert client.answer(client.publish(f"{name}/1", b"x", 1, retain=True)) == 0x10
        sent = client.publish(f"{name}/2", b"x", 1, retain=True)
        assert client.answer(sent) == Reason.QUOTA_EXCEEDED
        assert client.answer(client.publish(f"{name}/1", b"", 1, retain=True)) == 0x10


def test_sticky_groups(limited: LiveNode, name: str) -> None:
    with RawMqtt(limited) as one, RawMqtt(limited) as two:
        for client in (one, two):
            client.connect()
            client.subscribe(f"$share/g/{name}")
        for number in range(4):
            two.publish(name, b"%d" % number)
        assert two.ping() == []
        assert [one.message().payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_permissions(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        with httpx.Client(base_url=node.http_url, auth=("guest", "guest")) as admin:
            admin.put("/v1/users/device", json={"password": "secret"}).raise_for_status()
            admin.put(
                "/v1/permissions/%2F/device",
                json={"configure": "", "write": "^up/", "read": "^down/"},
            ).raise_for_status()
        with RawMqtt(node) as client:
            client.connect(user_name="device", password=b"secret")
            assert client.subscribe("down/#", "up/#") == (0, Reason.NOT_AUTHORIZED)
            assert client.answer(client.publish("up/x", b"", 1)) == 0x10
            assert client.answer(client.publish("down/x", b"", 1)) == Reason.NOT_AUTHORIZED
            client.publish("down/x", b"")
            assert client.closing() == Reason.NOT_AUTHORIZED
        with RawMqtt(node, Version.V3_1_1) as client:
            client.connect("old", user_name="device", password=b"secret")
            client.publish("down/x", b"", 1)
            client.expect_end()
        with RawMqtt(node) as client:
            will = Will("down/will")
            answer = client.connect(user_name="device", password=b"secret", will=will)
            assert answer.reason == Reason.NOT_AUTHORIZED


def test_no_packet_id_is_used_twice_at_a_time(node: LiveNode, name: str) -> None:
    """Ids come from offsets: while the first of 32767 is not answered, the next has to wait."""
    total = 33_000
    with RawMqtt(node, Version.V3_1_1) as client, RawMqtt(node, Version.V3_1_1) as sender:
        client.connect(name)
        client.subscribe(name, qos=1)
        sender.connect(f"{name}-sender")
        first = True
        seen: list[int] = []
        scanner = Scanner(CLIENT, Version.V3_1_1)
        tail = b""
        for start in range(0, total, 5000):
            sender.send(
                *(
                    Publish(name, b"", 1, packet_id=number % 65_535 + 1)
                    for number in range(start, min(start + 5000, total))
                )
            )
            while len(seen) < min(start + 5000, total, ID_MAX):
                data = tail + client.sock.recv(1 << 16)
                events, used = scanner.scan(data, len(data))
                tail = data[used:]
                for event in events:
                    assert event[0] == EVENT_PUBLISH
                    ids = event[1].packet_ids
                    seen += ids
                    if first:
                        ids, first = ids[1:], False
                    client.send_bytes(render_acks(Kind.PUBACK, ids, Version.V3_1_1))
        assert len(set(seen)) == ID_MAX
        assert client.ping() == []
        client.send_bytes(render_acks(Kind.PUBACK, array("H", seen[:1]), Version.V3_1_1))
        rest = [client.message().packet_id for _ in range(total - ID_MAX)]
        assert rest == seen[: len(rest)]


def test_what_only_waits_for_the_disk_is_not_too_much(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """QoS 2 goes out when it is on disk: until then a connected client does not lose it to the
    limit, however many came at once."""
    where = tmp_path_factory.mktemp("few")
    (where / "braid.toml").write_text("[mqtt]\nsession_messages_max = 3\n")
    count = 200
    with (
        live_node(where / "data", config=where / "braid.toml") as node,
        RawMqtt(node) as client,
        RawMqtt(node, Version.V3_1_1) as sender,
    ):
        client.connect(name, clean_start=False, properties=KEPT)
        client.subscribe(name, qos=2)
        sender.connect()
        packets = [Publish(name, b"%d" % n, 2, packet_id=n + 1) for n in range(count)]
        sender.send(*packets)
        got = [client.expect(Publish).payload for _ in range(count)]
        assert got == [each.payload for each in packets]


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    where = tmp_path_factory.mktemp("shallow")
    (where / "braid.toml").write_text("[mqtt]\ntopic_levels_max = 3\n")
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_levels_of_topics(shallow: LiveNode, name: str, qos: int) -> None:
    """In version 5 who waits for an answer is told, and stays."""
    with RawMqtt(shallow) as client:
        client.connect()
        assert client.subscribe(f"{name}/b/+", "/a/b/c", "a/b/#", "a/+/+/#") == (
            0,
            Reason.TOPIC_FILTER_INVALID,
            0,
            Reason.TOPIC_FILTER_INVALID,
        )
        client.publish(f"{name}/b/c", b"taken", 1)
        assert {type(client.packet()) for _ in range(2)} == {PubAck, Publish}
        sent = client.publish(f"{name}/b/c/", b"refused", qos)
        if qos:
            assert client.answer(sent) == Reason.TOPIC_NAME_INVALID
            assert client.ping() == []
        else:
            assert client.closing() == Reason.TOPIC_NAME_INVALID


def test_levels_of_topics_in_3_1_1(shallow: LiveNode, name: str) -> None:
    with RawMqtt(shallow, Version.V3_1_1) as client:
        client.connect(name)
        assert client.subscribe(f"{name}/+/c", "a/b/c/d") == (0, 0x80)
        client.publish(f"{name}/b/c", b"taken")
        assert client.message().payload == b"taken"
        client.publish(f"{name}/b/c/d", b"refused", 1)
        client.expect_end()


def test_levels_of_wills(shallow: LiveNode, name: str) -> None:
    for version in (Version.V3_1_1, Version.V5):
        with RawMqtt(shallow, version) as client, RawMqtt(shallow) as watcher:
            watcher.connect()
            watcher.subscribe(f"{name}/#")
            client.connect(f"{name}{version}", will=Will(f"{name}/b/c", b"will"))
            client.sock.close()
            assert watcher.message().payload == b"will"
    with RawMqtt(shallow) as client:
        assert client.connect(name, will=Will(f"{name}/b/c/d")).reason == Reason.TOPIC_NAME_INVALID
        client.expect_end()
    with RawMqtt(shallow, Version.V3_1_1) as client:
        client.send(Connect(client.version, name, will=Will(f"{name}/b/c/d")))
        client.expect_end()
