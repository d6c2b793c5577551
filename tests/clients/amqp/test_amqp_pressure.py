"""Publishers are held back, and told so: by low memory or disk, by confirms that are slow to come,
by a queue that is full. Consumers go on, and nothing is lost."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
from in_process import WAIT_S, HeldDisk, Port, amqp_port
from pika.exceptions import NackError
from raw_client import RawClient, content_frames

from braidmq.engine.pressure import Watermarks
from braidmq.gateways.amqp import upkeep
from braidmq.gateways.amqp.holds import Hold
from braidmq.gateways.amqp.listener import AmqpGateway
from braidmq.gateways.amqp.settings import UnconfirmedLimit
from braidmq.model.limits import KIB, MIB
from braidmq.runtime.parked import PARKED_BYTES_MAX, PARKED_S
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m

BODY = bytes(16 * KIB)


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def connected(node: LiveNode) -> pika.BlockingConnection:
    at = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], heartbeat=0)
    return pika.BlockingConnection(at)


@contextmanager
def sending(client: RawClient, data: bytes) -> Iterator[None]:
    """Meanwhile, as fast as it is read; all of it is sent in the end."""
    thread = threading.Thread(target=client.sock.sendall, args=(data,))
    thread.start()
    yield
    thread.join(WAIT_S)
    assert not thread.is_alive()


def held(reason: Hold) -> Callable[[AmqpGateway], bool]:
    return lambda gateway: any(each.holds & reason for each in gateway.connections)


# --- memory ---


def test_a_publisher_waits_while_memory_is_low_and_consumers_make_room(tmp_path: Path) -> None:
    """Transient messages are in memory only."""
    config = tmp_path / "braid.toml"
    config.write_text("[limits]\nmemory_slow_bytes = 1048576\nmemory_block_bytes = 2097152\n")
    with (
        live_node(tmp_path / "data", config=config) as node,
        connected(node) as producer,
        connected(node) as consumer,
    ):
        told: list[str] = []
        producer.add_on_connection_blocked_callback(lambda *_: told.append("blocked"))
        producer.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
        out = producer.channel()
        out.queue_declare("q")
        published = 0
        while not told:
            assert published * len(BODY) < 64 * MIB, "it was never blocked"
            out.basic_publish("", "q", published.to_bytes(4) + BODY)
            published += 1
            producer.process_data_events(0)
        got: list[int] = []
        into = consumer.channel()
        for _, _, body in into.consume("q", auto_ack=True, inactivity_timeout=WAIT_S):
            got.append(int.from_bytes(body[:4]))
            if len(got) == published:
                break
        into.cancel()
        assert got == list(range(published))
        until(lambda: producer.process_data_events(0.01) or told[-1] == "unblocked")
        assert out.queue_declare("q", passive=True).method.message_count == 0


def test_who_does_not_understand_is_held_back_without_a_word() -> None:
    marks = Watermarks(1 * MIB, 2 * MIB, 0, 0)
    data = content_frames(1, m.BasicPublish("", "q"), BODY) * (16 * MIB // len(BODY))
    with (
        amqp_port(HeldDisk(), marks) as port,
        RawClient(port) as out,
        RawClient(port) as reader,
    ):
        out.open(1, capabilities={})
        out.declare("q")
        reader.open(1)
        with sending(out, data):
            until(lambda: port.ask(held(Hold.BLOCKED)))
            taken = port.ask(lambda gateway: gateway.node_loop.view.store.memory.resident)
            assert taken < 8 * MIB
            reader.ask(1, m.BasicConsume("q", no_ack=True), m.BasicConsumeOk)
            for _ in range(16 * MIB // len(BODY)):
                reader.expect(m.BasicDeliver)
                reader.content()
        out.ask(1, m.QueueDeclare("q", passive=True), m.QueueDeclareOk)


# --- disk ---

MARKS = Watermarks(1 << 40, 1 << 41, disk_slow_bytes=20 * MIB, disk_block_bytes=10 * MIB)


def test_low_disk_space_blocks_publishers_and_nobody_else() -> None:
    disk = HeldDisk()
    with amqp_port(disk, MARKS) as port, RawClient(port) as out, RawClient(port) as reader:
        out.open(1)
        out.declare("q")
        out.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        out.publish(1, "q", b"before")
        out.expect(m.BasicAck)
        disk.free = 5 * MIB
        assert "disk" in out.expect(m.ConnectionBlocked).reason
        out.publish(1, "q", b"while")
        reader.open(1)
        reader.ask(1, m.BasicGet("q", no_ack=True), m.BasicGetOk)
        assert reader.content()[1] == b"before"
        reader.ask(1, m.BasicGet("q", no_ack=True), m.BasicGetEmpty)
        # Nothing is taken, not even the first publish of a connection.
        reader.publish(1, "q", b"other")
        reader.expect(m.ConnectionBlocked)
        assert port.ask(ready) == 0
        disk.free = 1 << 30
        out.expect(m.ConnectionUnblocked)
        reader.expect(m.ConnectionUnblocked)
        assert out.expect(m.BasicAck).delivery_tag == 2
        found = set()
        for _ in range(2):
            reader.ask(1, m.BasicGet("q", no_ack=True), m.BasicGetOk)
            found.add(reader.content()[1])
        assert found == {b"while", b"other"}


def ready(gateway: AmqpGateway) -> int:
    (topic,) = gateway.node_loop.view.state.topics_of("/")
    return sum(each.ready for each in topic.subscriptions.values())


def in_flight(gateway: AmqpGateway) -> int:
    (topic,) = gateway.node_loop.view.state.topics_of("/")
    return sum(each.in_flight for each in topic.subscriptions.values())


@contextmanager
def worker(disk: HeldDisk, messages: int = 2) -> Iterator[tuple[Port, RawClient]]:
    """A client that has so many messages and then is blocked as a publisher: it has one more
    publish under way."""
    with amqp_port(disk, MARKS) as port, RawClient(port) as client:
        client.open(1, 2)
        client.declare("q")
        for number in range(messages):
            client.publish(1, "q", b"%d" % number)
        client.ask(1, m.BasicConsume("q"), m.BasicConsumeOk)
        for _ in range(messages):
            client.expect(m.BasicDeliver)
            client.content()
        disk.free = 5 * MIB
        client.expect(m.ConnectionBlocked)
        client.publish(1, "q", b"result")
        yield port, client


@pytest.mark.parametrize("answer", [m.BasicAck(1), m.BasicReject(1, False), m.BasicNack(1)])
def test_answers_behind_a_publish_are_read_while_publishers_are_blocked(answer: m.Method) -> None:
    disk = HeldDisk()
    with worker(disk) as (port, client):
        if isinstance(answer, m.BasicNack):
            answer = m.BasicNack(1, False, False)
        client.method(1, answer)
        until(lambda: port.ask(in_flight) == 1)
        client.ask(1, m.BasicQos(0, 1), m.BasicQosOk)
        assert port.ask(ready) == 0
        disk.free = 1 << 30
        client.expect(m.ConnectionUnblocked)
        client.expect(m.BasicDeliver)
        assert client.content()[1] == b"result"


def test_a_channel_closes_while_its_publishes_wait_and_they_are_taken_later() -> None:
    disk = HeldDisk()
    with worker(disk) as (port, client):
        client.ask(1, m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
        assert port.ask(ready) == 2
        # What needs an answer in order waits; on another channel it does not.
        client.publish(2, "q", b"other")
        client.method(2, m.QueueDeclare("q", passive=True))
        client.ask(1, m.ChannelOpen(), m.ChannelOpenOk)
        assert port.ask(ready) == 2
        disk.free = 1 << 30
        found = [client.next_method()[1] for _ in range(2)]
        assert {type(each) for each in found} == {m.ConnectionUnblocked, m.QueueDeclareOk}
        assert port.ask(ready) == 4


def test_a_transaction_waits_as_a_whole() -> None:
    disk = HeldDisk()
    with worker(disk) as (port, client):
        client.method(2, m.TxSelect())
        client.expect(m.TxSelectOk)
        client.publish(2, "q", b"in tx")
        client.method(2, m.TxCommit())
        client.method(2, m.ChannelClose(200, "", 0, 0))
        client.method(1, m.BasicAck(1))
        until(lambda: port.ask(in_flight) == 1)
        disk.free = 1 << 30
        until(lambda: port.ask(in_flight) == 3)  # it was committed before its channel was closed


def test_who_has_too_much_waiting_and_does_not_answer_is_closed_in_the_end() -> None:
    disk = HeldDisk()
    with worker(disk) as (port, client):
        parked = PARKED_BYTES_MAX // len(BODY) + 1
        client.send(content_frames(1, m.BasicPublish("", "q"), BODY) * parked)
        until(lambda: port.ask(held(Hold.PARKED)))
        client.method(1, m.BasicAck(1))

        def check(after_s: float) -> Callable[[AmqpGateway], None]:
            def later(gateway: AmqpGateway) -> None:
                for each in list(gateway.connections):
                    upkeep.check_parked(each, gateway.node_loop.loop.time() + after_s)

            return later

        port.ask(check(PARKED_S - 5))
        assert port.ask(in_flight) == 2
        port.ask(check(PARKED_S + 5))
        closed = client.expect(m.ConnectionClose)
        assert closed.reply_code == 506
        assert "blocked" in closed.reply_text
        assert port.ask(ready) == 2
        assert port.ask(lambda gateway: gateway.node_loop.input_budget.held_bytes) == 0


def test_who_only_publishes_is_not_read_while_blocked() -> None:
    disk = HeldDisk()
    data = content_frames(1, m.BasicPublish("", "q"), BODY) * (8 * MIB // len(BODY))
    with amqp_port(disk, MARKS) as port, RawClient(port) as out:
        out.open(1)
        out.declare("q")
        out.publish(1, "q", b"x")
        disk.free = 5 * MIB
        out.expect(m.ConnectionBlocked)
        with sending(out, data):
            until(lambda: port.ask(held(Hold.PARKED)))
            assert port.ask(ready) == 1
            assert port.ask(lambda gateway: gateway.node_loop.input_budget.held_bytes) < 2 * MIB
            disk.free = 1 << 30
        until(lambda: port.ask(ready) == 1 + 8 * MIB // len(BODY))
        assert port.ask(lambda gateway: gateway.node_loop.input_budget.held_bytes) == 0


def test_a_blocked_publisher_that_goes_away_leaves_nothing_behind() -> None:
    disk = HeldDisk()
    with amqp_port(disk, MARKS) as port:
        with RawClient(port) as out:
            out.open(1)
            out.declare("q")
            disk.free = 5 * MIB
            out.publish(1, "q", b"x")
            out.expect(m.ConnectionBlocked)
        disk.free = 1 << 30
        until(lambda: not port.ask(lambda gateway: gateway.connections))


def test_between_the_marks_publishers_are_slowed_and_served() -> None:
    disk = HeldDisk()
    disk.free = 15 * MIB
    with amqp_port(disk, MARKS) as port, RawClient(port) as out:
        out.open(1)
        out.declare("q")
        out.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        until(lambda: port.ask(lambda gateway: gateway.node_loop.view.pressure.level))
        for number in range(1, 6):
            out.publish(1, "q", b"x")
            assert out.expect(m.BasicAck).delivery_tag == number
            until(lambda: not port.ask(held(Hold.SLOW)))


# --- confirms ---

READ_BYTES = 1 * MIB
"""What is read from a socket at once, and so how far the limit can be passed."""


def unconfirmed(gateway: AmqpGateway) -> int:
    channels = [each for one in gateway.connections for each in one.channels.values()]
    return sum(len(channel.publisher.confirms or ()) for channel in channels)


@pytest.mark.parametrize(
    ("limit", "size"),
    [(UnconfirmedLimit(100, 1 << 40), 4 * KIB), (UnconfirmedLimit(1 << 40, 4 * MIB), 64 * KIB)],
    ids=["messages", "bytes"],
)
def test_a_publisher_far_ahead_of_its_confirms_is_not_read_from(
    limit: UnconfirmedLimit, size: int
) -> None:
    disk = HeldDisk()
    message = content_frames(1, m.BasicPublish("", "q"), bytes(size))
    bound = min(limit.messages, limit.bytes // size) + READ_BYTES // len(message) + 1
    count = 16 * bound
    with (
        amqp_port(disk, unconfirmed=limit) as port,
        RawClient(port) as out,
        RawClient(port) as other,
    ):
        out.open(1)
        out.declare("q", durable=True)
        out.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        other.open(1)
        other.declare("transient")
        disk.hold()
        with sending(out, message * count):
            until(lambda: port.ask(held(Hold.UNCONFIRMED)))
            assert port.ask(unconfirmed) <= bound
            # Others go on, without the disk as far as they need none.
            for _ in range(10):
                other.publish(1, "transient", b"x")
                other.ask(1, m.BasicGet("transient", no_ack=True), m.BasicGetOk)
                other.content()
            assert port.ask(unconfirmed) <= bound
            disk.let_go()
            confirmed = 0
            while confirmed < count:
                confirmed = out.expect(m.BasicAck).delivery_tag
        assert confirmed == count
        assert not port.ask(held(Hold.UNCONFIRMED))


def test_a_channel_that_closes_does_not_keep_the_others_waiting() -> None:
    disk = HeldDisk()
    with (
        amqp_port(disk, unconfirmed=UnconfirmedLimit(1, 1 << 40)) as port,
        RawClient(port) as out,
    ):
        out.open(1, 2)
        out.declare("q", durable=True)
        out.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        disk.hold()
        # The error is in what was read together with the publishes.
        publish = content_frames(1, m.BasicPublish("", "q"), b"x")
        out.send(publish * 3 + m.method_frame(1, m.BasicAck(99)))
        out.expect(m.ChannelClose, 1)
        out.method(1, m.ChannelCloseOk())
        out.ask(2, m.BasicQos(0, 1), m.BasicQosOk)


# --- full queues ---


def test_a_publisher_into_a_full_queue_is_told_as_the_queue_is_configured(
    node: LiveNode, name: str
) -> None:
    outcomes = {}
    with connected(node) as connection:
        for overflow in ("drop-head", "reject-publish", "reject-publish-dlx"):
            channel = connection.channel()
            channel.confirm_delivery()
            queue, dead = f"{name}-{overflow}", f"{name}-{overflow}-dead"
            channel.queue_declare(dead)
            channel.queue_declare(
                queue,
                arguments={
                    "x-max-length": 1,
                    "x-overflow": overflow,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": dead,
                },
            )
            channel.basic_publish("", queue, b"first")
            try:
                channel.basic_publish("", queue, b"second")
                told = "taken"
            except NackError:
                told = "refused"
            kept = channel.basic_get(queue, auto_ack=True)[2]
            outcomes[overflow] = (told, kept, channel.basic_get(dead, auto_ack=True)[2])
    assert outcomes == {
        "drop-head": ("taken", b"second", b"first"),
        "reject-publish": ("refused", b"first", None),
        "reject-publish-dlx": ("refused", b"first", b"second"),
    }
