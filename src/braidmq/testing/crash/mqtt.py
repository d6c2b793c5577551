"""MQTT traffic: QoS 1 and 2 between kept sessions, retained messages, durable queues."""

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from braidmq.testing.crash.clients import ANSWER_S_MAX, Client, Gone, NoAnswer, World
from braidmq.testing.crash.history import (
    NOWHERE,
    LatestRead,
    Promise,
    Publisher,
    Reader,
    Strand,
    parse_body,
)
from braidmq.testing.crash.mqtt_link import MqttLink
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
    SubAck,
)
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

WINDOW = 60
PUBLISHER_IDS = 30_000
RETAINED_TOPICS = 20
RETAINED_READ_EVERY_S = 0.4
QUEUE = "lab/queue"
QUEUE_KEYS = 6
QUEUE_WINDOW = 40
FAILED = 0x80
LATE = 0x83
VERSIONS = (Version.V3_1_1, Version.V5)


def clients(world: World) -> tuple[list[Strand], list[Client]]:
    strands: list[Strand] = []
    working: list[Client] = []
    for qos in (1, 2):
        strand = Strand(f"mqtt-qos{qos}")
        strands.append(strand)
        promise = Promise(once=qos == 2, order="first")
        subscribers = [
            KeptSubscriber(
                world, strand, strand.new_reader(f"subscriber v{version}", promise), qos, version
            )
            for version in VERSIONS
        ]
        # In windows, and one at a time: single messages take a shorter way through the broker.
        for index, (version, window) in enumerate(itertools.product(VERSIONS, (WINDOW, 1))):
            strand.new_publishers(1)
            working.append(KeptPublisher(world, strand, index, qos, version, window, subscribers))
        working += subscribers

    retained = Strand("mqtt-retained")
    retained.new_publishers(RETAINED_TOPICS)
    strands.append(retained)
    working += [RetainedPublisher(world, retained), RetainedReader(world, retained)]

    queue = Strand("mqtt-queue")
    queue.new_publishers(QUEUE_KEYS)
    strands.append(queue)
    explicit = queue.new_reader("group explicit", Promise(order="first"))
    plain = queue.new_reader("group plain", Promise())
    consumers: list[QueueConsumer] = [
        ExplicitConsumer(world, queue, explicit, "explicit-1", Version.V5),
        PlainConsumer(world, queue, plain, "plain-1", Version.V3_1_1),
        PlainConsumer(world, queue, plain, "plain-2", Version.V3_1_1),
    ]
    working += consumers
    working.append(QueuePublisher(world, queue, consumers))
    return strands, working


class MqttClient(Client):
    link: MqttLink | None = None
    client_id = ""
    version: int = Version.V5

    def connect(self, *, is_kept: bool = True) -> MqttLink:
        port = self.world.ports["mqtt_port"]
        self.link = MqttLink(port, self.version, self.client_id, is_kept=is_kept)
        return self.link

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None


class Subscribing(MqttClient):
    """Something with a subscription that is there once ``is_subscribed`` is set."""

    def __init__(self, world: World, strand: Strand, name: str) -> None:
        super().__init__(world, strand, name)
        self.is_subscribed = threading.Event()


def wait_for(world: World, subscribers: "list[Subscribing]") -> bool:
    """Nobody is promised what was published before it subscribed. False if the run ended first."""
    while not all(each.is_subscribed.wait(0.05) for each in subscribers):
        if world.ended.is_set() or not world.publishing.is_set():
            return False
    return True


# --- QoS 1 and 2, sessions kept at both ends ---


class KeptSubscriber(Subscribing):
    def __init__(
        self, world: World, strand: Strand, reader: Reader, qos: int, version: int
    ) -> None:
        super().__init__(world, strand, f"subscriber v{version}")
        self.version = version
        self.client_id = f"{strand.name}-subscriber-{version}"
        self._reader = reader
        self._qos = qos
        self._held: set[int] = set()
        """Packet ids of messages that were handed on and are not released yet."""

    def work(self) -> None:
        link = self.connect()
        if not link.session_present:
            if self.is_subscribed.is_set():
                self.strand.problem(f"{self.name}: its session was lost")
            self._held.clear()
            link.subscribe(f"{self.strand.name}/#", self._qos)
        while not self.world.ended.is_set():
            answers = [answer for each in link.packets() if (answer := self._answer(each))]
            if answers:
                link.write(*answers)
            link.receive(0.1)

    def _answer(self, packet: Packet) -> Packet | None:
        if isinstance(packet, Publish):
            if packet.qos == 1:
                self._reader.arrived(self.strand.name, packet.payload, self.connection)
                return PubAck(packet.packet_id)
            if packet.packet_id not in self._held:
                self._held.add(packet.packet_id)
                self._reader.arrived(self.strand.name, packet.payload, self.connection)
            return PubRec(packet.packet_id)
        if isinstance(packet, PubRel):
            self._held.discard(packet.packet_id)
            return PubComp(packet.packet_id)
        if isinstance(packet, SubAck):
            self.is_subscribed.set()
        return None


class SessionPublisher(MqttClient):
    """Keeps what is unanswered, in order, and sends it again when it is back."""

    publishes = True

    def __init__(self, world: World, strand: Strand, name: str, qos: int) -> None:
        super().__init__(world, strand, name)
        self.qos = qos
        self._under_way: dict[int, tuple[int, int]] = {}
        """Packet id to publisher and number."""
        self._released: dict[int, None] = {}
        """Of these the broker has the message (PUBREC came) and the exchange is not complete."""
        self._last_id = 0
        self._was_answered = False

    def topic(self, publisher: int) -> str:
        return f"{self.strand.name}/{publisher}"

    def properties(self, publisher: int, number: int) -> Properties:
        return NO_PROPERTIES

    def choose(self) -> int:
        """Whose message is next."""
        return 0

    window = WINDOW

    def work(self) -> None:
        link = self.connect()
        if self._was_answered and not link.session_present:
            self.strand.problem(f"{self.name}: its session was lost")
        link.write(*(PubRel(each) for each in self._released))
        link.write(*(self._packet(each, *what, dup=True) for each, what in self._under_way.items()))
        while True:
            self.wait_for_turn(*self.strand.readers.values())
            if self.world.publishing.is_set():
                self._send_more(link)
            elif not self._under_way and not self._released:
                self.is_finished = True
                return
            if self.world.ended.is_set():
                return
            self._take_answers(link)

    def _send_more(self, link: MqttLink) -> None:
        count = self.window - len(self._under_way) - len(self._released)
        if count < max(1, self.window // 3):
            return
        packets = []
        for _ in range(count):
            publisher = self.choose()
            number = self.strand.publishers[publisher].send()
            packet_id = self._new_id()
            self._under_way[packet_id] = (publisher, number)
            packets.append(self._packet(packet_id, publisher, number))
        link.write(*packets)

    def _new_id(self) -> int:
        while True:
            self._last_id = self._last_id % PUBLISHER_IDS + 1
            if self._last_id not in self._under_way and self._last_id not in self._released:
                return self._last_id

    def _packet(self, packet_id: int, publisher: int, number: int, *, dup: bool = False) -> Publish:
        return Publish(
            self.topic(publisher),
            self.strand.body(publisher, number),
            self.qos,
            dup=dup,
            packet_id=packet_id,
            properties=self.properties(publisher, number),
        )

    def _take_answers(self, link: MqttLink) -> None:
        if not link.receive():
            raise NoAnswer(f"{len(self._under_way)} publishes are unanswered")
        answers: list[Packet] = []
        for packet in link.packets():
            if isinstance(packet, (PubAck, PubRec)):
                self._was_answered = True
                self._confirm(packet)
                if isinstance(packet, PubRec) and packet.reason < FAILED:
                    self._released[packet.packet_id] = None
                    answers.append(PubRel(packet.packet_id))
            elif isinstance(packet, PubComp):
                self._released.pop(packet.packet_id, None)
        if answers:
            link.write(*answers)

    def _confirm(self, packet: PubAck | PubRec) -> None:
        found = self._under_way.pop(packet.packet_id, None)
        if found is None:
            return  # a repeated PUBREC
        if packet.reason >= FAILED:
            self.strand.problem(f"{self.name}: refused with 0x{packet.reason:02x}")
            return
        self.strand.publishers[found[0]].confirm(found[1])


class KeptPublisher(SessionPublisher):
    def __init__(
        self,
        world: World,
        strand: Strand,
        index: int,
        qos: int,
        version: int,
        window: int,
        subscribers: list[KeptSubscriber],
    ) -> None:
        super().__init__(world, strand, f"publisher {index} v{version}", qos)
        self.version = version
        self.window = window
        self.client_id = f"{strand.name}-publisher-{index}"
        self._index = index
        self._subscribers = subscribers

    def choose(self) -> int:
        return self._index

    def work(self) -> None:
        if wait_for(self.world, list(self._subscribers)):
            super().work()
        else:
            self.is_finished = True


# --- retained messages ---


class RetainedPublisher(Client):
    """Paho, with one value of a topic under way at a time."""

    publishes = True
    gone = (OSError, ValueError, RuntimeError, *Client.gone)
    _client: paho.Client | None = None

    def __init__(self, world: World, strand: Strand) -> None:
        super().__init__(world, strand, "publisher")

    def work(self) -> None:
        client = self._client = paho.Client(CallbackAPIVersion.VERSION2)
        self._is_lost = False
        client.on_disconnect = client.on_connect_fail = self._note_loss
        client.connect("127.0.0.1", self.world.ports["mqtt_port"])
        client.loop_start()
        self._wait(client.is_connected)
        while self.world.publishing.is_set():
            self.wait_for_turn()
            self._publish_all(client)
        self.is_finished = True

    def _note_loss(self, *_: object) -> None:
        self._is_lost = True

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Paho would connect again, after a pause that doubles; the lab's lives are short."""
        deadline = time.monotonic() + ANSWER_S_MAX
        while not is_done():
            if self._is_lost:
                raise Gone
            if time.monotonic() > deadline:
                raise NoAnswer("CONNACK or PUBACKs did not come")
            time.sleep(0.002)

    def _publish_all(self, client: paho.Client) -> None:
        sent: list[tuple[Publisher, int, paho.MQTTMessageInfo]] = []
        for index, publisher in enumerate(self.strand.publishers):
            number = publisher.send()
            body = self.strand.body(index, number)
            topic = f"{self.strand.name}/{index}"
            sent.append((publisher, number, client.publish(topic, body, qos=1, retain=True)))
        for publisher, number, info in sent:
            self._wait(info.is_published)
            publisher.confirm(number)

    def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.loop_stop()
                client.disconnect()


class RetainedReader(MqttClient):
    """Comes as somebody new each time and takes what is there."""

    def __init__(self, world: World, strand: Strand) -> None:
        super().__init__(world, strand, "reader")

    def work(self) -> None:
        while not self.world.ended.is_set():
            self._read()
            self.disconnect()
            time.sleep(RETAINED_READ_EVERY_S)

    def _read(self) -> None:
        link = self.connect(is_kept=False)
        asked_ns = time.monotonic_ns()
        link.subscribe(f"{self.strand.name}/#", 0)
        link.write(PingReq())
        found: dict[int, int] = {}
        while not self._take(link, found):
            if not link.receive():
                raise NoAnswer("PINGRESP did not come")
        answered_ns = time.monotonic_ns()
        for index in range(len(self.strand.publishers)):
            read = LatestRead(index, found.get(index, NOWHERE), asked_ns, answered_ns)
            self.strand.latest.append(read)

    def _take(self, link: MqttLink, found: dict[int, int]) -> bool:
        """True once the answer to the ping is there, behind all that is retained."""
        for packet in link.packets():
            if isinstance(packet, Publish) and packet.retain:
                said = parse_body(self.strand.name, packet.payload)
                if said is None:
                    self.strand.problem(f"{self.name}: got {packet.payload[:80]!r}")
                else:
                    found[said[0]] = said[1]
            elif isinstance(packet, PingResp):
                return True
        return False


# --- durable queues ---


class QueuePublisher(SessionPublisher):
    window = QUEUE_WINDOW
    client_id = "mqtt-queue-publisher"

    def __init__(self, world: World, strand: Strand, consumers: "list[QueueConsumer]") -> None:
        super().__init__(world, strand, "publisher", 1)
        self._consumers = consumers

    def topic(self, publisher: int) -> str:
        return f"$queue/{QUEUE}"

    def choose(self) -> int:
        return self.random.randrange(QUEUE_KEYS)

    def properties(self, publisher: int, number: int) -> Properties:
        return Properties(user_properties=(("partition-key", f"key-{publisher}"),))

    def work(self) -> None:
        if wait_for(self.world, list(self._consumers)):
            super().work()
        else:
            self.is_finished = True


class QueueConsumer(Subscribing):
    def __init__(
        self, world: World, strand: Strand, reader: Reader, client_id: str, version: int
    ) -> None:
        super().__init__(world, strand, f"consumer {client_id}")
        self.reader = reader
        self.client_id = client_id
        self.version = version

    def work(self) -> None:
        link = self.connect(is_kept=False)
        link.subscribe(f"$queue/{QUEUE}", 1)
        while not self.world.ended.is_set():
            answers: list[Packet] = []
            for packet in link.packets():
                if isinstance(packet, Publish):
                    answers += self.answers(packet)
                elif isinstance(packet, SubAck):
                    self.is_subscribed.set()
                elif isinstance(packet, PubAck):
                    self.answered(packet)
            if answers:
                link.write(*answers)
            link.receive(0.1)

    def answers(self, message: Publish) -> list[Packet]:
        raise NotImplementedError

    def answered(self, packet: PubAck) -> None: ...


class PlainConsumer(QueueConsumer):
    """3.1.1: PUBACK acknowledges."""

    def answers(self, message: Publish) -> list[Packet]:
        self.reader.arrived(self.strand.name, message.payload, self.connection)
        return [PubAck(message.packet_id)]


class ExplicitConsumer(QueueConsumer):
    """Acknowledges by message id, at QoS 1: the answer says that the acknowledgement is on disk."""

    def __init__(
        self, world: World, strand: Strand, reader: Reader, client_id: str, version: int
    ) -> None:
        super().__init__(world, strand, reader, client_id, version)
        self._unanswered: dict[int, tuple[int, int]] = {}
        self._last_id = 0

    def work(self) -> None:
        self._unanswered.clear()
        super().work()

    def answers(self, message: Publish) -> list[Packet]:
        found = self.reader.arrived(self.strand.name, message.payload, self.connection)
        said = dict(message.properties.user_properties)
        self._last_id = self._last_id % PUBLISHER_IDS + 1
        if found is not None:
            self._unanswered[self._last_id] = found
        about = Properties(user_properties=(("message-id", said["message-id"]),))
        ack = Publish(f"$queue/{QUEUE}/$ack", b"", 1, packet_id=self._last_id, properties=about)
        return [PubAck(message.packet_id), ack]

    def answered(self, packet: PubAck) -> None:
        found = self._unanswered.pop(packet.packet_id, None)
        if found is None:
            return
        if packet.reason >= FAILED:
            if packet.reason != LATE:
                self.strand.problem(f"{self.name}: $ack refused with 0x{packet.reason:02x}")
            return
        self.reader.settle(*found)
        self.strand.other_operations += 1
