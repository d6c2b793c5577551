"""pika's SelectConnection: callbacks and an event loop, several things under way at once."""

from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.select_connection import SelectConnection
from pika.channel import Channel

from braidmq.testing.live import LiveNode

WAIT_S = 20
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Session:
    """Runs ``work(session)`` on an open channel until it calls ``done``."""

    def __init__(self, node: LiveNode, work: Callable[["Session"], None]) -> None:
        self._work = work
        self.channel: Channel
        self.closed_with: Exception | None = None
        self.channel_closed_with: Exception | None = None
        self.finished = False
        self.connection = SelectConnection(
            pika.ConnectionParameters(port=node.ports["amqp_port"]),
            on_open_callback=self._opened,
            on_open_error_callback=self._closed,
            on_close_callback=self._closed,
        )

    def _opened(self, connection: SelectConnection) -> None:
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Channel) -> None:
        self.channel = channel
        channel.add_on_close_callback(self._channel_closed)
        self._work(self)

    def _channel_closed(self, _: Channel, reason: Exception) -> None:
        self.channel_closed_with = reason

    def _closed(self, _: SelectConnection, reason: Exception) -> None:
        self.closed_with = reason
        self.connection.ioloop.stop()

    def done(self, *_: Any) -> None:
        self.finished = True
        self.connection.close()

    def run(self) -> "Session":
        self.connection.ioloop.call_later(WAIT_S, self.connection.ioloop.stop)
        self.connection.ioloop.start()
        self.connection.ioloop.close()
        return self


def test_a_thousand_publishes_in_flight_are_all_confirmed(node: LiveNode, name: str) -> None:
    open_tags = set(range(1, 1001))

    def work(session: Session) -> None:
        channel = session.channel

        def answered(frame: Any) -> None:
            assert isinstance(frame.method, pika.spec.Basic.Ack)
            last = frame.method.delivery_tag
            if frame.method.multiple:
                open_tags.difference_update(range(1, last + 1))
            else:
                open_tags.remove(last)
            if not open_tags:
                session.done()

        def declared(_: Any) -> None:
            channel.confirm_delivery(answered)
            for number in range(1000):
                channel.basic_publish("", name, b"%d" % number, PERSISTENT)

        channel.queue_declare(name, durable=True, callback=declared)

    assert Session(node, work).run().finished
    assert not open_tags


def test_publish_and_consume_on_one_channel(node: LiveNode, name: str) -> None:
    got: list[bytes] = []
    sizes = [0, 10, 131_064, 200_000, 3]

    def work(session: Session) -> None:
        channel = session.channel

        def received(_: Channel, method: Any, __: Any, body: bytes) -> None:
            got.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(got) == len(sizes):
                channel.basic_cancel(method.consumer_tag, callback=session.done)

        def declared(_: Any) -> None:
            channel.basic_qos(prefetch_count=1)
            channel.basic_consume(name, received)
            for size in sizes:
                channel.basic_publish("", name, b"x" * size)

        channel.queue_declare(name, callback=declared)

    assert Session(node, work).run().finished
    assert [len(body) for body in got] == sizes


def test_returns_come_before_their_confirm(node: LiveNode, name: str) -> None:
    order: list[str] = []

    def work(session: Session) -> None:
        channel = session.channel

        def answered(_: Any) -> None:
            order.append("confirm")
            session.done()

        def returned(_: Channel, method: Any, __: Any, body: bytes) -> None:
            assert (method.reply_code, body) == (312, b"back")
            order.append("return")

        channel.add_on_return_callback(returned)
        channel.confirm_delivery(answered)
        channel.basic_publish("", name, b"back", mandatory=True)

    assert Session(node, work).run().finished
    assert order == ["return", "confirm"]


def test_many_methods_without_waiting_are_answered_in_order(node: LiveNode, name: str) -> None:
    declared: list[str] = []

    def work(session: Session) -> None:
        def answered(frame: Any) -> None:
            declared.append(frame.method.queue)
            if len(declared) == 50:
                session.done()

        for number in range(50):
            session.channel.queue_declare(f"{name}.{number}", durable=True, callback=answered)

    assert Session(node, work).run().finished
    assert declared == [f"{name}.{number}" for number in range(50)]


def test_a_cancelled_consumer_is_told(node: LiveNode, name: str) -> None:
    cancelled: list[str] = []

    def work(session: Session) -> None:
        channel = session.channel

        def told(frame: Any) -> None:
            cancelled.append(frame.method.consumer_tag)
            session.done()

        channel.add_on_cancel_callback(told)
        channel.queue_declare(name)
        channel.basic_consume(name, lambda *_: None, consumer_tag="c")
        channel.queue_delete(name)

    assert Session(node, work).run().finished
    assert cancelled == ["c"]


def test_a_channel_error_reaches_the_callback(node: LiveNode, name: str) -> None:
    def work(session: Session) -> None:
        session.channel.add_on_close_callback(session.done)
        session.channel.queue_declare(name, passive=True)

    session = Session(node, work).run()
    assert session.finished
    assert isinstance(session.channel_closed_with, pika.exceptions.ChannelClosedByBroker)
    assert session.channel_closed_with.reply_code == 404


def test_a_connection_error_reaches_the_callback(node: LiveNode, name: str) -> None:
    def work(session: Session) -> None:
        session.channel.exchange_declare(name, "no-such-type")

    session = Session(node, work).run()
    assert isinstance(session.closed_with, pika.exceptions.ConnectionClosedByBroker)
    assert session.closed_with.reply_code == 503
