"""Retained messages for a subscription that SUBACK was given for, and a crash in the middle of
them: a kept session gets the rest, and nothing of QoS 2 twice."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from raw_mqtt import RawMqtt

from braidmq.engine.engine import Engine
from braidmq.gateways.mqtt import retained_sending
from braidmq.gateways.mqtt.session_records import SUBSCRIPTIONS, SubscriptionRecord
from braidmq.storage.disk import Disk
from braidmq.testing.faulty_disk import CutAt, LoseAll
from braidmq.testing.hosted import CommitGate, HostedNode, hosted_node
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
)
from braidmq.wire.mqtt.properties import Properties

COUNT = 5000
KEPT = Properties(session_expiry_interval=600)


class Device:
    """A client that does what MQTT wants of it, and remembers it across connections."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.got: Counter[str] = Counter()
        self._held: set[int] = set()

    def connect(self, node: LiveNode | HostedNode) -> RawMqtt:
        client = RawMqtt(node, self.version)
        kept = KEPT if self.version == Version.V5 else Properties()
        client.connect("device", clean_start=False, properties=kept)
        return client

    def receive(self, client: RawMqtt, topics: int) -> None:
        """Until it knows so many topics."""
        while len(self.got) < topics:
            self._take(client)

    def _take(self, client: RawMqtt) -> None:
        packet = client.packet()
        if isinstance(packet, PubRel):
            self._held.discard(packet.packet_id)
            client.send(PubComp(packet.packet_id))
        elif isinstance(packet, Publish):
            if packet.qos == 1:
                self.got[packet.topic] += 1
                client.send(PubAck(packet.packet_id))
                return
            assert packet.qos == 2
            if packet.packet_id not in self._held:
                self._held.add(packet.packet_id)
                self.got[packet.topic] += 1
            client.send(PubRec(packet.packet_id))
        else:
            assert isinstance(packet, SubAck)


def retain(node: LiveNode | HostedNode, count: int, qos: int) -> None:
    with RawMqtt(node) as sender:
        sender.connect()
        for number in range(0, count, 100):
            sent = [
                sender.publish(f"kept/{each:05}", b"x" * 50, 1, retain=True)
                for each in range(number, min(number + 100, count))
            ]
            for each in sent:
                assert sender.answer(each) in (0, 0x10)
        if qos == 2:
            for number in range(0, count, 3):
                one = sender.publish(f"kept/{number:05}", b"2", 2, retain=True)
                assert sender.answer(one) in (0, 0x10)


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
@pytest.mark.parametrize("before_kill", [0, 700, 3000])
def test_a_kept_session_gets_the_rest_after_a_kill(
    tmp_path: Path, version: int, before_kill: int
) -> None:
    device = Device(version)
    with live_node(tmp_path / "data") as node:
        retain(node, COUNT, 1)
        with device.connect(node) as client:
            client.send(Subscribe(1, (Request("kept/#", 1),)))
            assert client.expect(SubAck)
            device.receive(client, before_kill)
            node.kill()
    with live_node(tmp_path / "data") as node, device.connect(node) as client:
        device.receive(client, COUNT)


TOPICS = [f"kept/{number:05}" for number in range(10)]


def test_a_slice_comes_once_whatever_a_crash_leaves_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is written before it, and counts only if it came."""
    monkeypatch.setattr(retained_sending, "QUEUED_MAX", 4)
    disk = CommitGate()
    with hosted_node(disk) as node:
        retain(node, len(TOPICS), 2)
        with RawMqtt(node) as client:
            one = Properties(session_expiry_interval=600, receive_maximum=1)
            client.connect("device", clean_start=False, properties=one)
            client.subscribe("kept/+", qos=1)
            places = set()
            came: list[Packet] = []
            for _ in range(len(TOPICS) - 1):
                message = came[0] if came else client.expect(Publish)
                assert isinstance(message, Publish)
                disk.shut()
                client.send(PubAck(message.packet_id))
                came = client.ping()
                for size in range(0, disk.unsynced_bytes + 1, 64):
                    places.add(left_by(disk.crash(CutAt(size)).crash(LoseAll())))
                disk.let_through()
    assert {slice_came for _, slice_came in places} == {False, True}


def left_by(disk: Disk) -> tuple[int, bool]:
    """How many messages are in the queue after a crash, and whether it was in the middle of a
    slice: with those that are still to come each is there once."""
    engine = Engine.open(disk, 0)
    try:
        log = engine.state.topics["/", "$mqtt/session/device"].partitions[0].log
        value = engine.store.catalogue.get(SUBSCRIPTIONS, "/\0device\0kept/+")
        assert value is not None
        noted = msgspec.msgpack.decode(value, type=SubscriptionRecord).retained
        place = noted.found(log.next_offset) if noted is not None else None
        rest = [] if place is None else [each for each in TOPICS if each > place.after]
        assert log.next_offset + len(rest) == len(TOPICS)
        return log.next_offset, place == noted
    finally:
        engine.close()


def test_a_subscription_that_replaces_another_does_not_end_its_messages(tmp_path: Path) -> None:
    """It asks for none itself, and takes none away that were promised."""
    device = Device(Version.V5)
    with live_node(tmp_path / "data") as node:
        retain(node, COUNT, 1)
        with device.connect(node) as client:
            client.send(
                Subscribe(1, (Request("kept/#", 1),)),
                Subscribe(2, (Request("kept/#", 1, retain_handling=1),)),
                Subscribe(3, (Request("kept/#", 1, retain_handling=2),)),
            )
            device.receive(client, COUNT)
