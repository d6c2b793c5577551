"""``kill -9`` under load, again and again: what was promised is kept.

The publisher knows what was confirmed. The consumer learns what is safely acknowledged by
publishing a marker behind its acks: there is one journal, so the marker's confirm says that
everything before it is on disk as well.
"""

import random
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from paho.mqtt import publish
from paho.mqtt.client import MQTTv311
from raw_client import Gone, RawClient, content_frames

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m

KILLS = 20
WINDOW = 300
PREFETCH = 300
HELD_MAX = 100
"""Messages the consumer never answers, in each life of the node."""

WORK, MARKS = "work", "marks"
WAIT_S = 30


@dataclass
class Ledger:
    """What the clients were told, over all lives of the node."""

    sent: int = 0
    confirmed: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    delivered_safely: set[int] = field(default_factory=set)
    """Received before a marker that was confirmed: the broker must know that it delivered them."""
    acked: set[int] = field(default_factory=set)
    acked_safely: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def received(self, number: int, redelivered: bool) -> None:
        if number in self.acked_safely:
            self.problems.append(f"{number} came again after its ack was on disk")
        if number in self.delivered_safely and not redelivered:
            self.problems.append(f"{number} came again without the flag")
        self.delivered.add(number)


class Worker(threading.Thread, ABC):
    """A client that works until the node is gone; an error of its own is kept for the test."""

    def __init__(self, node: LiveNode, ledger: Ledger, enough: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.client = RawClient(node).open(1, 2)
        self.ledger = ledger
        self.random = random.Random(seed)
        self.enough = enough
        self.reached = threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.work()
        except Gone:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.reached.set()
            self.client.sock.close()

    @abstractmethod
    def work(self) -> None: ...


class Publisher(Worker):
    def work(self) -> None:
        self.client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        before = self.ledger.sent
        confirmed = 0
        while True:
            count = self.random.randrange(1, 60)
            self._send(count)
            while self.ledger.sent - before - confirmed > WINDOW:
                ack = self.client.expect(m.BasicAck)
                first = confirmed if ack.multiple else ack.delivery_tag - 1
                self.ledger.confirmed |= set(range(before + first, before + ack.delivery_tag))
                confirmed = ack.delivery_tag
            if confirmed >= self.enough:
                self.reached.set()

    def _send(self, count: int) -> None:
        out = bytearray()
        for _ in range(count):
            size = 200_000 if self.random.random() < 0.002 else self.random.randrange(2000)
            body = struct.pack(">II", self.ledger.sent, size) + b"x" * size
            out += content_frames(1, m.BasicPublish("", WORK), body)
            self.ledger.sent += 1
        self.client.send(bytes(out))


class Consumer(Worker):
    def work(self) -> None:
        ledger, client = self.ledger, self.client
        client.ask(2, m.ConfirmSelect(), m.ConfirmSelectOk)
        client.ask(1, m.BasicQos(0, PREFETCH), m.BasicQosOk)
        client.ask(1, m.BasicConsume(WORK), m.BasicConsumeOk)
        marks: deque[tuple[int, set[int], set[int]]] = deque()
        last, held, answered, marker = -1, 0, 0, 0
        new: set[int] = set()
        acked: set[int] = set()
        while True:
            _, method = client.next_method()
            if isinstance(method, m.BasicAck):
                while marks and marks[0][0] <= method.delivery_tag:
                    _, safe, seen = marks.popleft()
                    ledger.acked_safely |= safe
                    ledger.delivered_safely |= seen
                continue
            assert isinstance(method, m.BasicDeliver)
            number = number_of(client.content()[1])
            if number <= last:
                ledger.problems.append(f"{number} came after {last}")
            last = number
            ledger.received(number, method.redelivered)
            new.add(number)
            if held < HELD_MAX and self.random.random() < 0.1:
                held += 1
                continue
            ledger.acked.add(number)
            acked.add(number)
            client.method(1, m.BasicAck(method.delivery_tag))
            answered += 1
            if len(acked) >= 20:
                marker += 1
                client.publish(2, MARKS, b"")
                marks.append((marker, acked, new))
                acked, new = set(), set()
            if answered >= self.enough:
                self.reached.set()


def number_of(body: bytes) -> int:
    number, size = struct.unpack_from(">II", body)
    assert len(body) == 8 + size
    return int(number)


def live_and_die(data_dir: Path, ledger: Ledger, source: random.Random) -> None:
    with live_node(data_dir) as node:
        with RawClient(node) as client:
            client.open(1)
            client.declare(WORK, durable=True)
            client.declare(MARKS, durable=True, arguments={"x-max-length": 1})
        enough = source.randrange(1, 2000)
        workers: list[Worker] = [
            Publisher(node, ledger, enough, source.randrange(1 << 32)),
            Consumer(node, ledger, source.randrange(1, enough + 1), source.randrange(1 << 32)),
        ]
        for worker in workers:
            worker.start()
        assert source.choice(workers).reached.wait(WAIT_S)
        node.kill()
        for worker in workers:
            worker.join(WAIT_S)
            assert worker.error is None, worker.error
    assert not ledger.problems


def drain(data_dir: Path, ledger: Ledger) -> set[int]:
    """All that is left; the node must also be able to stop cleanly after all it went through."""
    left: set[int] = set()
    with live_node(data_dir) as node, RawClient(node) as client:
        client.open(1)
        count = client.declare(WORK, passive=True).message_count
        client.ask(1, m.BasicConsume(WORK), m.BasicConsumeOk)
        for _ in range(count):
            deliver = client.expect(m.BasicDeliver)
            number = number_of(client.content()[1])
            assert number not in left
            left.add(number)
            ledger.received(number, deliver.redelivered)
        client.method(1, m.BasicAck(0, multiple=True))
        assert client.declare(WORK, passive=True).message_count == 0
        assert node.stop() == 0
    return left


@pytest.mark.crash
def test_twenty_kills_under_load(tmp_path: Path) -> None:
    source = random.Random(20)
    ledger = Ledger()
    for _ in range(KILLS):
        live_and_die(tmp_path, ledger, source)
    left = drain(tmp_path, ledger)
    assert not ledger.problems
    assert not ledger.confirmed - ledger.acked - left, "confirmed, and lost"
    assert not ledger.delivered_safely - ledger.acked - left, "delivered, not acked, and lost"
    assert max(left, default=0) < ledger.sent
    # It was a test: there was enough of everything.
    assert len(ledger.confirmed) > 100 * KILLS
    assert len(ledger.acked_safely) > 50 * KILLS
    assert len(ledger.delivered_safely - ledger.acked_safely) > KILLS


@pytest.mark.crash
@pytest.mark.parametrize(
    ("queue_type", "kept"), [("stream", True), ("quorum", True), ("classic", False)]
)
def test_logs_and_quorum_queues_keep_what_is_not_persistent(
    tmp_path: Path, queue_type: str, kept: bool
) -> None:
    """In every protocol that can say so: AMQP, and MQTT at QoS 0; ``$queue`` always asks for it."""
    with live_node(tmp_path) as node, RawClient(node) as client:
        client.open(1)
        client.declare("q", durable=True, arguments={"x-queue-type": queue_type})
        client.ask(1, m.QueueBind("q", "amq.topic", "a.#"), m.QueueBindOk)
        client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        client.send(content_frames(1, m.BasicPublish("", "q"), b"mode 1", b"\x10\0\x01"))
        client.send(content_frames(1, m.BasicPublish("", "q"), b"no mode", b"\0\0"))
        acks = client.expect(m.BasicAck).delivery_tag
        while acks < 2:
            acks = client.expect(m.BasicAck).delivery_tag
        port = node.ports["mqtt_port"]
        for topic, body in (("$queue/q", "always kept"), ("a/b", "QoS 0")):
            publish.single(topic, body, qos=0, port=port, client_id="p", protocol=MQTTv311)
        arguments = {"x-queue-type": queue_type}
        while client.declare("q", durable=True, arguments=arguments).message_count < 4:
            pass
        # There is one journal: its confirm says that what came before it is on disk.
        client.publish(1, "q", b"persistent")
        client.expect(m.BasicAck)
        node.kill()
    with live_node(tmp_path) as node, RawClient(node) as client:
        client.open(1)
        client.ask(1, m.BasicQos(0, 100), m.BasicQosOk)
        start = {"x-stream-offset": "first"} if queue_type == "stream" else {}
        client.ask(1, m.BasicConsume("q", "c", arguments=start), m.BasicConsumeOk)
        sure = {b"always kept", b"persistent"}
        values = sure | {b"mode 1", b"no mode", b"QoS 0"} if kept else sure
        found = set()
        for _ in values:
            client.expect(m.BasicDeliver)
            found.add(client.content()[1])
        assert found == values


@pytest.mark.crash
def test_what_was_not_promised_may_go_and_what_was_stays(tmp_path: Path) -> None:
    """Transient messages, exclusive and transient queues go; durable definitions stay."""
    with live_node(tmp_path) as node, RawClient(node) as client:
        client.open(1)
        client.ask(1, m.ExchangeDeclare("kept", "topic", durable=True), m.ExchangeDeclareOk)
        client.declare("kept", durable=True)
        client.declare("gone")
        client.declare("mine", exclusive=True)
        client.ask(1, m.QueueBind("kept", "kept", "a.#"), m.QueueBindOk)
        client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        client.publish(1, "a.b", b"persistent", "kept")
        assert client.expect(m.BasicAck).delivery_tag == 1
        client.send(content_frames(1, m.BasicPublish("kept", "a.b"), b"transient", b"\0\0"))
        assert client.expect(m.BasicAck).delivery_tag == 2
        node.kill()
    with live_node(tmp_path) as node, RawClient(node) as client:
        client.open(1, 2, 3)
        for channel, queue in ((2, "gone"), (3, "mine")):
            close = client.ask(channel, m.QueueDeclare(queue, passive=True), m.ChannelClose)
            assert close.reply_code == 404
        assert client.declare("kept", durable=True).message_count == 1
        client.ask(1, m.BasicGet("kept"), m.BasicGetOk)
        assert client.content()[1] == b"persistent"
        client.publish(1, "a.c", b"routed still", "kept")
        client.ask(1, m.BasicGet("kept"), m.BasicGetOk)
        assert client.content()[1] == b"routed still"
