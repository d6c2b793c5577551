"""Packet ids of kept sessions are offsets: nothing goes out at QoS 2 under one that may yet stand
for another message, and they come round.

The disk is the test's: commits wait until it lets them through, and a crash loses what waited.
"""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from raw_mqtt import RawMqtt

from braidmq.engine.engine import Engine
from braidmq.gateways.mqtt import outbox
from braidmq.gateways.mqtt.session_records import PACKET_IDS
from braidmq.storage.disk import Disk
from braidmq.testing.faulty_disk import CutAt, FaultyDisk, LoseAll
from braidmq.testing.hosted import CommitGate, HostedNode, hosted_node
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

VERSIONS = [Version.V3_1_1, Version.V5]


@pytest.fixture
def disk() -> CommitGate:
    return CommitGate()


@pytest.fixture
def node(disk: CommitGate) -> Iterator[HostedNode]:
    with hosted_node(disk) as node:
        yield node


def keeper(node: HostedNode, client_id: str, version: int = Version.V5) -> RawMqtt:
    client = RawMqtt(node, version)  # type: ignore[arg-type]
    kept = Properties(session_expiry_interval=600)
    client.connect(
        client_id,
        clean_start=False,
        properties=kept if version == Version.V5 else NO_PROPERTIES,
    )
    return client


# --- before it is on disk ---


@pytest.mark.parametrize("version", VERSIONS)
def test_qos_2_waits_for_the_disk_and_qos_1_behind_it(
    disk: CommitGate, node: HostedNode, version: int
) -> None:
    with keeper(node, "client", version) as client, keeper(node, "sender", version) as sender:
        client.subscribe("t", qos=2)
        disk.shut()
        sender.publish("t", b"1", 1)
        assert client.expect(Publish).payload == b"1"  # as AMQP's does
        sender.publish("t", b"2", 2)
        sender.publish("t", b"3", 1)
        assert sender.ping() == []
        assert client.ping() == []
        disk.let_through()
        got = [client.expect(Publish) for _ in range(2)]
        assert [(each.payload, each.qos, each.dup) for each in got] == [
            (b"2", 2, False),
            (b"3", 1, False),
        ]


def test_sessions_in_memory_do_not_wait(disk: CommitGate, node: HostedNode) -> None:
    with RawMqtt(node) as client, keeper(node, "sender") as sender:  # type: ignore[arg-type]
        client.connect()
        client.subscribe("t", qos=2)
        disk.shut()
        sender.publish("t", b"1", 2)
        assert client.expect(Publish).payload == b"1"


def test_an_offset_that_a_crash_takes_back_was_nobodys(disk: CommitGate) -> None:
    """Another message gets it, with the same packet id: the client must not know that yet."""
    held: set[int] = set()
    got: list[bytes] = []
    with hosted_node(disk) as node, keeper(node, "client") as client:
        client.subscribe("t", qos=2)
        with keeper(node, "sender") as sender:
            disk.shut()
            sent = sender.publish("t", b"first", 2)
            assert sender.ping() == []
            for packet in client.ping():
                assert isinstance(packet, Publish)
                held.add(packet.packet_id)
                got.append(packet.payload)
        crashed = disk.crash(LoseAll())
    with hosted_node(crashed) as node, keeper(node, "client") as client:
        with RawMqtt(node) as other:  # type: ignore[arg-type]
            other.connect()
            assert other.answer(other.publish("t", b"other", 2)) == 0
        with keeper(node, "sender") as sender:
            sender.send(Publish("t", b"first", 2, packet_id=sent.packet_id, dup=True))
            assert sender.answer(sent) == 0
        for _ in range(2):
            message = client.expect(Publish)
            if message.packet_id not in held:
                got.append(message.payload)
        assert sorted(got) == [b"first", b"other"]


def test_an_id_whose_message_never_came_is_not_received_after_a_second_crash(
    disk: CommitGate,
) -> None:
    """Its id was written before it, and another message stands in its place by then."""
    with hosted_node(disk) as node, keeper(node, "client") as client:
        client.subscribe("t", qos=1)
        with keeper(node, "sender") as sender:
            disk.shut()
            sent = sender.publish("t", b"lost?", 2)
            assert sender.ping() == []
        crashed = first_with_the_id_alone(disk)
    with hosted_node(crashed) as node, RawMqtt(node) as other:  # type: ignore[arg-type]
        other.connect()
        assert other.answer(other.publish("t", b"other", 1)) == 0
        again = crashed.crash(LoseAll())
    with hosted_node(again) as node, keeper(node, "client") as client:
        assert client.message().payload == b"other"
        with keeper(node, "sender") as sender:
            sender.send(Publish("t", b"lost?", 2, packet_id=sent.packet_id, dup=True))
            assert sender.answer(sent) == 0
        assert client.message().payload == b"lost?"


def first_with_the_id_alone(disk: CommitGate) -> FaultyDisk:
    """What a power loss leaves that comes just between the two."""
    for size in range(0, 1 << 14, 8):
        crashed = disk.crash(CutAt(size))
        if is_id_alone(crashed.crash(LoseAll())):
            return crashed
    raise AssertionError("the id is never alone")


def is_id_alone(disk: Disk) -> bool:
    engine = Engine.open(disk, 0)
    try:
        ids = engine.store.catalogue.get(PACKET_IDS, "/\0sender")
        topic = engine.core.topics["/", "$mqtt/session/client"]
        return ids is not None and topic.partitions[0].log.next_offset == 0
    finally:
        engine.close()


# --- round and round ---

FEW = 13


class Device:
    """A client with a kept session that knows what it may assume of packet ids."""

    def __init__(self, node: HostedNode, version: int, source: random.Random) -> None:
        self._node, self._version, self._source = node, version, source
        self.got: Counter[bytes] = Counter()
        self.order: list[bytes] = []
        self._held: dict[int, bytes] = {}
        self._owed: list[PubAck | PubRec | PubComp] = []
        self._open: dict[int, bytes] = {}
        self.client = keeper(node, "device", version)

    def reconnect(self) -> None:
        self.client.sock.close()
        self._owed.clear()
        self._open.clear()
        self.client = keeper(self._node, "device", self._version)

    def take(self, payload: bytes) -> None:
        """Until a message came."""
        while payload not in self.got:
            self.step()

    def step(self) -> None:
        if self._owed and self._source.random() < 0.5:
            self.answer(self._source.randrange(1, len(self._owed) + 1))
        self.client.sock.settimeout(0.2 if self._owed else 20)
        try:
            packet = self.client.packet()
        except TimeoutError:
            self.answer(len(self._owed))
            return
        if isinstance(packet, PubRel):
            self._held.pop(packet.packet_id, None)
            self._owed.append(PubComp(packet.packet_id))
            return
        assert isinstance(packet, Publish)
        assert 1 <= packet.packet_id <= FEW
        # Of this connection: it is in use until it was answered for.
        assert self._open.get(packet.packet_id, packet.payload) == packet.payload
        self._open[packet.packet_id] = packet.payload
        if packet.qos == 1:
            self._owed.append(PubAck(packet.packet_id))
            self._note(packet.payload)
            return
        if packet.packet_id not in self._held:
            self._held[packet.packet_id] = packet.payload
            self._note(packet.payload)
        assert self._held[packet.packet_id] == packet.payload
        self._owed.append(PubRec(packet.packet_id))

    def _note(self, payload: bytes) -> None:
        self.got[payload] += 1
        if self.got[payload] == 1:
            self.order.append(payload)

    def answer(self, count: int) -> None:
        now, self._owed = self._owed[:count], self._owed[count:]
        self.client.send(*now)
        for each in now:
            if isinstance(each, PubAck | PubComp):
                self._open.pop(each.packet_id, None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [(1,), (2,), (1, 2)])
def test_ids_come_round(
    node: HostedNode, monkeypatch: pytest.MonkeyPatch, version: int, qos: tuple[int, ...]
) -> None:
    """With only a few of them: each is used many times, through reconnects, whatever is answered
    when."""
    monkeypatch.setattr(outbox, "ID_MAX", FEW)
    source = random.Random(version * 10 + len(qos))
    device = Device(node, version, source)
    device.client.subscribe("t", qos=2)
    sent: list[tuple[bytes, int]] = []
    with keeper(node, "sender", version) as sender:
        while len(sent) < 25 * FEW:
            for _ in range(source.choice((1, 1, 2, 5, 20))):
                each = source.choice(qos)
                payload = b"%d" % len(sent)
                assert sender.answer(sender.publish("t", payload, each)) == 0
                sent.append((payload, each))
            if source.random() < 0.3:
                device.reconnect()
            elif source.random() < 0.7:
                device.take(sent[-1][0])
        device.take(sent[-1][0])
    assert device.order == [payload for payload, _ in sent]
    assert all(device.got[payload] == 1 for payload, each in sent if each == 2)
    device.client.sock.close()
