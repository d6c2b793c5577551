"""Messages that are not complete: counted as memory, bounded, refused as soon as that is known, and
gone with their connection."""

import gc
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from in_process import WAIT_S, HeldDisk, Port, amqp_port
from raw_client import Gone, RawClient, content_frames

from braidmq.engine.pressure import Watermarks
from braidmq.gateways.amqp.channel import Channel
from braidmq.gateways.amqp.connection import OUTPUT_HIGH_BYTES, AmqpConnection
from braidmq.gateways.amqp.consumers import Consumers
from braidmq.gateways.amqp.handshake import HANDSHAKE_FRAME_BYTES_MAX
from braidmq.gateways.amqp.listener import AmqpGateway
from braidmq.gateways.amqp.publisher import Publisher
from braidmq.model.limits import KIB, MIB
from braidmq.net.input_budget import BYTES_MIN
from braidmq.net.lingering import LINGERING_MAX
from braidmq.net.tcp import RECEIVE_BYTES_MAX
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.properties import Properties, content_header_payload, encode_properties

FRAME = 128 * KIB - 8
HEAD = encode_properties(Properties())


@pytest.fixture
def port() -> Iterator[Port]:
    with amqp_port(HeldDisk(), Watermarks(64 * MIB, 128 * MIB, 0, 0)) as port:
        yield port


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def held_bytes(gateway: AmqpGateway) -> int:
    return gateway.node_loop.input_budget.held_bytes


def begin(client: RawClient, size: int, exchange: str = "", channel: int = 1) -> None:
    """The head of a message of so many bytes."""
    client.send(
        m.method_frame(channel, m.BasicPublish(exchange, "q"))
        + m.frame(FrameKind.HEADER, channel, content_header_payload(size, HEAD))
    )


def body(size: int, channel: int = 1) -> bytes:
    pieces = [min(FRAME, size - at) for at in range(0, size, FRAME)]
    return b"".join(m.frame(FrameKind.BODY, channel, bytes(piece)) for piece in pieces)


def test_what_came_of_a_body_counts_as_memory_until_its_connection_ends(port: Port) -> None:
    with RawClient(port) as client:
        client.open(1)
        client.declare("q")
        begin(client, 32 * MIB)
        client.send(body(8 * MIB))
        until(lambda: port.ask(held_bytes) >= 8 * MIB)
        # Twice what came, whatever was said to come.
        assert port.ask(held_bytes) <= 17 * MIB
        pressure = port.gateway.node_loop.view.pressure
        assert pressure.input_bytes() == port.ask(held_bytes)
    until(lambda: port.ask(held_bytes) == 0)


def test_a_message_in_many_frames_is_the_same_as_in_one(port: Port) -> None:
    sizes = [0, 1, 7, 8, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME + 5, 5 * MIB]
    with RawClient(port) as client:
        client.open(1)
        client.declare("q", durable=True)
        client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        for tag, size in enumerate(sizes, 1):
            value = bytes(range(256)) * (size // 256 + 1)
            properties = Properties(message_id=str(size), priority=size % 10, expiration="60000")
            raw = encode_properties(properties)
            client.send(
                m.method_frame(1, m.BasicPublish("", "q"))
                + m.frame(FrameKind.HEADER, 1, content_header_payload(size, raw))
            )
            for at in range(0, size, FRAME // 3):
                piece = value[at : min(at + FRAME // 3, size)]
                client.send(m.frame(FrameKind.BODY, 1, piece))
            assert client.expect(m.BasicAck).delivery_tag == tag
            client.ask(1, m.BasicGet("q", no_ack=True), m.BasicGetOk)
            assert client.content() == (properties, value[:size])
        assert port.ask(held_bytes) == 0


def test_many_unfinished_bodies_are_bounded_and_the_largest_is_refused(port: Port) -> None:
    """Of the 64 MiB there are for all of them; a publisher beside them is served."""
    clients = [RawClient(port) for _ in range(7)]
    for number, client in enumerate(clients):
        client.open(1)
        client.declare("q")
        begin(client, (10 if number else 20) * MIB)
    for number, client in enumerate(clients):
        client.send(body((9 if number else 19) * MIB))
    closed = clients[0].expect(m.ConnectionClose)
    assert closed.reply_code == 506
    assert "not complete" in closed.reply_text
    assert port.ask(lambda gateway: gateway.node_loop.input_budget.refused) == 1
    assert port.ask(held_bytes) <= BYTES_MIN
    with RawClient(port) as other:
        other.open(1)
        other.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        other.publish(1, "q", b"x")
        other.expect(m.BasicAck)
    for client in clients:
        client.sock.close()
    until(lambda: port.ask(held_bytes) == 0)


def test_a_message_is_refused_by_its_header_if_it_is_larger_than_a_connection_may_hold(
    port: Port,
) -> None:
    with RawClient(port) as client:
        client.open(1, 2)
        begin(client, BYTES_MIN // 2 + 1)
        closed = client.expect(m.ChannelClose, 1)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (406, 60, 40)
        begin(client, BYTES_MIN // 2, channel=2)
        client.send(body(1, channel=2))
        until(lambda: port.ask(held_bytes) > 0)


@pytest.mark.parametrize(("exchange", "code"), [("amq.direct", 403), ("missing", 404)])
def test_who_may_not_publish_is_refused_before_the_body(
    port: Port, exchange: str, code: int
) -> None:
    def let_read_only(gateway: AmqpGateway) -> None:
        gateway.accounts.set_permission("guest", "/", ".*", "missing", ".*")

    port.ask(let_read_only)
    with RawClient(port) as client:
        client.open(1)
        begin(client, 20 * MIB, exchange)
        closed = client.expect(m.ChannelClose, 1)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (code, 60, 40)
        client.send(body(1 * MIB))
        client.method(1, m.ChannelCloseOk())
        client.ask(1, m.ChannelOpen(), m.ChannelOpenOk)
        assert port.ask(held_bytes) == 0


def test_a_stranger_is_kept_few_bytes_of(port: Port) -> None:
    with RawClient(port) as client:
        client.send(PROTOCOL_HEADER)
        client.expect(m.ConnectionStart)
        size = HANDSHAKE_FRAME_BYTES_MAX + 1
        client.send(struct.pack(">BHI", FrameKind.METHOD, 0, size) + bytes(size))
        assert client.expect(m.ConnectionClose).reply_code == 501
    with RawClient(port) as client:
        client.send(PROTOCOL_HEADER + struct.pack(">BHI", FrameKind.METHOD, 0, 8000) + bytes(7000))
        until(lambda: port.ask(held_bytes) >= 7000)
        assert port.ask(held_bytes) < 8 * KIB


def test_what_a_transaction_has_not_committed_counts(port: Port) -> None:
    with RawClient(port) as client:
        client.open(1, 2)
        client.declare("q")
        for channel in (1, 2):
            client.ask(channel, m.TxSelect(), m.TxSelectOk)
            client.send(content_frames(channel, m.BasicPublish("", "q"), bytes(64 * KIB)) * 16)
        until(lambda: port.ask(held_bytes) >= 2 * MIB)
        client.ask(1, m.TxRollback(), m.TxRollbackOk)
        assert MIB <= port.ask(held_bytes) < 2 * MIB
        client.ask(2, m.TxCommit(), m.TxCommitOk)
        assert port.ask(held_bytes) == 0
        client.send(content_frames(2, m.BasicPublish("", "q"), bytes(64 * KIB)) * 16)
        until(lambda: port.ask(held_bytes) >= MIB)
        client.ask(2, m.ChannelClose(200, "", 0, 0), m.ChannelCloseOk)
        assert port.ask(held_bytes) == 0


def alive() -> int:
    return sum(
        isinstance(each, AmqpConnection | Channel | Consumers | Publisher)
        for each in gc.get_objects()
    )


def test_a_connection_is_freed_without_the_cyclic_collector(port: Port) -> None:
    gc.collect()
    before = alive()
    gc.disable()
    try:
        for ending in ("close", "reset", "error", "stranger", "unfinished"):
            with RawClient(port) as client:
                if ending == "stranger":
                    client.send(PROTOCOL_HEADER)
                    client.expect(m.ConnectionStart)
                    continue
                client.open(1)
                client.declare(ending)
                client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
                client.ask(1, m.BasicConsume(ending), m.BasicConsumeOk)
                client.publish(1, ending, b"x")
                client.frame()
                if ending == "close":
                    client.method(0, m.ConnectionClose(200, "", 0, 0))
                elif ending == "error":
                    client.method(7, m.BasicQos(0, 1))
                elif ending == "unfinished":
                    begin(client, MIB)
                    client.send(body(64 * KIB))
            until(lambda: not port.ask(lambda gateway: gateway.connections))
            until(lambda: port.ask(lambda _: alive()) == before)
    finally:
        gc.enable()


def test_peers_that_do_not_close_after_goodbye_do_not_keep_many_files(port: Port) -> None:
    clients = []
    for _ in range(LINGERING_MAX + 5):
        client = RawClient(port)
        client.send(PROTOCOL_HEADER)
        client.expect(m.ConnectionStart)
        client.method(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest"))
        client.expect(m.ConnectionTune)
        client.method(0, m.ConnectionTuneOk(10, 4096, 0))
        client.method(0, m.ConnectionOpen("/"))
        client.expect(m.ConnectionOpenOk)
        client.method(0, m.ConnectionClose(200, "", 0, 0))
        client.expect(m.ConnectionCloseOk)
        clients.append(client)
    until(lambda: port.ask(lambda gateway: len(gateway.connections)) <= LINGERING_MAX)
    for client in clients:
        client.sock.close()
    until(lambda: not port.ask(lambda gateway: gateway.connections))


def test_who_closes_again_and_again_and_does_not_read_gets_no_more_answers(port: Port) -> None:
    closes = 1000 * m.method_frame(0, m.ConnectionClose(200, "", 0, 0))
    with RawClient(port, receive_buffer_bytes=4096) as client:
        client.open(1)
        (transport,) = port.ask(lambda gateway: [each.transport for each in gateway.connections])
        with suppress(Gone):  # its moment is over
            for _ in range(16 * MIB // len(closes)):
                client.send(closes)
                unsent_bytes = port.ask(lambda _: transport.unsent_bytes)
                assert unsent_bytes < OUTPUT_HIGH_BYTES + RECEIVE_BYTES_MAX
