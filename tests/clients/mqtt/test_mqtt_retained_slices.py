"""Many retained messages for a subscription: they come in slices, and others are served between."""

from collections import Counter
from collections.abc import Iterator

import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    encode,
)
from braidmq.wire.mqtt.properties import Properties

COUNT = 3000
BODY = b"x" * 200
QOS = (0, 1, 0, 1, 0, 1, 0, 1, 0, 2)
TOPICS = [f"kept/{number:05}" for number in range(COUNT)]
SESSION_MESSAGES_MAX = 50


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    """With retained messages of QoS 0, 1 and some of 2, and far less room in a session."""
    directory = tmp_path_factory.mktemp("node")
    config = directory / "braid.toml"
    config.write_text(f"[mqtt]\nsession_messages_max = {SESSION_MESSAGES_MAX}\n")
    with live_node(directory / "data", config=config) as node:
        with RawMqtt(node, Version.V3_1_1) as sender:  # 3.1.1 knows no receive maximum
            sender.connect()
            packets: list[Packet] = [
                Publish(topic, BODY, QOS[number % 10], retain=True, packet_id=number + 1)
                for number, topic in enumerate(TOPICS)
            ]
            sender.send_bytes(b"".join(encode(each, sender.version) for each in packets))
            open_exchanges = sum(QOS[number % 10] > 0 for number in range(COUNT))
            while open_exchanges:
                answer = sender.packet()
                if isinstance(answer, PubRec):
                    sender.send(PubRel(answer.packet_id))
                else:
                    open_exchanges -= 1
        yield node
        assert not node.complaints


def answer_all(client: RawMqtt, count: int) -> Counter[str]:
    """Take so many messages, and answer for each."""
    got: Counter[str] = Counter()
    while got.total() < count:
        packet = client.packet()
        if isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
            continue
        assert isinstance(packet, Publish)
        assert packet.retain
        got[packet.topic] += 1
        if packet.qos == 1:
            client.send(PubAck(packet.packet_id))
        elif packet.qos == 2:
            client.send(PubRec(packet.packet_id))
    return got


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
def test_who_subscribes_is_answered_between_them(node: LiveNode, version: int) -> None:
    filters = ["kept/+", "kept/#", "+/#", "#", "+/+"]
    requests = tuple(Request(each, 0) for each in filters)
    wanted = len(filters) * COUNT
    with RawMqtt(node, version) as client, RawMqtt(node) as probe:
        client.connect()
        probe.connect()
        client.send(Subscribe(1, requests), PingReq())
        client.expect(SubAck)
        before = 0
        while not isinstance(client.packet(), PingResp):
            before += 1
        assert before < wanted / 2
        # It does not read for a while: others do not notice.
        for number in range(50):
            probe.answer(probe.publish("$else/where", b"%d" % number, 1))
        rest = Counter(client.expect(Publish).topic for _ in range(wanted - before))
        assert client.ping() == []
        assert set(rest) == set(TOPICS)


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
@pytest.mark.parametrize("kept", [True, False])
def test_each_comes_once_though_the_session_has_little_room(
    node: LiveNode, name: str, version: int, kept: bool
) -> None:
    with RawMqtt(node, version) as client:
        expiry = Properties(session_expiry_interval=60 if kept else 0)
        client.connect(
            name, clean_start=not kept, properties=expiry if version == Version.V5 else Properties()
        )
        client.subscribe("kept/+", qos=2)
        got = answer_all(client, COUNT)
        assert got == Counter(TOPICS)
        assert [each for each in client.ping() if isinstance(each, Publish)] == []


def test_they_stop_with_their_subscription(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        client.connect()
        client.send(
            Subscribe(1, (Request("kept/#", 0), Request("#", 0))),
            PingReq(),
            Unsubscribe(2, ("kept/#", "#")),
        )
        client.expect(SubAck)
        got = 0
        while not isinstance(packet := client.packet(), UnsubAck):
            got += isinstance(packet, Publish)
        assert got < 2 * COUNT
        assert client.ping() == []


def test_they_stop_with_their_connection(node: LiveNode) -> None:
    with RawMqtt(node) as probe:
        probe.connect()
        for _ in range(5):
            with RawMqtt(node) as client:
                client.connect()
                client.subscribe("kept/#", "#", qos=1)
        probe.subscribe("kept/00007", qos=1)
        assert probe.message().topic == "kept/00007"


def test_subscribing_again_begins_again(node: LiveNode) -> None:
    """What the first has not sent by then is the second's to send."""
    with RawMqtt(node) as client:
        client.connect()
        client.send(*[Subscribe(number, (Request("kept/#", 0),)) for number in (1, 2, 3)])
        got: Counter[str] = Counter()
        while len(got) < COUNT:
            packet = client.packet()
            if isinstance(packet, Publish):
                got[packet.topic] += 1
        rest = [each for each in client.ping() if isinstance(each, Publish)]
        assert len(rest) + got.total() < 3 * COUNT


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
def test_who_comes_back_to_its_session_gets_the_rest(
    node: LiveNode, name: str, version: int
) -> None:
    kept = Properties(session_expiry_interval=60) if version == Version.V5 else Properties()
    with RawMqtt(node, version) as client:
        client.connect(name, clean_start=False, properties=kept)
        client.subscribe("kept/+", qos=1)
        got: set[str] = {client.expect(Publish).topic for _ in range(10)}
    with RawMqtt(node, version) as client:
        client.connect(name, clean_start=False, properties=kept)
        above_qos_0 = {topic for index, topic in enumerate(TOPICS) if QOS[index % 10]}
        while not got >= above_qos_0:
            packet = client.expect(Publish)
            got.add(packet.topic)
            if packet.qos:
                client.send(PubAck(packet.packet_id))
