"""Packet ids of kept sessions are offsets: nothing goes out at QoS 2 under one that may yet stand
for another message, and they come round.

The disk is the test's: commits wait until it lets them through, and a crash loses what waited.
"""

import random
from collections import Counter
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from raw_mqtt import RawMqtt

from braidmq.engine.engine import Engine
from braidmq.gateways.mqtt import outbox
from braidmq.gateways.mqtt.session_records import PACKET_IDS
from braidmq.storage.disk import Disk
from braidmq.testing.faulty_disk import CutAt, FaultyDisk, LoseAll
from braidmq.testing.hosted import CommitGate, HostedNode, hosted_node
from braidmq.wire.mqtt.constants import Reason, Version
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
        topic = engine.state.topics["/", "$mqtt/session/client"]
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


def test_an_id_is_taken_while_the_client_has_to_let_go_of_it(
    node: HostedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message was purged in the middle of its exchange: another would be taken for it."""
    monkeypatch.setattr(outbox, "ID_MAX", FEW)
    with keeper(node, "device") as client:
        client.subscribe("t", qos=2)
        with RawMqtt(node) as sender:  # type: ignore[arg-type]
            sender.connect()
            assert sender.answer(sender.publish("t", b"purged", 2)) == 0
            first = client.expect(Publish)
            client.send(PubRec(first.packet_id))
            assert client.expect(PubRel).packet_id == first.packet_id
    purge(node, "$mqtt/session/device")
    with keeper(node, "device") as client, RawMqtt(node) as sender:  # type: ignore[arg-type]
        assert client.expect(PubRel).packet_id == first.packet_id
        sender.connect()
        for number in range(FEW + 3):
            assert sender.answer(sender.publish("t", b"%d" % number, 1)) == 0
        for number in range(FEW - 1):
            got = client.expect(Publish)
            assert (got.payload, got.packet_id != first.packet_id) == (b"%d" % number, True)
            client.send(PubAck(got.packet_id))
        assert client.ping() == []
        client.send(PubComp(first.packet_id))
        for number in range(FEW - 1, FEW + 3):
            got = client.expect(Publish)
            assert got.payload == b"%d" % number
            client.send(PubAck(got.packet_id))


def purge(node: HostedNode, queue: str) -> None:
    with httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=20) as admin:
        admin.post(f"/v1/topics/{quote(queue, safe='')}/purge").raise_for_status()


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


# --- what a client may hold ---


def hold_one(node: HostedNode, version: int) -> int:
    """The id of a message that a device has got at QoS 2, and not answered for when it went."""
    with keeper(node, "device", version) as client, RawMqtt(node) as sender:  # type: ignore[arg-type]
        client.subscribe("t", qos=2)
        sender.connect()
        assert sender.answer(sender.publish("t", b"held", 2)) == 0
        return client.expect(Publish).packet_id


def go_round(client: RawMqtt, node: HostedNode) -> None:
    """A message for every id, and none of them is taken for one that the client has."""
    with RawMqtt(node) as sender:  # type: ignore[arg-type]
        sender.connect()
        for number in range(2 * FEW):
            assert sender.answer(sender.publish("t", b"%d" % number, 2)) == 0
            assert client.message().payload == b"%d" % number


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("how", ["purge", "delete"])
def test_an_id_is_taken_while_the_client_may_hold_it(
    disk: CommitGate, monkeypatch: pytest.MonkeyPatch, version: int, crashes: bool, how: str
) -> None:
    """Its message was taken away before the client had answered at all."""
    monkeypatch.setattr(outbox, "ID_MAX", FEW)
    with hosted_node(disk) as node:
        packet_id = hold_one(node, version)
        if how == "purge":
            purge(node, "$mqtt/session/device")
        else:
            delete(node, "$mqtt/session/device")
        if not crashes:
            release_and_go_round(node, version, packet_id)
    if crashes:
        with hosted_node(disk.crash(LoseAll())) as node:
            release_and_go_round(node, version, packet_id)


def release_and_go_round(node: HostedNode, version: int, packet_id: int) -> None:
    with keeper(node, "device", version) as client:
        assert client.expect(PubRel).packet_id == packet_id
        client.send(PubComp(packet_id))
        go_round(client, node)


def delete(node: HostedNode, queue: str) -> None:
    with httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=20) as admin:
        admin.delete(f"/v1/topics/{quote(queue, safe='')}").raise_for_status()


def test_what_went_out_just_before_a_crash_is_held_too(
    disk: CommitGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it did is not on disk: to the next node it is a message like any other."""
    monkeypatch.setattr(outbox, "ID_MAX", FEW)
    one_at_a_time = Properties(session_expiry_interval=600, receive_maximum=1)
    with (
        hosted_node(disk) as node,
        RawMqtt(node) as client,  # type: ignore[arg-type]
        RawMqtt(node) as sender,  # type: ignore[arg-type]
    ):
        client.connect("device", clean_start=False, properties=one_at_a_time)
        client.subscribe("t", qos=2)
        sender.connect()
        for qos in (1, 2):
            assert sender.answer(sender.publish("t", b"%d" % qos, qos)) == 0
        first = client.expect(Publish)
        disk.shut()
        client.send(PubAck(first.packet_id))
        second = client.expect(Publish)
        assert second.qos == 2
        crashed = disk.crash(LoseAll())
    with hosted_node(crashed) as node:
        purge(node, "$mqtt/session/device")
        with keeper(node, "device") as client:
            released = 0
            while released != second.packet_id:  # what came of PUBACK is not known either
                released = client.expect(PubRel).packet_id
                client.send(PubComp(released))
            go_round(client, node)


@pytest.mark.parametrize("crashes", [False, True])
def test_what_went_out_at_qos_2_goes_on_at_that(disk: CommitGate, crashes: bool) -> None:
    """At QoS 1 the client would take it for another message, and keep its id for ever."""
    with hosted_node(disk) as node:
        packet_id = hold_one(node, Version.V5)
        with keeper(node, "device") as client:
            assert client.expect(Publish).packet_id == packet_id
            assert client.subscribe("t", qos=1) == (1,)
        crashed = disk.crash(LoseAll())
        if not crashes:
            goes_on(node, packet_id)
    if crashes:
        with hosted_node(crashed) as node:
            goes_on(node, packet_id)


def goes_on(node: HostedNode, packet_id: int) -> None:
    with keeper(node, "device") as client, RawMqtt(node) as sender:  # type: ignore[arg-type]
        message = client.message()
        assert (message.packet_id, message.payload, message.qos) == (packet_id, b"held", 2)
        sender.connect()
        assert sender.answer(sender.publish("t", b"new", 2)) == 0
        assert client.message().qos == 1


def test_a_queue_deleted_under_its_client_ends_the_connection(node: HostedNode) -> None:
    """Its answers could be for messages of either queue."""
    with keeper(node, "device") as client, RawMqtt(node) as sender:  # type: ignore[arg-type]
        client.subscribe("t", qos=1)
        sender.connect()
        assert sender.answer(sender.publish("t", b"gone", 1)) == 0
        assert client.expect(Publish).payload == b"gone"
        delete(node, "$mqtt/session/device")
        assert client.closing() == Reason.ADMINISTRATIVE_ACTION
        assert sender.answer(sender.publish("t", b"new", 1)) == 0
        with keeper(node, "device") as client:
            assert client.message().payload == b"new"
