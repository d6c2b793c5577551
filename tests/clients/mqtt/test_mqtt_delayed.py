"""Messages for later over MQTT: by user property, by topic, to plain topics and to queues."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import PubAck, Publish, Request, Will
from braidmq.wire.mqtt.properties import Properties

KEPT = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}
DELAY_MS = 400
versions = pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])


def saying(*pairs: tuple[str, str], **fields: object) -> Properties:
    return Properties(user_properties=pairs, **fields)  # type: ignore[arg-type]


def publish_and_time(client: RawMqtt, topic: str, qos: int, **fields: object) -> float:
    """Publishes, with the message that is not delayed behind it; returns when."""
    began = time.time()
    sent = client.publish(topic, b"later", qos, **fields)
    if qos:
        assert client.answer(sent) == 0
    return began


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kept", [True, False])
def test_a_delayed_message_comes_when_it_is_due(
    node: LiveNode, name: str, qos: int, kept: bool
) -> None:
    with RawMqtt(node) as reader, RawMqtt(node) as writer:
        reader.connect(f"{name}-r", **(KEPT if kept else {}))
        reader.subscribe(f"{name}/#", qos=qos)
        writer.connect(f"{name}-w")
        given = saying(("delay-ms", str(DELAY_MS)), ("colour", "red"))
        began = publish_and_time(writer, f"{name}/a", qos, properties=given)
        now = writer.publish(f"{name}/a", b"now", qos)
        if qos:
            writer.answer(now)
        assert reader.message().payload == b"now"
        later = reader.message()
        assert time.time() - began >= DELAY_MS / 1000
        assert (later.payload, later.topic, later.qos) == (b"later", f"{name}/a", qos)
        assert later.properties.user_properties == (("colour", "red"),)
        assert reader.ping() == []


@versions
def test_the_topic_can_say_the_delay(node: LiveNode, name: str, version: int) -> None:
    with RawMqtt(node, version) as client:
        client.connect(name)
        client.subscribe(f"{name}/#", "$delayed/#", qos=1)
        began = publish_and_time(client, f"$delayed/1/{name}/a", 1)
        assert client.message().topic == f"{name}/a"
        assert time.time() - began >= 1
        assert client.ping() == []


@versions
def test_the_topic_can_say_a_time(node: LiveNode, name: str, version: int) -> None:
    at = int(time.time()) + 2
    with RawMqtt(node, version) as client:
        client.connect(name)
        client.subscribe(f"{name}/#", qos=1)
        publish_and_time(client, f"$delayed/{at}/{name}/a", 1)
        assert client.message().payload == b"later"
        assert time.time() >= at


@pytest.mark.parametrize("form", ["number", "date"])
@pytest.mark.parametrize("kind", ["plain", "queue"])
def test_an_absolute_time_is_kept(node: LiveNode, name: str, form: str, kind: str) -> None:
    topic = name if kind == "plain" else f"$queue/{name}"
    at_ms = int(time.time() * 1000) + DELAY_MS
    date = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
    given = saying(("deliver-at", str(at_ms) if form == "number" else date))
    with RawMqtt(node) as client:
        client.connect(f"{name}-1")
        client.subscribe(topic, qos=1)
        publish_and_time(client, topic, 1, properties=given)
        assert client.message().payload == b"later"
        assert time.time() * 1000 >= at_ms


def test_a_queue_takes_delays_by_topic(node: LiveNode, name: str) -> None:
    with RawMqtt(node, Version.V3_1_1) as client:
        client.connect(f"{name}-1")
        client.subscribe(f"$queue/{name}", qos=1)
        began = publish_and_time(client, f"$delayed/1/$queue/{name}", 1)
        assert client.message().topic == f"$queue/{name}"
        assert time.time() - began >= 1


@pytest.mark.parametrize("delay", ["0", "past"])
def test_what_is_due_already_comes_at_once(node: LiveNode, name: str, delay: str) -> None:
    given = saying(("delay-ms", "0") if delay == "0" else ("deliver-at", "1000"))
    with RawMqtt(node) as client, RawMqtt(node) as writer:
        client.connect()
        writer.connect()
        client.subscribe(name, qos=1)
        publish_and_time(writer, name, 1, properties=given)
        assert client.message().properties.user_properties == ()


@pytest.mark.parametrize(
    "pairs",
    [
        (("delay-ms", "soon"),),
        (("delay-ms", "-1"),),
        (("delay-ms", "1.5"),),
        (("delay-ms", str(1 << 60)),),
        (("delay-ms", ""),),
        (("deliver-at", "tomorrow"),),
        (("deliver-at", "2030-01-31T08:00:00"),),
        (("delay-ms", "1"), ("deliver-at", "1")),
        (("delay-ms", "1"), ("delay-ms", "1")),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "queue"])
@pytest.mark.parametrize("qos", [1, 2])
def test_bad_times_are_refused(
    node: LiveNode, name: str, pairs: tuple[tuple[str, str], ...], kind: str, qos: int
) -> None:
    topic = name if kind == "plain" else f"$queue/{name}"
    with RawMqtt(node) as client:
        client.connect(f"{name}-1")
        client.subscribe(topic, qos=1)
        sent = client.publish(topic, b"x", qos, properties=saying(*pairs))
        answer = client.packet()
        assert answer.reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR  # type: ignore[attr-defined]
        text = answer.properties.reason_string  # type: ignore[attr-defined]
        assert "delay-ms" in text or "deliver-at" in text
        assert answer.packet_id == sent.packet_id  # type: ignore[attr-defined]
        assert client.ping() == []


@pytest.mark.parametrize(
    "topic",
    [
        "$delayed/x/a",
        "$delayed/-1/a",
        "$delayed/5",
        "$delayed/5/",
        "$delayed/5/$delayed/5/a",
        "$delayed/9999999999999/a",
        "$delayed/5/$SYS/a",
        "$delayed/5/$mqtt/a",
        "$delayed/5/$queue/a/$ack",
        "$delayed/5/$admin/queue/create",
    ],
)
@versions
def test_bad_delays_in_topics_are_refused(node: LiveNode, topic: str, version: int) -> None:
    with RawMqtt(node, version) as client:
        client.connect()
        sent = client.publish(topic, b"x", 1)
        if version == Version.V5:
            assert client.answer(sent) == Reason.TOPIC_NAME_INVALID
            assert client.ping() == []
        else:
            client.expect_end()


def test_one_time_is_enough(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect()
        given = saying(("delay-ms", "1"))
        sent = client.publish(f"$delayed/5/{name}", b"x", 1, properties=given)
        assert client.answer(sent) == Reason.IMPLEMENTATION_SPECIFIC_ERROR


def test_messages_of_one_run_have_each_their_own_time(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name)
        client.subscribe(name, qos=1)
        batch = [
            Publish(
                name, b"%d" % ms, 1, packet_id=100 + ms, properties=saying(("delay-ms", str(ms)))
            )
            for ms in (300, 0, 600)
        ]
        client.send(*batch)
        got = []
        while len(got) < 3:
            packet = client.packet()
            if isinstance(packet, Publish):
                got.append(packet.payload)
                client.send(PubAck(packet.packet_id))
        assert got == [b"0", b"300", b"600"]


def test_a_retained_message_is_retained_when_it_is_due(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name)
        client.subscribe(name, qos=1)
        publish_and_time(
            client, name, 1, retain=True, properties=saying(("delay-ms", str(DELAY_MS)))
        )
        client.subscribe(name, qos=1)
        first = client.message()
        assert (first.payload, first.retain) == (b"later", False)
        client.subscribe(name, qos=1)
        again = client.message()
        assert (again.payload, again.retain) == (b"later", True)


def test_no_local_holds_for_delayed_messages(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as other:
        client.connect(f"{name}-1")
        other.connect(f"{name}-2")
        client.subscribe(Request(name, 1, no_local=True))
        other.subscribe(name, qos=1)
        publish_and_time(client, name, 1, properties=saying(("delay-ms", str(DELAY_MS))))
        assert other.message().payload == b"later"
        assert client.ping() == []


def test_the_expiry_interval_begins_when_it_is_due(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name)
        client.subscribe(name, qos=1)
        given = saying(("delay-ms", "1500"), message_expiry_interval=1)
        publish_and_time(client, name, 1, properties=given)
        assert client.message().properties.message_expiry_interval == 1


def test_a_will_can_be_delayed_and_a_bad_one_is_refused(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node) as leaver, RawMqtt(node) as refused:
        client.connect()
        client.subscribe(name, qos=1)
        leaver.connect(
            f"{name}-l", will=Will(name, b"bye", 1, properties=saying(("delay-ms", "300")))
        )
        began = time.time()
        leaver.sock.close()
        assert client.message().payload == b"bye"
        assert time.time() - began >= 0.3
        bad = Will(name, b"bye", 1, properties=saying(("delay-ms", "soon")))
        assert refused.connect(f"{name}-b", will=bad).reason >= 0x80


def test_who_subscribes_when_it_is_due_gets_it(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect()
        began = publish_and_time(client, f"{name}/x", 1, properties=saying(("delay-ms", "300")))
        client.subscribe(f"{name}/+", qos=1)
        assert client.message().payload == b"later"
        assert time.time() - began >= 0.3


@pytest.mark.crash
def test_delayed_messages_survive_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        client.connect("reader", **KEPT)
        client.subscribe("a", qos=2)
        given = saying(("delay-ms", "1500"))
        for qos in (1, 2):
            assert client.answer(client.publish("a", b"%d" % qos, qos, properties=given)) == 0
        due = time.time() + 1.4
        node.kill()
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        client.connect("reader", **KEPT)
        assert {client.message().payload for _ in range(2)} == {b"1", b"2"}
        assert time.time() >= due
        assert client.ping() == []


def test_only_so_many_wait(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[mqtt]\ndelayed_messages_max = 2\n")
    with live_node(tmp_path / "data", config=config) as node, RawMqtt(node) as client:
        client.connect()
        given = saying(("delay-ms", "60000"))
        answers = [client.answer(client.publish("a", b"", 1, properties=given)) for _ in range(3)]
        assert answers == [0, 0, Reason.QUOTA_EXCEEDED]
