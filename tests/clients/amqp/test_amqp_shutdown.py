"""SIGTERM while clients are busy: each is told why, nothing is lost, nobody complains."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker
from raw_client import PERSISTENT, Gone, RawClient, content_frames

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m

WAIT_S = 60
BUSY = 500
"""Messages each client has handled when the signal comes."""


class Client(threading.Thread):
    """Runs ``work`` until the broker ends it; ``busy`` is set once it is in full swing."""

    def __init__(self, work: Callable[["Client"], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.busy = threading.Event()
        self.handled = 0
        self.confirmed = 0
        self.ended: BaseException | None = None

    def run(self) -> None:
        try:
            self._work(self)
        except BaseException as error:
            self.ended = error

    def one_more(self) -> None:
        self.handled += 1
        if self.handled == BUSY:
            self.busy.set()


def connect(node: LiveNode) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(port=node.ports["amqp_port"]))


def publisher(node: LiveNode, queue: str) -> Client:
    def work(client: Client) -> None:
        channel = connect(node).channel()
        channel.confirm_delivery()
        while True:
            channel.basic_publish("", queue, b"x" * 100, pika.BasicProperties(delivery_mode=2))
            client.confirmed += 1
            client.one_more()

    return Client(work)


def flooder(node: LiveNode, queue: str) -> Client:
    """No confirms, no pauses: its socket is full when the node stops."""

    def work(client: Client) -> None:
        channel = connect(node).channel()
        while True:
            channel.basic_publish("", queue, b"x" * 1000)
            client.one_more()

    return Client(work)


def consumer(node: LiveNode, queue: str) -> Client:
    def work(client: Client) -> None:
        channel = connect(node).channel()

        def received(_: Any, method: Any, __: Any, ___: bytes) -> None:
            channel.basic_ack(method.delivery_tag)
            client.one_more()

        channel.basic_qos(prefetch_count=100)
        channel.basic_consume(queue, received)
        channel.start_consuming()

    return Client(work)


def test_busy_clients_are_told_and_confirmed_messages_stay(tmp_path: Path, name: str) -> None:
    with live_node(tmp_path) as node:
        with connect(node) as connection:
            connection.channel().queue_declare(name, durable=True)
            connection.channel().queue_declare(f"{name}.flood")
        clients = [
            publisher(node, name),
            flooder(node, f"{name}.flood"),
            consumer(node, f"{name}.flood"),
        ]
        for client in clients:
            client.start()
        for client in clients:
            assert client.busy.wait(WAIT_S)
        assert node.stop() == 0
        for client in clients:
            client.join(WAIT_S)
            assert isinstance(client.ended, ConnectionClosedByBroker), repr(client.ended)
            assert client.ended.reply_code == 320
        assert node.lines[-1] == "stopped"
        assert not node.complaints
    with live_node(tmp_path) as node, connect(node) as connection:
        found = connection.channel().queue_declare(name, passive=True).method.message_count
        # The one it was waiting for when the end came may be there too.
        assert found - clients[0].confirmed in (0, 1)


def test_a_client_that_does_not_answer_the_close_does_not_hold_up_the_stop(
    tmp_path: Path, name: str
) -> None:
    with live_node(tmp_path) as node, RawClient(node) as deaf, RawClient(node) as stuck:
        deaf.open(1)
        deaf.declare(name)
        # This one has megabytes under way to it that it never reads.
        stuck.open(1)
        stuck.send(content_frames(1, m.BasicPublish("", name), b"x" * 100_000) * 100)
        stuck.method(1, m.BasicConsume(name, no_ack=True, nowait=True))
        seen = deaf.declare(name, passive=True)
        while not seen.consumer_count or seen.message_count >= 100:
            seen = deaf.declare(name, passive=True)
        assert node.stop() == 0
        assert deaf.expect(m.ConnectionClose).reply_code == 320
        assert node.lines[-1] == "stopped"


def test_consumers_may_answer_for_what_they_have_before_they_are_told(
    tmp_path: Path, name: str
) -> None:
    """No late acknowledgement is lost, and no new message is handed out meanwhile."""
    with live_node(tmp_path) as node, RawClient(node) as client:
        client.open(1)
        client.declare(name, durable=True)
        for body in (b"first", b"second"):
            frames = content_frames(1, m.BasicPublish("", name), body, PERSISTENT)
            client.send(frames)
        client.method(1, m.BasicQos(prefetch_count=1))
        client.expect(m.BasicQosOk)
        client.method(1, m.BasicConsume(name))
        client.expect(m.BasicConsumeOk)
        delivered = client.expect(m.BasicDeliver)
        assert client.content()[1] == b"first"
        node.process.terminate()
        node.wait_for_log("draining")
        client.method(1, m.BasicAck(delivered.delivery_tag))
        assert client.expect(m.ConnectionClose).reply_code == 320
        client.method(0, m.ConnectionCloseOk())
        assert node.process.wait(WAIT_S) == 0
    with live_node(tmp_path) as node, connect(node) as connection:
        channel = connection.channel()
        method, _, body = channel.basic_get(name, auto_ack=True)
        assert (body, method.redelivered, method.message_count) == (b"second", False, 0)


def test_a_publish_after_the_signal_is_not_taken_and_neither_is_what_follows(
    tmp_path: Path, name: str
) -> None:
    """A worker publishes its result and then acknowledges its task: both, or none."""
    with live_node(tmp_path) as node, RawClient(node) as client:
        client.open(1)
        client.declare(name, durable=True)
        client.declare(f"{name}.results", durable=True)
        client.send(content_frames(1, m.BasicPublish("", name), b"task", PERSISTENT))
        client.method(1, m.BasicConsume(name))
        client.expect(m.BasicConsumeOk)
        delivered = client.expect(m.BasicDeliver)
        client.content()
        node.process.terminate()
        node.wait_for_log("draining")
        result = m.BasicPublish("", f"{name}.results")
        client.send(content_frames(1, result, b"result", PERSISTENT))
        client.method(1, m.BasicAck(delivered.delivery_tag))
        assert client.expect(m.ConnectionClose).reply_code == 320
        client.method(0, m.ConnectionCloseOk())
        assert node.process.wait(WAIT_S) == 0
    with live_node(tmp_path) as node, connect(node) as connection:
        channel = connection.channel()
        assert channel.queue_declare(name, passive=True).method.message_count == 1
        assert channel.queue_declare(f"{name}.results", passive=True).method.message_count == 0


def held_message(node: LiveNode, name: str) -> RawClient:
    """A client that has a confirmed message and never answers for it."""
    client = RawClient(node)
    client.open(1)
    client.declare(name, durable=True)
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    client.send(content_frames(1, m.BasicPublish("", name), b"held", PERSISTENT))
    client.expect(m.BasicAck)
    client.method(1, m.BasicConsume(name))
    client.expect(m.BasicConsumeOk)
    client.expect(m.BasicDeliver)
    client.content()
    return client


def test_a_consumer_that_never_answers_holds_up_the_stop_until_the_deadline(
    tmp_path: Path, name: str
) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[node]\nshutdown_deadline_s = 0.5\n")
    with live_node(tmp_path / "data", config=config) as node, held_message(node, name) as client:
        assert node.stop() == 0
        assert client.expect(m.ConnectionClose).reply_code == 320
        assert not node.complaints
    with live_node(tmp_path / "data") as node, connect(node) as connection:
        found = connection.channel().queue_declare(name, passive=True)
        assert found.method.message_count == 1


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path: Path, name: str, second: signal.Signals) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[node]\nshutdown_deadline_s = 3600\n")
    with live_node(tmp_path / "data", config=config) as node, held_message(node, name):
        node.process.terminate()
        node.wait_for_log("draining")
        node.process.send_signal(second)
        assert node.process.wait(WAIT_S) == 128 + second
        node.wait_for_line("stopped immediately")
    with live_node(tmp_path / "data") as node, connect(node) as connection:
        found = connection.channel().queue_declare(name, passive=True)
        assert found.method.message_count == 1


def test_nobody_gets_in_while_it_stops(fresh_node: LiveNode) -> None:
    with RawClient(fresh_node) as client:
        client.open(1)
        fresh_node.process.terminate()
        assert client.expect(m.ConnectionClose).reply_code == 320
        with pytest.raises(AMQPConnectionError):
            connect(fresh_node)
        client.method(0, m.ConnectionCloseOk())
        with pytest.raises(Gone):
            client.frame()
        assert fresh_node.process.wait(WAIT_S) == 0
