"""QoS 2 through ``kill -9``: clients that keep their part of every exchange, and a node that is
killed again and again, at moments drawn at random and at moments aimed at.

Publishers and subscribers do what MQTT wants of them and nothing else: a packet id is in use until
PUBCOMP, a message with an id that was not released is the same message, PUBREC and PUBCOMP follow
the order of what they answer. What they know outlives the connections, as a device's flash would.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
    decode,
    encode,
)
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties
from braidmq.wire.mqtt.text import Reader

CONFIG = "[storage]\njournal_file_bytes = 262144\n"
"""Small files: checkpoints and new files happen all the time, and are killed too."""
TOPIC = "exactly/once"
WINDOW = 25
PACKET_IDS = 120
"""Few, so that each is used again soon after its exchange."""
ERROR = 0x80
AWAY = 0.25
"""How often a client misses a whole life of the node."""
BREAKS = 0.3
"""How often a subscriber's connection breaks before the node is killed."""
LIFE_S_MAX = 20.0
SILENCE_S_MAX = 30.0

AIMS = ("time", "pubrec", "pubcomp", "publish", "pubrel", "answered", "file")
"""When the node is killed: after a time; as a publisher has got one of these; as a subscriber has,
or has just answered; as a file is made or goes."""


class Ended(Exception):
    """The connection is over."""


@dataclass
class Life:
    """From one start of the node to its kill."""

    node: LiveNode
    data: Path
    aim: str
    countdown: int
    killed: bool = False

    def happened(self, what: str) -> None:
        if what == self.aim:
            self.countdown -= 1
            if self.countdown <= 0:
                self.kill()

    def kill(self) -> None:
        if not self.killed:
            self.killed = True
            self.node.process.kill()


class Peer:
    """One client with one connection at a time."""

    def __init__(self, name: str, version: int, source: random.Random) -> None:
        self.name = name
        self.version = version
        self.source = source
        self.faults: list[str] = []
        self._knows_session = False

    async def _open(self, life: Life) -> None:
        try:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", life.node.ports["mqtt_port"]
            )
        except OSError:
            raise Ended from None
        self._input = bytearray()
        kept = Properties(session_expiry_interval=3600)
        properties = kept if self.version == Version.V5 else NO_PROPERTIES
        self._send(Connect(self.version, self.name, clean_start=False, properties=properties))
        answer = await self._packet()
        assert isinstance(answer, ConnAck), answer
        if self._knows_session and not answer.session_present:
            self.faults.append(f"{self.name}: its session is gone")
        self._knows_session = True

    def _close(self) -> None:
        self._writer.transport.abort()

    def _send(self, *packets: Packet) -> None:
        if self._writer.transport.is_closing():
            raise Ended
        self._writer.write(b"".join([encode(each, self.version) for each in packets]))

    async def _packet(self) -> Packet:
        while (found := self._parse()) is None:
            try:
                data = await self._reader.read(1 << 16)
            except OSError:
                raise Ended from None
            if not data:
                raise Ended
            self._input += data
        return found

    def _parse(self) -> Packet | None:
        data = self._input
        for size in range(2, min(len(data), 5) + 1):
            if data[size - 1] < 0x80:
                length = Reader(bytes(data[:size]), 1).variable()
                if len(data) < size + length:
                    return None
                body = bytes(data[size : size + length])
                head = data[0]
                del data[: size + length]
                return decode(self.version, head >> 4, head & 15, body)
        return None


class Publisher(Peer):
    def __init__(self, number: int, version: int, source: random.Random) -> None:
        super().__init__(f"publisher-{number}", version, source)
        self.number = number
        self.begun = 0
        self.completed = 0
        self.limit = 0
        self._open_ids: dict[int, bytes] = {}
        self._received: set[int] = set()
        self._next_id = 0

    @property
    def is_done(self) -> bool:
        return not self._open_ids

    async def live(self, life: Life) -> None:
        """Until the connection ends, or nothing is left to do."""
        try:
            await self._open(life)
            for packet_id, payload in self._open_ids.items():
                if packet_id in self._received:
                    self._send(PubRel(packet_id))
                else:
                    self._send(Publish(TOPIC, payload, 2, packet_id=packet_id, dup=True))
            self._publish()
            while self._open_ids:
                self._take(await self._packet(), life)
                self._publish()
        except Ended:
            pass
        finally:
            if hasattr(self, "_writer"):
                self._close()

    def _publish(self) -> None:
        packets: list[Packet] = []
        while len(self._open_ids) < WINDOW and self.begun < self.limit:
            self._next_id = self._next_id % PACKET_IDS + 1
            if self._next_id in self._open_ids:
                break
            rest = self.source.randbytes(self.source.randrange(0, 400))
            payload = b"%d %d %s" % (self.number, self.begun, rest)
            self.begun += 1
            self._open_ids[self._next_id] = payload
            packets.append(Publish(TOPIC, payload, 2, packet_id=self._next_id))
        if packets:
            self._send(*packets)

    def _take(self, packet: Packet, life: Life) -> None:
        if isinstance(packet, PubRec):
            if packet.reason:
                self.faults.append(f"{self.name}: PUBREC with {packet.reason:#x}")
            if packet.packet_id not in self._open_ids:
                self.faults.append(f"{self.name}: PUBREC for {packet.packet_id}, which is free")
            life.happened("pubrec")
            self._received.add(packet.packet_id)
            self._send(PubRel(packet.packet_id))
        else:
            assert isinstance(packet, PubComp), packet
            if self._open_ids.pop(packet.packet_id, None) is None:
                self.faults.append(f"{self.name}: PUBCOMP for {packet.packet_id}, which is free")
            self._received.discard(packet.packet_id)
            self.completed += 1
            life.happened("pubcomp")


class Subscriber(Peer):
    def __init__(self, number: int, version: int, source: random.Random) -> None:
        super().__init__(f"subscriber-{number}", version, source)
        self.got: Counter[tuple[int, int]] = Counter()
        self.last: dict[int, int] = {}
        self.reordered = 0
        self.held: set[int] = set()
        self.is_subscribed = False

    async def live(self, life: Life, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Until the node is gone, or ``is_enough``; its own connection may break before."""
        while not life.killed and not is_enough():
            breaks_after = self.source.randrange(20, 400) if self.source.random() < BREAKS else -1
            try:
                await self._open(life)
                if not self.is_subscribed:
                    self._send(Subscribe(1, (Request("exactly/#", 2),)))
                    assert isinstance(await self._packet(), SubAck)
                    self.is_subscribed = True
                await self._receive(life, breaks_after, is_enough)
            except Ended:
                if life.node.process.poll() is not None:
                    return
            finally:
                if hasattr(self, "_writer"):
                    self._close()
            # The kernel may take a connection of a process that is on its way out.
            await asyncio.sleep(0)

    async def _receive(self, life: Life, left: int, is_enough: Callable[[], bool]) -> None:
        owed: list[Packet] = []
        while left and not is_enough():
            # Some answers wait for others: kills find exchanges at every stage.
            if owed and (len(owed) >= 20 or not self._input or self.source.random() < 0.2):
                self._send(*owed)
                owed.clear()
                life.happened("answered")
            try:
                packet = await asyncio.wait_for(self._packet(), 0.05)
            except TimeoutError:
                continue
            owed.append(self._answer(packet, life))
            left -= 1
        if left:
            self._send(*owed)

    def _answer(self, packet: Packet, life: Life) -> Packet:
        if isinstance(packet, PubRel):
            life.happened("pubrel")
            self.held.discard(packet.packet_id)
            return PubComp(packet.packet_id)
        assert isinstance(packet, Publish), packet
        assert packet.qos == 2
        life.happened("publish")
        if packet.packet_id not in self.held:
            self.held.add(packet.packet_id)
            self._note(packet.payload)
        return PubRec(packet.packet_id)

    def _note(self, payload: bytes) -> None:
        publisher, sequence = (int(each) for each in payload.split(b" ", 2)[:2])
        self.got[publisher, sequence] += 1
        if sequence < self.last.get(publisher, -1):
            self.reordered += 1
        self.last[publisher] = max(sequence, self.last.get(publisher, -1))


@dataclass
class Outcome:
    kills: int = 0
    exchanges: int = 0
    lost: int = 0
    twice: int = 0
    reordered: int = 0
    aims: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.twice or self.reordered or self.faults)


class Lab:
    """One data directory, its clients, and as many lives of a node as are wanted."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        publishers: int = 4,
        subscribers: int = 2,
        python: str = sys.executable,
    ) -> None:
        self._data = directory / "data"
        self._config = directory / "braid.toml"
        self._config.write_text(CONFIG)
        self._source = random.Random(seed)
        self._python = python
        versions = (Version.V3_1_1, Version.V5)
        self.publishers = [
            Publisher(number, versions[number % 2], random.Random(f"{seed} p{number}"))
            for number in range(publishers)
        ]
        self.subscribers = [
            Subscriber(number, versions[number % 2], random.Random(f"{seed} s{number}"))
            for number in range(subscribers)
        ]
        self.outcome = Outcome()

    def _node(self) -> AbstractContextManager[LiveNode]:
        return live_node(self._data, self._python, amqp_port=0, ws_port=0, config=self._config)

    def kill_after(self, exchanges: int) -> None:
        """One life, in which about so many exchanges are begun."""
        aim = self._source.choice(AIMS)
        with self._node() as node:
            life = Life(node, self._data, aim, self._source.randrange(1, max(exchanges, 2)))
            present = [each for each in self.publishers if self._source.random() > AWAY]
            present = present or self.publishers[:1]
            for publisher in present:
                publisher.limit = publisher.begun + exchanges
            asyncio.run(self._live(life, present))
            node.kill()
        self.outcome.kills += 1
        self.outcome.aims[aim] += 1

    async def _live(self, life: Life, publishers: list[Publisher]) -> None:
        first = self.outcome.kills == 0
        present = [each for each in self.subscribers if first or self._source.random() > AWAY]
        present = present or self.subscribers[:1]
        receiving = [asyncio.create_task(each.live(life)) for each in present]
        while first and not all(each.is_subscribed for each in self.subscribers):
            await asyncio.sleep(0.01)
        publishing = [asyncio.create_task(each.live(life)) for each in publishers]
        aiming = asyncio.create_task(self._aim(life))
        # All is done before the moment came: then this is the moment.
        await asyncio.wait(publishing, timeout=LIFE_S_MAX)
        if life.aim in ("publish", "pubrel", "answered"):
            await asyncio.wait(receiving, timeout=self._source.random() * 0.2)
        life.kill()
        await asyncio.gather(aiming, *publishing, *receiving)

    async def _aim(self, life: Life) -> None:
        if life.aim == "time":
            await asyncio.sleep(self._source.random() * 0.4)
            life.kill()
        files = _files(life.data)
        while not life.killed:
            await asyncio.sleep(0.0005)
            if life.aim == "file" and _files(life.data) != files:
                life.kill()

    def finish(self) -> Outcome:
        """A last life, without a kill: every exchange comes to its end."""
        with self._node() as node:
            life = Life(node, self._data, "", 0)
            asyncio.run(self._finish(life))
            self.outcome.faults += node.complaints
        outcome = self.outcome
        outcome.exchanges = sum(each.completed for each in self.publishers)
        for each in (*self.publishers, *self.subscribers):
            outcome.faults += each.faults
        for publisher in self.publishers:
            if not publisher.is_done:
                outcome.faults.append(f"{publisher.name}: some of its exchanges have no end")
        for subscriber in self.subscribers:
            wanted = {(each.number, n) for each in self.publishers for n in range(each.begun)}
            outcome.lost += len(wanted - subscriber.got.keys())
            outcome.twice += sum(times - 1 for times in subscriber.got.values())
            outcome.reordered += subscriber.reordered
        return outcome

    async def _finish(self, life: Life) -> None:
        for each in self.publishers:
            each.limit = each.begun + 1  # behind all that was there
        receiving = [
            asyncio.create_task(each.live(life, self._has_all(each))) for each in self.subscribers
        ]
        publishing = [asyncio.create_task(each.live(life)) for each in self.publishers]
        await asyncio.wait([*publishing, *receiving], timeout=SILENCE_S_MAX)
        life.kill()
        await asyncio.gather(*publishing, *receiving)

    def _has_all(self, subscriber: Subscriber) -> Callable[[], bool]:
        """Nothing comes behind the last of each publisher, but for what comes twice: a little more
        time for that."""
        deadline = 0.0

        def is_enough() -> bool:
            nonlocal deadline
            if any(
                subscriber.last.get(each.number, -1) < each.begun - 1 for each in self.publishers
            ):
                return False
            deadline = deadline or time.monotonic() + 0.3
            return time.monotonic() > deadline and not subscriber.held

        return is_enough


def _files(data: Path) -> list[Path]:
    return sorted(data.glob("*/*"))
