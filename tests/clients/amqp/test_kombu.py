"""kombu: queues as objects, pools, and connections that repair themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.simple import SimpleQueue

from braidmq.testing.live import LiveNode, free_ports, live_node

WAIT_S = 20


def url_of(node: LiveNode) -> str:
    return f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}//"


@pytest.fixture
def connection(node: LiveNode) -> Iterator[Connection]:
    options = {"confirm_publish": True}
    with Connection(url_of(node), transport_options=options) as connection:
        yield connection


def take(connection: Connection, queue: Queue, count: int) -> list[tuple[Any, Any]]:
    taken: list[tuple[Any, Any]] = []

    def received(body: Any, message: Any) -> None:
        taken.append((body, message))
        message.ack()

    with Consumer(connection, [queue], callbacks=[received], accept=["json", "text/plain"]):
        while len(taken) < count:
            connection.drain_events(timeout=WAIT_S)
    return taken


def test_json_through_a_topic_exchange(connection: Connection, name: str) -> None:
    exchange = Exchange(name, "topic", durable=True)
    queue = Queue(name, exchange, routing_key="a.#", durable=True)
    producer = Producer(connection, exchange, serializer="json")
    body = {"list": [1, 2.5, None], "text": "grüße"}
    producer.publish(body, routing_key="a.b", declare=[queue], headers={"x": [1, {"y": 2}]})
    producer.publish("other", routing_key="b")
    ((got, message),) = take(connection, queue, 1)
    assert got == body
    assert (message.headers, message.content_type) == ({"x": [1, {"y": 2}]}, "application/json")
    assert message.delivery_info["routing_key"] == "a.b"
    assert message.properties["delivery_mode"] == 2


def test_delays_of_celery(connection: Connection, name: str) -> None:
    """A cascade of 28 queues, each with twice the time of the one below, up to four years."""
    delays = pytest.importorskip("kombu.transport.native_delayed_delivery")
    delays.declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
    exchange = Exchange(name, "topic")
    queue = Queue(name, exchange, routing_key=name)
    queue.bind(connection.channel()).declare()
    delays.bind_queue_to_native_delayed_delivery_exchange(connection, queue)
    key = delays.calculate_routing_key(1, name)
    top = Exchange(delays.level_name(delays.MAX_LEVEL), "topic")
    Producer(connection, top).publish("later", routing_key=key)
    ((body, message),) = take(connection, queue, 1)
    assert body == "later"
    assert [each["queue"] for each in message.headers["x-death"]] == [delays.level_name(0)]


@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
def test_large_and_compressed(connection: Connection, name: str, compression: str | None) -> None:
    queue = Queue(name)
    body = "x" * 1_000_000
    producer = Producer(connection)
    producer.publish(body, routing_key=name, declare=[queue], compression=compression)
    assert take(connection, queue, 1)[0][0] == body


def test_priorities_ttl_and_dead_letters(connection: Connection, name: str) -> None:
    dead = Queue(f"{name}.dead")
    queue = Queue(
        name,
        max_priority=5,
        message_ttl=0.3,
        queue_arguments={
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead.name,
        },
    )
    producer = Producer(connection)
    for priority in (0, 5, 3):
        producer.publish(priority, routing_key=name, declare=[queue, dead], priority=priority)
    bound = queue(connection.default_channel)
    for priority in (5, 3):
        message = bound.get()
        assert message.payload == priority
        message.ack()
    ((body, message),) = take(connection, dead, 1)
    assert body == 0
    assert message.headers["x-death"][0]["reason"] == "expired"


def test_requeue_and_reject(connection: Connection, name: str) -> None:
    queue = Queue(name)(connection.default_channel)
    queue.declare()
    Producer(connection).publish("x", routing_key=name)
    queue.get().requeue()
    again = queue.get()
    assert again.delivery_info["redelivered"]
    again.reject()
    assert queue.get() is None
    assert queue.delete() == 0


def test_a_simple_queue(connection: Connection, name: str) -> None:
    with SimpleQueue(connection, name) as queue:
        for number in range(10):
            queue.put({"number": number})
        assert queue.qsize() == 10
        got = []
        for _ in range(10):
            message = queue.get(timeout=WAIT_S)
            got.append(message.payload["number"])
            message.ack()
        assert got == list(range(10))
        with pytest.raises(queue.Empty):
            queue.get(block=False)


def test_a_producer_goes_on_after_a_restart(tmp_path: Path, name: str) -> None:
    (port,) = free_ports(1)
    queue = Queue(name, durable=True)
    with live_node(tmp_path, amqp_port=port) as node:
        connection = Connection(url_of(node), transport_options={"confirm_publish": True})
        producer = Producer(connection)
        producer.publish("before", routing_key=name, declare=[queue], retry=True)
        node.kill()
    with live_node(tmp_path, amqp_port=port):
        producer.publish("after", routing_key=name, declare=[queue], retry=True)
        assert [body for body, _ in take(connection, queue, 2)] == ["before", "after"]
        connection.release()


def test_heartbeats(node: LiveNode) -> None:
    with Connection(url_of(node), heartbeat=1) as connection:
        connection.connect()
        transport = connection.connection
        received = transport.bytes_recv
        rounds = 0
        while transport.bytes_recv < received + 3:
            assert rounds < WAIT_S * 5
            rounds += 1
            connection.heartbeat_check(rate=2)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
        assert connection.connected
