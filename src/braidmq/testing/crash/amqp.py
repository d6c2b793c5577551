"""AMQP traffic: confirms, transactions, priorities, dead letters, TTL, delays.

What is published in masses goes through a link of our own; pika consumes, rejects, gets by priority
and does transactions.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from braidmq.testing.crash.amqp_link import AmqpLink, content
from braidmq.testing.crash.clients import ANSWER_S_MAX, Client, NoAnswer, World
from braidmq.testing.crash.history import Promise, Publisher, Reader, Strand
from braidmq.wire.amqp import methods as m

WINDOW = 100
SIDE_WINDOW = 20
SIDE_PAUSE_S = 0.05
"""Between two windows of the strands that are there for their kind, not for their number."""

PREFETCH = 300
MARK_EVERY = 50
TTL_MS = 400
DELAY_MS_MAX = 1500
PRIORITIES = 4
MOVED = 10

CONFIRM_QUEUE, MARKS = "confirm", "confirm-marks"
PRIORITY_QUEUE = "priority"
TX_LOGS = ("tx-a", "tx-b")
MOVE_IN, MOVE_OUT = "move-in", "move-out"
DEAD_IN, DEAD_EXCHANGE, DEAD_LOG = "dead-in", "dead-x", "dead-log"
TTL_IN, TTL_EXCHANGE, TTL_LOG, TTL_OUT = "ttl-in", "ttl-x", "ttl-log", "ttl-out"
DELAY_EXCHANGE, DELAY_OUT = "delay-x", "delay-out"

LOGS: dict[str, tuple[str, ...]] = {
    "amqp-tx": TX_LOGS,
    "amqp-tx-move": (MOVE_OUT,),
    "amqp-dead": (DEAD_LOG,),
    "amqp-ttl": (TTL_LOG,),
}
"""Streams, in which the lab reads in the end all that was published."""


def declare(port: int) -> None:
    """Queues, logs, exchanges and bindings."""
    link = AmqpLink(port)

    def queue(name: str, **arguments: Any) -> None:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        link.call(m.QueueDeclare(name, durable=True, arguments=table))

    def exchange(name: str, kind: str, **arguments: Any) -> None:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        link.call(m.ExchangeDeclare(name, kind, durable=True, arguments=table))

    for name in (CONFIRM_QUEUE, MARKS, MOVE_IN, TTL_OUT, DELAY_OUT):
        queue(name)
    for name in (log for logs in LOGS.values() for log in logs):
        queue(name, x_queue_type="stream")
    queue(PRIORITY_QUEUE, x_max_priority=PRIORITIES)
    exchange(DEAD_EXCHANGE, "fanout")
    exchange(TTL_EXCHANGE, "fanout")
    exchange(DELAY_EXCHANGE, "x-delayed-message", x_delayed_type="direct")
    queue(DEAD_IN, x_dead_letter_exchange=DEAD_EXCHANGE)
    queue(TTL_IN, x_dead_letter_exchange=TTL_EXCHANGE, x_message_ttl=TTL_MS)
    for name, source in (
        (DEAD_LOG, DEAD_EXCHANGE),
        (TTL_LOG, TTL_EXCHANGE),
        (TTL_OUT, TTL_EXCHANGE),
        (DELAY_OUT, DELAY_EXCHANGE),
    ):
        link.call(m.QueueBind(name, source, DELAY_OUT))
    link.close()


def clients(world: World) -> tuple[list[Strand], list[Client]]:
    strands: list[Strand] = []
    working: list[Client] = []

    def strand(name: str) -> Strand:
        strands.append(Strand(name))
        return strands[-1]

    once = Promise(once=True)

    confirm = strand("amqp-confirm")
    reader = confirm.new_reader("consumer", Promise(order="connection"))
    for index, _ in enumerate(confirm.new_publishers(2)):
        working.append(WindowPublisher(world, confirm, index, reader, key=CONFIRM_QUEUE))
    working.append(MarkingConsumer(world, confirm, reader))

    priority = strand("amqp-priority")
    priority.new_publishers(PRIORITIES + 1)
    reader = priority.new_reader("getter", Promise(order="priority"))
    working.append(PriorityGetter(world, priority, reader))

    tx = strand("amqp-tx")
    tx.new_publishers(len(TX_LOGS))
    tx.new_reader("log", Promise(once=True, order="place", whole_units=True))
    working.append(TxPublisher(world, tx))

    move = strand("amqp-tx-move")
    move.new_publishers(1)
    move.new_reader("log", once)
    moved = Reader()
    working.append(WindowPublisher(world, move, 0, moved, key=MOVE_IN, is_side=True))
    working.append(TxMover(world, move, moved))

    dead = strand("amqp-dead")
    dead.new_publishers(1)
    dead.new_reader("log", once)
    rejected = Reader()
    working.append(WindowPublisher(world, dead, 0, rejected, key=DEAD_IN, is_side=True))
    working.append(PikaConsumer(world, dead, rejected, DEAD_IN, is_rejecting=True))

    ttl = strand("amqp-ttl")
    ttl.new_publishers(1)
    ttl.new_reader("log", once)
    reader = ttl.new_reader("consumer", Promise())
    working.append(
        WindowPublisher(world, ttl, 0, reader, key=TTL_IN, is_side=True, hidden_ms=TTL_MS)
    )
    working.append(PikaConsumer(world, ttl, reader, TTL_OUT))

    delay = strand("amqp-delay")
    delay.new_publishers(1)
    reader = delay.new_reader("consumer", Promise())
    working.append(DelayPublisher(world, delay, 0, reader, key=DELAY_OUT, is_side=True))
    working.append(PikaConsumer(world, delay, reader, DELAY_OUT))
    return strands, working


# --- over the link ---


class LinkClient(Client):
    link: AmqpLink | None = None

    def connect(self) -> AmqpLink:
        self.link = AmqpLink(self.world.ports["amqp_port"])
        return self.link

    def disconnect(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None


class WindowPublisher(LinkClient):
    """Sends a window, waits for its confirms. What was under way when the node went is unknown."""

    publishes = True
    exchange = ""

    def __init__(
        self,
        world: World,
        strand: Strand,
        index: int,
        reader: Reader,
        *,
        key: str,
        is_side: bool = False,
        hidden_ms: int = 0,
    ) -> None:
        super().__init__(world, strand, f"publisher {index}")
        self.index = index
        self.publisher: Publisher = strand.publishers[index]
        self._reader = reader
        self._key = key
        self._is_side = is_side
        self._hidden_ms = hidden_ms

    def work(self) -> None:
        link = self.connect()
        link.call(m.ConfirmSelect())
        tag = 1
        while self.world.publishing.is_set():
            self.wait_for_turn(self._reader)
            window = [self._next() for _ in range(SIDE_WINDOW if self._is_side else WINDOW)]
            link.send(b"".join(frames for _, frames in window))
            self._await(link, tag, [number for number, _ in window])
            tag += len(window)
            if self._is_side:
                time.sleep(SIDE_PAUSE_S)
        self.is_finished = True

    def _next(self) -> tuple[int, bytes]:
        number = self.publisher.send(delay_ms=self._hidden_ms)
        return number, content(self.exchange, self._key, self.strand.body(self.index, number))

    def _await(self, link: AmqpLink, first_tag: int, numbers: list[int]) -> None:
        left = dict(enumerate(numbers, first_tag))
        while left:
            for method, _ in link.events():
                if isinstance(method, m.BasicNack):
                    self.strand.problem(f"{self.name}: nacked")
                elif not isinstance(method, m.BasicAck):
                    continue
                tag = method.delivery_tag
                tags = [at for at in left if at <= tag] if method.multiple else [tag]
                for at in tags:
                    number = left.pop(at)
                    if isinstance(method, m.BasicAck):
                        self.publisher.confirm(number)
            if left and not link.receive():
                raise NoAnswer(f"{len(left)} confirms did not come")


class DelayPublisher(WindowPublisher):
    exchange = DELAY_EXCHANGE

    def _next(self) -> tuple[int, bytes]:
        delay_ms = self.random.randint(1, DELAY_MS_MAX)
        number = self.publisher.send(delay_ms=delay_ms)
        body = self.strand.body(self.index, number)
        return number, content(self.exchange, self._key, body, {"x-delay": delay_ms})


class MarkingConsumer(LinkClient):
    """Learns what it has acknowledged for good by publishing a mark behind its acknowledgements:
    one channel's commands are carried out in order, so a confirmed mark says they are on disk."""

    def __init__(self, world: World, strand: Strand, reader: Reader) -> None:
        super().__init__(world, strand, "consumer")
        self._reader = reader

    def work(self) -> None:
        link = self.connect()
        link.call(m.BasicQos(0, PREFETCH))
        link.call(m.ConfirmSelect())
        link.call(m.BasicConsume(CONFIRM_QUEUE, "lab"))
        unmarked: list[tuple[int, int]] = []
        marked: deque[list[tuple[int, int]]] = deque()
        tag = 0
        while not self.world.ended.is_set():
            for method, body in link.events():
                if isinstance(method, m.BasicDeliver):
                    found = self._reader.arrived(self.strand.name, body, self.connection)
                    tag = method.delivery_tag
                    if found is not None:
                        unmarked.append(found)
                    if len(unmarked) >= MARK_EVERY:
                        self._mark(link, tag)
                        marked.append(unmarked)
                        unmarked, tag = [], 0
                elif isinstance(method, m.BasicAck):
                    self._settle(marked, method)
            if not link.receive(0.1) and tag:
                link.tell(m.BasicAck(tag, multiple=True))
                unmarked, tag = [], 0

    def _mark(self, link: AmqpLink, tag: int) -> None:
        link.tell(m.BasicAck(tag, multiple=True))
        link.send(content("", MARKS, b"mark"))

    def _settle(self, marked: "deque[list[tuple[int, int]]]", confirm: m.BasicAck) -> None:
        # The oldest at least; a `multiple` stands for more, which then settle one confirm later.
        if marked:
            for publisher, number in marked.popleft():
                self._reader.settle(publisher, number)
            self.strand.other_operations += 1


# --- over pika ---


class PikaClient(Client):
    gone = (AMQPError, OSError, *Client.gone)
    _connection: pika.BlockingConnection | None = None

    def channel(self) -> BlockingChannel:
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.world.ports["amqp_port"],
                heartbeat=0,
                socket_timeout=ANSWER_S_MAX,
                blocked_connection_timeout=ANSWER_S_MAX,
            )
        )
        return self._connection.channel()

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


PERSISTENT = pika.BasicProperties(delivery_mode=2)


class PikaConsumer(PikaClient):
    def __init__(
        self,
        world: World,
        strand: Strand,
        reader: Reader,
        queue: str,
        *,
        is_rejecting: bool = False,
    ) -> None:
        super().__init__(world, strand, "consumer")
        self._reader = reader
        self._queue = queue
        self._is_rejecting = is_rejecting

    def work(self) -> None:
        channel = self.channel()
        channel.basic_qos(prefetch_count=50)
        for method, _, body in channel.consume(self._queue, inactivity_timeout=0.1):
            if self.world.ended.is_set():
                return
            if method is None:
                continue
            self._reader.arrived(self.strand.name, body, self.connection)
            if self._is_rejecting:
                channel.basic_reject(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)


class PriorityGetter(PikaClient):
    """Publishes a few of every priority, then gets all: while nobody else publishes, the highest
    come first."""

    publishes = True

    def __init__(self, world: World, strand: Strand, reader: Reader) -> None:
        super().__init__(world, strand, "getter")
        self._reader = reader
        self._drain = 0

    def work(self) -> None:
        channel = self.channel()
        channel.confirm_delivery()
        self._get_all(channel)
        while self.world.publishing.is_set():
            self.wait_for_turn()
            for _ in range(self.random.randint(1, 20)):
                self._publish(channel)
            self._get_all(channel)
        self.is_finished = True

    def _publish(self, channel: BlockingChannel) -> None:
        priority = self.random.randint(0, PRIORITIES)
        publisher = self.strand.publishers[priority]
        number = publisher.send()
        properties = pika.BasicProperties(delivery_mode=2, priority=priority)
        body = self.strand.body(priority, number)
        channel.basic_publish("", PRIORITY_QUEUE, body, properties)
        publisher.confirm(number)

    def _get_all(self, channel: BlockingChannel) -> None:
        self._drain += 1
        last = 0
        while True:
            method, _, body = channel.basic_get(PRIORITY_QUEUE)
            if method is None or body is None:
                break
            self._reader.arrived(self.strand.name, body, self._drain)
            last = method.delivery_tag or last
        if last:
            channel.basic_ack(last, multiple=True)


class TxPublisher(PikaClient):
    """Units of a few messages to two logs: committed, or rolled back, or cut in the middle, which
    is to be as if rolled back."""

    publishes = True

    def __init__(self, world: World, strand: Strand) -> None:
        super().__init__(world, strand, "publisher")
        self._unit = 0

    def work(self) -> None:
        channel = self.channel()
        channel.tx_select()
        while self.world.publishing.is_set():
            self.wait_for_turn()
            self._unit += 1
            unit = list(self._publish(channel))
            if self.random.random() < 0.2:
                channel.tx_rollback()
                continue
            # From here on it is the broker that decides.
            for publisher, number in unit:
                publisher.fate[number] = 0
            channel.tx_commit()
            for publisher, number in unit:
                publisher.confirm(number)
        self.is_finished = True

    def _publish(self, channel: BlockingChannel) -> Iterator[tuple[Publisher, int]]:
        for index, log in enumerate(TX_LOGS):
            publisher = self.strand.publishers[index]
            for _ in range(self.random.randint(1, 8)):
                number = publisher.send(unit=self._unit)
                publisher.abort(number)  # unless its commit is asked for
                channel.basic_publish("", log, self.strand.body(index, number), PERSISTENT)
                yield publisher, number


class TxMover(PikaClient):
    """Takes from one queue, publishes to a log and acknowledges, in one transaction: each once."""

    def __init__(self, world: World, strand: Strand, moved: Reader) -> None:
        super().__init__(world, strand, "mover")
        self._moved = moved

    def work(self) -> None:
        channel = self.channel()
        channel.tx_select()
        while not self.world.ended.is_set():
            tag = 0
            for _ in range(MOVED):
                method, _, body = channel.basic_get(MOVE_IN)
                if method is None or body is None:
                    break
                tag = method.delivery_tag or tag
                self._moved.arrived(self.strand.name, body)
                channel.basic_publish("", MOVE_OUT, body, PERSISTENT)
            if not tag:
                time.sleep(0.02)
                continue
            channel.basic_ack(tag, multiple=True)
            channel.tx_commit()
            self.strand.other_operations += 1
