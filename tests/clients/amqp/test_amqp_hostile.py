"""Clients that ask for much and read nothing, or send much that is long to do: it is their own
connection that waits."""

from collections.abc import Iterator

import pytest
from in_process import HeldDisk, Port, amqp_port
from raw_client import RawClient, content_frames
from test_amqp_unfinished import until

from braidmq.engine.pressure import Watermarks
from braidmq.gateways.amqp import connection as amqp_connection
from braidmq.gateways.amqp.commands import COMMITTED_AT_ONCE
from braidmq.gateways.amqp.connection import AmqpConnection
from braidmq.gateways.amqp.input_events import OUTPUT_FULL_BYTES
from braidmq.gateways.amqp.listener import AmqpGateway
from braidmq.gateways.amqp.queues import SUBSCRIPTION
from braidmq.gateways.amqp.releasing import CONSUMERS_AT_ONCE
from braidmq.model.limits import MIB
from braidmq.runtime import sliced_work
from braidmq.wire.amqp import methods as m

SLACK_BYTES = 2 * MIB
"""One message more than fits, and what it is made of."""


@pytest.fixture
def port() -> Iterator[Port]:
    with amqp_port(HeldDisk(), Watermarks(64 * MIB, 128 * MIB, 0, 0)) as port:
        yield port


def only(gateway: AmqpGateway) -> AmqpConnection:
    (connection,) = gateway.connections
    return connection


def is_stopped(gateway: AmqpGateway) -> bool:
    return not only(gateway).transport.is_reading


def test_who_does_not_read_its_answers_is_not_read_either(port: Port) -> None:
    with RawClient(port, 4096) as client:
        client.open(1)
        client.declare("q")
        client.publish(1, "q", bytes(MIB))
        asked = 64
        client.method(1, *[m.BasicGet("q"), m.BasicRecover(True)] * asked)
        until(lambda: port.ask(is_stopped))
        assert (
            port.ask(lambda gateway: only(gateway).transport.unsent_bytes)
            < OUTPUT_FULL_BYTES + SLACK_BYTES
        )
        # It reads after all, and gets everything in its order.
        for _ in range(asked):
            client.expect(m.BasicGetOk)
            assert len(client.content()[1]) == MIB
            client.expect(m.BasicRecoverOk)
        until(lambda: not port.ask(is_stopped))


def test_many_commands_of_one_read_are_done_in_slices(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_connection, "READ_S", 0.0)
    with RawClient(port) as client:
        client.open(1)
        client.declare("q")
        before = port.ask(lambda gateway: gateway.node_loop.turns.epoch)
        bodies = [b"%d" % number for number in range(300)]
        data = b"".join(
            content_frames(1, m.BasicPublish("", "q"), body)
            + m.method_frame(1, m.BasicGet("q", no_ack=True))
            for body in bodies
        )
        client.send(data)
        got = []
        for _ in bodies:
            client.expect(m.BasicGetOk)
            got.append(client.content()[1])
        assert got == bodies
        assert port.ask(lambda gateway: gateway.node_loop.turns.epoch) > before


def test_a_large_transaction_is_committed_in_slices_and_whole(port: Port) -> None:
    with RawClient(port) as client, RawClient(port) as other:
        for each in (client, other):
            each.open(1)
        for name in ("a", "b"):
            client.declare(name)
        client.ask(1, m.TxSelect(), m.TxSelectOk)
        many = 20 * COMMITTED_AT_ONCE
        pair = [content_frames(1, m.BasicPublish("", name), b"x") for name in ("a", "b")]
        client.send(b"".join(pair) * many)
        client.method(1, m.TxCommit(), m.QueueDeclare("a", passive=True))
        client.expect(m.TxCommitOk)
        assert client.expect(m.QueueDeclareOk).message_count == many
        assert other.declare("b", passive=True).message_count == many


def test_a_connection_that_goes_in_the_middle_of_a_commit_leaves_nothing(port: Port) -> None:
    with RawClient(port) as watcher:
        watcher.open(1)
        for name in ("a", "b"):
            watcher.declare(name)

        with RawClient(port) as client:
            client.open(1)
            client.ask(1, m.TxSelect(), m.TxSelectOk)
            pair = [content_frames(1, m.BasicPublish("", name), b"x") for name in ("a", "b")]
            client.send(b"".join(pair) * 100)
            client.ask(1, m.QueueDeclare("a", passive=True), m.QueueDeclareOk)

            def commit_and_cut(gateway: AmqpGateway) -> None:
                (connection,) = [
                    each
                    for each in gateway.connections
                    if each.channels and each.channels[1].tx.buffered is not None
                ]
                channel = connection.channels[1]
                assert channel.tx.buffered is not None
                steps = connection._commands._committing(channel, channel.tx.buffered)
                connection.input._steps = steps
                for _ in range(50):
                    next(steps)
                connection.abort("cut")

            port.ask(commit_and_cut)
        until(lambda: port.ask(lambda gateway: len(gateway.connections)) == 1)
        for name in ("a", "b"):
            assert watcher.declare(name, passive=True).message_count == 0
        watcher.publish(1, "a", b"y")
        # Nothing undecided is in front of it.
        watcher.method(1, m.BasicGet("a", no_ack=True))
        watcher.expect(m.BasicGetOk)
        assert watcher.content()[1] == b"y"


def test_a_rollback_of_many_answers_puts_them_back_once(port: Port) -> None:
    with RawClient(port) as client:
        client.open(1)
        client.declare("q")
        many = 2000
        client.send(content_frames(1, m.BasicPublish("", "q"), b"x") * many)
        client.ask(1, m.TxSelect(), m.TxSelectOk)
        client.ask(1, m.BasicConsume("q"), m.BasicConsumeOk)
        for _ in range(many):
            client.expect(m.BasicDeliver)
            client.content()
        client.method(1, *[m.BasicAck(tag) for tag in range(2, many + 1, 2)])
        client.ask(1, m.TxRollback(), m.TxRollbackOk)
        assert port.ask(lambda gateway: len(only(gateway).channels[1].consumers.unacked)) == many
        client.method(1, m.BasicAck(0, multiple=True))
        client.ask(1, m.TxCommit(), m.TxCommitOk)
        assert port.ask(lambda gateway: len(only(gateway).channels[1].consumers.unacked)) == 0


MANY_CONSUMERS = CONSUMERS_AT_ONCE + 500


def consume_much(client: RawClient) -> None:
    client.open(1)
    client.declare("q")
    for number in range(MANY_CONSUMERS):
        client.method(1, m.BasicConsume("q", f"c{number}"))
    for _ in range(MANY_CONSUMERS):
        client.expect(m.BasicConsumeOk)


def consumers_of_q(gateway: AmqpGateway) -> int:
    topic = gateway.node_loop.view.state.topics["/", "q"]
    return len(topic.subscriptions[SUBSCRIPTION].consumers)


def hold_slices(gateway: AmqpGateway) -> list[int]:
    """Have each slice do one step, and say how many consumers were left after each."""
    left: list[int] = []

    def one_step(steps: Iterator[object], _until: float) -> bool:
        for _ in steps:
            left.append(consumers_of_q(gateway))
            return False
        return True

    sliced_work._run_until = one_step  # type: ignore[assignment]
    return left


@pytest.fixture
def slices(port: Port, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(sliced_work, "_run_until", sliced_work._run_until)
    return port.ask(hold_slices)


def test_a_channel_of_very_many_consumers_is_closed_in_slices_and_then_answered(
    port: Port, slices: list[int]
) -> None:
    with RawClient(port) as client:
        consume_much(client)
        client.publish(1, "q", b"x")
        client.expect(m.BasicDeliver)
        client.content()
        slices.clear()
        client.ask(1, m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
        # Whoever is told that it is closed sees nothing of it any more.
        assert port.ask(consumers_of_q) == 0
        assert slices[:MANY_CONSUMERS] == list(range(MANY_CONSUMERS - 1, -1, -1))
        client.ask(1, m.ChannelOpen(), m.ChannelOpenOk)
        client.method(1, m.BasicGet("q", no_ack=True))
        client.expect(m.BasicGetOk)
        assert client.content()[1] == b"x"


@pytest.mark.parametrize("is_closing", [False, True])
def test_a_connection_of_very_many_consumers_is_given_back_in_slices(
    port: Port, slices: list[int], is_closing: bool
) -> None:
    """Also when it goes while it closes their channel."""
    with RawClient(port) as watcher:
        with RawClient(port) as client:
            consume_much(client)
            slices.clear()
            if is_closing:
                client.method(1, m.ChannelClose(200, "", 0, 0))
        watcher.open(1)
        watcher.publish(1, "q", b"x")
        until(lambda: port.ask(lambda gateway: len(gateway.connections)) == 1)
        until(lambda: port.ask(consumers_of_q) == 0)
        assert slices[:MANY_CONSUMERS] == list(range(MANY_CONSUMERS - 1, -1, -1))
        watcher.method(1, m.BasicGet("q", no_ack=True))
        watcher.expect(m.BasicGetOk)
        assert watcher.content()[1] == b"x"
