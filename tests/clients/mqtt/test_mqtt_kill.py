"""What was acknowledged survives ``kill -9`` and restarts; QoS 2 is exactly once through them."""

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from raw_mqtt import Gone, RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from braidmq.wire.mqtt.properties import Properties

KEPT = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}


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


@pytest.mark.crash
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_acknowledged_is_lost_by_kills_under_load(tmp_path: Path, qos: int) -> None:
    """A publisher and a subscriber that resume their sessions, and a node that is killed."""
    rounds, got = 4, Counter[bytes]()
    held: set[int] = set()
    publisher = ResumingPublisher(qos)
    for index in range(rounds):
        with live_node(tmp_path) as node:
            if index == 0:
                with RawMqtt(node) as client:
                    client.connect("subscriber", **KEPT)
                    client.subscribe("load", qos=qos)
            reader = threading.Thread(target=read_until_gone, args=(node, got, held))
            reader.start()
            publisher.run(node, enough=300, then=node.process.kill)
            node.kill()
            reader.join()
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        publisher.run(node, enough=50)
        assert len(publisher.acknowledged) >= rounds * 300 + 50
        client.connect("subscriber", **KEPT)
        read(client, got, held, until=publisher.last)
    missing = publisher.acknowledged - got.keys()
    assert not missing
    if qos == 2:
        twice = {payload for payload, times in got.items() if times > 1}
        assert not twice


class ResumingPublisher:
    """Sends numbers in order, a window at a time, and again what was not answered."""

    WINDOW = 20

    def __init__(self, qos: int) -> None:
        self.qos = qos
        self.acknowledged: set[bytes] = set()
        self.last = b""
        self._numbers = itertools.count()
        self._ids = itertools.cycle(range(1, 60_000))
        self._open: dict[int, bytes] = {}
        self._recorded: set[int] = set()

    def run(self, node: LiveNode, enough: int, then: Callable[[], None] | None = None) -> None:
        """``then`` is called when that many are acknowledged and others are under way."""
        with contextlib.suppress(Gone), RawMqtt(node) as client:
            client.connect("publisher", **KEPT)
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
        return Publish("load", payload, self.qos, packet_id=number, dup=dup)

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


def read_until_gone(node: LiveNode, got: Counter[bytes], held: set[int]) -> None:
    with contextlib.suppress(Gone), RawMqtt(node) as client:
        client.connect("subscriber", **KEPT)
        read(client, got, held, until=None)


def read(client: RawMqtt, got: Counter[bytes], held: set[int], until: bytes | None) -> None:
    """As a client must: QoS 2 is delivered when its packet id is new, until PUBREL frees it."""
    while until is None or until not in got:
        packet = client.packet()
        if isinstance(packet, Publish):
            if packet.qos == 1 or packet.packet_id not in held:
                got[packet.payload] += 1
            if packet.qos == 1:
                client.send(PubAck(packet.packet_id))
            else:
                held.add(packet.packet_id)
                client.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            held.discard(packet.packet_id)
            client.send(PubComp(packet.packet_id))
