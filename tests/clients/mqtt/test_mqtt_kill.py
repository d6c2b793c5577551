"""What was acknowledged survives ``kill -9`` and restarts; QoS 2 is exactly once through them."""

import contextlib
import itertools
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from raw_mqtt import Gone, RawMqtt

from braidmq.storage import snapshot
from braidmq.storage.disk import RealDisk
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from braidmq.wire.mqtt.properties import Properties

SMALL_FILES = "[storage]\njournal_file_bytes = 262144\n"
"""So that a hundred messages of 4 KiB make the node take checkpoints."""

KEPT = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}

versions = pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])


@pytest.mark.crash
def test_a_session_with_all_it_knows_survives_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as sender:
        client.connect("keeper", will=Will("will", b"crashed", 1), **KEPT)
        client.subscribe("t/#", qos=2)
        sender.connect("sender", **KEPT)
        for number in range(3):
            assert sender.answer(sender.publish(f"t/{number}", b"%d" % number, 2)) == 0
        assert sender.answer(sender.publish("kept", b"retained", 1, retain=True)) == 0x10
        unreleased = sender.publish("t/3", b"3", 2)
        assert sender.expect(PubRec).packet_id == unreleased.packet_id
        messages = [client.expect(Publish) for _ in range(4)]
        client.send(PubRec(messages[0].packet_id), PubRec(messages[1].packet_id))
        client.expect(PubRel)
        client.expect(PubRel)
        client.send(PubComp(messages[0].packet_id))
        assert client.ping() == []
        node.kill()
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as sender:
        assert client.connect("keeper", **KEPT).session_present
        client.send(PubRec(0xFFFF))
        got = [client.packet() for _ in range(4)]
        released = [each.packet_id for each in got if isinstance(each, PubRel)]
        again = [each for each in got if isinstance(each, Publish)]
        # The end of the first exchange need not have reached the disk; then it is asked for again.
        assert messages[1].packet_id in released
        assert [each.payload for each in again] == [b"2", b"3"][: len(again)]
        assert [each.packet_id for each in again] == [
            each.packet_id for each in messages[2:][: len(again)]
        ]
        assert sender.connect("sender", **KEPT).session_present
        sender.send(Publish("t/3", b"3", 2, dup=True, packet_id=unreleased.packet_id))
        assert sender.answer(unreleased) == 0
        sender.subscribe("kept")
        assert sender.message().payload == b"retained"


@pytest.mark.crash
def test_wills_of_who_was_connected_are_published_after_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as watcher:
        watcher.connect("watcher", **KEPT)
        watcher.subscribe("will", qos=1)
        client.connect("client", will=Will("will", b"crashed", 1), **KEPT)
        node.kill()
    with live_node(tmp_path) as node, RawMqtt(node) as watcher:
        watcher.connect("watcher", **KEPT)
        assert watcher.message().payload == b"crashed"


@versions
@pytest.mark.crash
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_comes_again_in_order_after_a_kill(
    tmp_path: Path, version: int, qos: int
) -> None:
    """With DUP and the packet id it had; what the client has confirmed does not come."""
    with live_node(tmp_path) as node, RawMqtt(node, version) as client, RawMqtt(node) as sender:
        client.connect("keeper", **kept(version))
        client.subscribe("t", qos=2)
        sender.connect()
        for number in range(6):
            assert sender.answer(sender.publish("t", b"%d" % number, qos)) == 0
        sent = [client.expect(Publish) for _ in range(6)]
        confirm(client, sent[2])
        assert client.ping() == []
        # Answered when it is on disk, and all that was written down before it.
        assert sender.answer(sender.publish("t", b"6", qos)) == 0
        sent.append(client.expect(Publish))
        node.kill()
    with live_node(tmp_path) as node, RawMqtt(node, version) as client:
        assert client.connect("keeper", **kept(version)).session_present
        again = [client.expect(Publish) for _ in range(6)]
        expected = sent[:2] + sent[3:]
        assert [each.payload for each in again] == [b"0", b"1", b"3", b"4", b"5", b"6"]
        assert [each.packet_id for each in again] == [each.packet_id for each in expected]
        # That the last one went out need not have been written down.
        assert all(each.dup for each in again[:5])
        for each in again:
            confirm(client, each)
        assert client.ping() == []


@pytest.mark.crash
def test_what_was_sent_does_not_expire_over_a_kill(tmp_path: Path) -> None:
    """MQTT-4.3.3-7: the client may hold its packet id. What was never sent does expire."""
    lives_s = 1
    short = Properties(message_expiry_interval=lives_s)
    two = {**KEPT, "properties": Properties(session_expiry_interval=3600, receive_maximum=2)}
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as sender:
        client.connect("keeper", **two)
        client.subscribe("t", qos=2)
        sender.connect()
        for number in range(3):
            sent = sender.publish("t", b"%d" % number, 2, properties=short)
            assert sender.answer(sent) == 0
        gone_at = time.time() + lives_s
        first = [client.expect(Publish) for _ in range(2)]
        # On disk with what was written down before it.
        assert sender.answer(sender.publish("t", b"lasts", 2)) == 0
        node.kill()
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        while time.time() <= gone_at:
            time.sleep(0.05)
        assert client.connect("keeper", **two).session_present
        again = [client.expect(Publish) for _ in range(2)]
        assert [(each.payload, each.packet_id, each.dup) for each in again] == [
            (each.payload, each.packet_id, True) for each in first
        ]
        # The third expired, and may have gone out just before the kill: nobody knows. So its id is
        # given back first, in the same way as if it had.
        gone = client.expect(PubRel).packet_id
        assert gone == first[-1].packet_id + 1
        client.send(PubComp(gone))
        confirm(client, again[0])
        assert client.expect(Publish).payload == b"lasts"


def confirm(client: RawMqtt, message: Publish) -> None:
    """All that a subscriber has to answer."""
    if message.qos == 1:
        client.send(PubAck(message.packet_id))
        return
    client.send(PubRec(message.packet_id))
    assert client.expect(PubRel).packet_id == message.packet_id
    client.send(PubComp(message.packet_id))


def test_a_stop_tells_clients_and_loses_nothing(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as sender:
        client.connect("keeper", **KEPT)
        client.subscribe("t", qos=1)
        client.send(Disconnect())
        client.expect_end()
        sender.connect()
        assert sender.answer(sender.publish("t", b"waits", 1)) == 0
        stopping = threading.Thread(target=node.stop)
        stopping.start()
        assert sender.closing() == Reason.SERVER_SHUTTING_DOWN
        sender.sock.close()
        stopping.join()
        assert node.lines[-1] == "stopped"
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        assert client.connect("keeper", **KEPT).session_present
        assert client.message().payload == b"waits"


@versions
@pytest.mark.crash
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_acknowledged_is_lost_by_kills_under_load(
    tmp_path: Path, version: int, qos: int
) -> None:
    """A publisher and a subscriber that resume their sessions, and a node that is killed."""
    rounds = 3
    publisher = ResumingPublisher("load", version, qos)
    subscriber = ResumingSubscriber("load", version, qos)
    for index in range(rounds):
        with live_node(tmp_path) as node:
            if index == 0:
                subscriber.subscribe(node)
            reader = threading.Thread(target=subscriber.run, args=(RawMqtt(node, version),))
            reader.start()
            publisher.run(RawMqtt(node, version), enough=300, then=node.process.kill)
            node.kill()
            reader.join()
    with live_node(tmp_path) as node:
        publisher.run(RawMqtt(node, version), enough=50)
        assert len(publisher.acknowledged) >= rounds * 300 + 50
        subscriber.run(RawMqtt(node, version), until=publisher.last)
    subscriber.compare(publisher)


@versions
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_acknowledged_is_lost_by_disconnects(
    node: LiveNode, name: str, version: int, qos: int
) -> None:
    """Both connections break all the time, often in the middle of a packet."""
    source = random.Random(qos)
    publisher = ResumingPublisher(name, version, qos)
    subscriber = ResumingSubscriber(name, version, qos)
    subscriber.subscribe(node)
    over = threading.Event()

    def subscribing() -> None:
        lives = random.Random(version)
        while not over.is_set():
            subscriber.run(BreakingMqtt(node, version, lives.randrange(1, 60)))

    reader = threading.Thread(target=subscribing)
    reader.start()
    while len(publisher.acknowledged) < 600:
        publisher.run(BreakingMqtt(node, version, source.randrange(1, 80)), enough=600)
    over.set()
    publisher.run(RawMqtt(node, version), enough=1)
    subscriber.take_over(node)  # from the reader, wherever it is
    reader.join()
    subscriber.run(RawMqtt(node, version), until=publisher.last)
    subscriber.compare(publisher)


class BreakingMqtt(RawMqtt):
    """Its connection is reset after some packets, and half a packet is the last that was sent."""

    def __init__(self, node: LiveNode, version: int, packets: int) -> None:
        super().__init__(node, version)
        self._left = packets

    def packet(self) -> Packet:
        if not self._left:
            with contextlib.suppress(OSError):
                self.sock.send(b"\x34\x20\x00\x04load")
            linger = struct.pack("ii", 1, 0)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            raise Gone
        self._left -= 1
        return super().packet()


def kept(version: int) -> dict[str, object]:
    return KEPT if version == Version.V5 else {"clean_start": False}


class ResumingPublisher:
    """Sends numbers in order, a window at a time, and again what was not answered."""

    WINDOW = 20

    def __init__(self, name: str, version: int, qos: int) -> None:
        self.name = name
        self.version = version
        self.qos = qos
        self.acknowledged: set[bytes] = set()
        self.last = b""
        self._numbers = itertools.count()
        self._ids = itertools.cycle(range(1, 60_000))
        self._open: dict[int, bytes] = {}
        self._recorded: set[int] = set()

    def run(self, client: RawMqtt, enough: int, then: Callable[[], None] | None = None) -> None:
        """``then`` is called when that many are acknowledged and others are under way."""
        with contextlib.suppress(Gone), client:
            client.connect(f"{self.name}-publisher", **kept(self.version))
            for number, payload in self._open.items():
                if number in self._recorded:
                    client.send(PubRel(number))
                else:
                    client.send(self._packet(number, payload, dup=True))
            target = len(self.acknowledged) + enough
            while len(self.acknowledged) < target:
                while len(self._open) < self.WINDOW:
                    number, payload = next(self._ids), b"%d" % next(self._numbers)
                    self._open[number] = payload
                    client.send(self._packet(number, payload))
                self._take(client)
            if then is not None:
                then()
            while self._open:
                self._take(client)

    def _packet(self, number: int, payload: bytes, dup: bool = False) -> Publish:
        return Publish(self.name, payload, self.qos, packet_id=number, dup=dup)

    def _take(self, client: RawMqtt) -> None:
        packet = client.packet()
        if isinstance(packet, PubRec):
            self._recorded.add(packet.packet_id)
            client.send(PubRel(packet.packet_id))
        else:
            assert isinstance(packet, PubAck | PubComp)
            self.last = self._open.pop(packet.packet_id)
            self._recorded.discard(packet.packet_id)
            self.acknowledged.add(self.last)


class ResumingSubscriber:
    """As a client must: QoS 2 is delivered when its packet id is new, until PUBREL frees it."""

    def __init__(self, name: str, version: int, qos: int) -> None:
        self.name = name
        self.version = version
        self.qos = qos
        self.got: Counter[bytes] = Counter()
        self._held: set[int] = set()

    def subscribe(self, node: LiveNode) -> None:
        with RawMqtt(node, self.version) as client:
            client.connect(f"{self.name}-subscriber", **kept(self.version))
            client.subscribe(self.name, qos=self.qos)

    def take_over(self, node: LiveNode) -> None:
        with RawMqtt(node, self.version) as client:
            client.connect(f"{self.name}-subscriber", **kept(self.version))

    def run(self, client: RawMqtt, until: bytes | None = None) -> None:
        """To the end of the connection, or to one message."""
        with contextlib.suppress(Gone), client:
            client.connect(f"{self.name}-subscriber", **kept(self.version))
            while until is None or until not in self.got:
                self._take(client)

    def _take(self, client: RawMqtt) -> None:
        packet = client.packet()
        if isinstance(packet, Publish):
            if packet.qos == 1 or packet.packet_id not in self._held:
                self.got[packet.payload] += 1
            if packet.qos == 1:
                client.send(PubAck(packet.packet_id))
            else:
                self._held.add(packet.packet_id)
                client.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            self._held.discard(packet.packet_id)
            client.send(PubComp(packet.packet_id))

    def compare(self, publisher: ResumingPublisher) -> None:
        assert not publisher.acknowledged - self.got.keys()
        if self.qos == 2:
            assert not {payload for payload, times in self.got.items() if times > 1}


@pytest.mark.crash
def test_a_body_is_stored_once_however_many_sessions_wait_for_it(tmp_path: Path) -> None:
    """Also once their messages are in segments; and after a kill all get all."""
    config, data = tmp_path / "braid.toml", tmp_path / "data"
    config.write_text(SMALL_FILES)
    rng = random.Random(8)
    names = [f"away-{n}" for n in range(12)]
    bodies = [rng.randbytes(4096) for _ in range(100)]
    with live_node(data, config=config) as node, RawMqtt(node) as sender:
        for name in names:
            with RawMqtt(node) as client:
                client.connect(name, **KEPT)
                client.subscribe("news/#", qos=1)
                client.send(Disconnect(properties=KEPT["properties"]))
        sender.connect("sender", **KEPT)
        for body in bodies:
            assert sender.answer(sender.publish("news/of/the/day", body, 1)) == 0
        wait_for_shared_bodies(data)
        node.kill()
    stored = b"".join(path.read_bytes() for path in (data / "segments").iterdir())
    counts = [stored.count(body) for body in bodies]
    assert set(counts) <= {0, 1}
    assert sum(counts) > 40
    with live_node(data, config=config) as node:
        for name in names:
            with RawMqtt(node) as client:
                assert client.connect(name, **KEPT).session_present
                got = []
                while len(got) < len(bodies):
                    message = client.expect(Publish)
                    got.append(message.payload)
                    client.send(PubAck(message.packet_id))
                assert got == bodies


def wait_for_shared_bodies(data: Path) -> None:
    """A checkpoint is done once a snapshot says so."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        newest = snapshot.load_newest(RealDisk(data), [])
        if newest and any(each.bodies for log in newest.state.partitions for each in log.segments):
            return
        time.sleep(0.02)
    raise AssertionError("no checkpoint has shared a body")
