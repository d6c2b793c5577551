"""Packets that are not complete: counted as memory, bounded, refused as soon as that is known, and
gone with their connection. And sockets, which are closed when their connections end."""

import gc
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mqtt_in_process import WAIT_S, Port, RoomyDisk, mqtt_port
from raw_mqtt import Gone, RawMqtt

from braidmq.engine.pressure import Watermarks
from braidmq.gateways.mqtt.connection import MqttConnection
from braidmq.gateways.mqtt.listener import MqttGateway
from braidmq.model.limits import KIB, MIB
from braidmq.net.input_budget import BYTES_MIN
from braidmq.net.websocket import WebSocketTransport
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    encode,
)

SWITCH = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@pytest.fixture
def port() -> Iterator[Port]:
    with mqtt_port(RoomyDisk(), Watermarks(64 * MIB, 128 * MIB, 0, 0)) as port:
        yield port


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def held_bytes(gateway: MqttGateway) -> int:
    return gateway.node_loop.input_budget.held_bytes


def large(size: int = 16 * MIB - 100, topic: str = "t", qos: int = 1) -> bytes:
    return encode(Publish(topic, bytes(size), qos, packet_id=7 if qos else 0), Version.V5)


def websocket(port: Port) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port.ports["ws_port"]), WAIT_S)
    sock.sendall(SWITCH)
    heard = b""
    while not heard.endswith(b"\r\n\r\n"):
        heard += sock.recv(4096)
    assert heard.startswith(b"HTTP/1.1 101")
    return sock


def frame_head(size: int) -> bytes:
    """Of a binary frame with a mask of zeros."""
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8)
    return b"\x82" + length + bytes(4)


def test_what_came_of_a_packet_counts_and_what_was_announced_does_not(port: Port) -> None:
    with RawMqtt(port) as client:
        client.connect("c")
        whole = large()
        client.send_bytes(whole[:1000])
        until(lambda: port.ask(held_bytes) > 0)
        assert port.ask(held_bytes) <= 512 * KIB
        client.send_bytes(whole[1000 : 4 * MIB])
        until(lambda: port.ask(held_bytes) >= 4 * MIB)
        assert port.ask(held_bytes) <= 8 * MIB
        assert port.gateway.node_loop.view.pressure.input_bytes() == port.ask(held_bytes)
        client.send_bytes(whole[4 * MIB :])
        assert client.expect(PubAck).packet_id == 7
        assert port.ask(held_bytes) == 0
        client.send_bytes(whole[: 4 * MIB])
        until(lambda: port.ask(held_bytes) >= 4 * MIB)
    until(lambda: port.ask(held_bytes) == 0)


def test_many_unfinished_packets_are_bounded_and_one_is_refused(port: Port) -> None:
    clients = [RawMqtt(port) for _ in range(5)]
    for number, client in enumerate(clients):
        client.connect(f"c{number}")
        client.send_bytes(large()[: 12 * MIB])
    ready, _, _ = select.select([each.sock for each in clients], [], [], WAIT_S)
    (refused,) = [each for each in clients if each.sock in ready]
    assert refused.expect(Disconnect).reason == Reason.QUOTA_EXCEEDED
    assert port.ask(lambda gateway: gateway.node_loop.input_budget.refused) == 1
    assert port.ask(held_bytes) <= BYTES_MIN
    for client in clients:
        client.sock.close()
    until(lambda: port.ask(held_bytes) == 0)


def test_a_packet_above_the_maximum_is_refused_by_its_first_bytes(port: Port) -> None:
    with RawMqtt(port) as client:
        client.connect("c")
        client.send_bytes(b"\x30\x80\x80\x80\x09")
        assert client.expect(Disconnect).reason == Reason.PACKET_TOO_LARGE


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_large_publish_that_is_not_allowed_is_not_kept(port: Port, qos: int) -> None:
    def forbid(gateway: MqttGateway) -> None:
        gateway.accounts.set_permission("guest", "/", ".*", "^allowed$", ".*")

    port.ask(forbid)
    with RawMqtt(port) as client:
        client.connect("c")
        data = large(4 * MIB, "forbidden", qos)
        client.send_bytes(data[: 1 * MIB])
        if qos == 0:
            assert client.expect(Disconnect).reason == Reason.NOT_AUTHORIZED
            return
        answer = client.expect(PubAck if qos == 1 else PubRec)
        assert (answer.packet_id, answer.reason) == (7, Reason.NOT_AUTHORIZED)
        client.send_bytes(data[1 * MIB :])
        assert client.ping() == []
        assert port.ask(held_bytes) == 0
        assert client.answer(client.publish("allowed", bytes(MIB), 1)) in (0, 16)


def test_a_stranger_is_kept_few_bytes_of(port: Port) -> None:
    limit = port.gateway.settings.connect_bytes_max
    with RawMqtt(port) as client:
        client.send_bytes(encode(Connect(Version.V5, "x" * limit), Version.V5)[:5])
        with pytest.raises(Gone):
            client.packet()
    with RawMqtt(port) as client:
        client.send_bytes(encode(Connect(Version.V5, "x" * (limit - 100)), Version.V5)[:-1])
        until(lambda: port.ask(held_bytes) >= limit - 200)
        assert port.ask(held_bytes) <= limit


@pytest.mark.parametrize("what", ["request", "header", "frame", "packet"])
def test_a_stranger_over_websocket_is_kept_few_bytes_of(port: Port, what: str) -> None:
    limit = port.gateway.settings.connect_bytes_max
    if what in ("request", "header"):
        sock = socket.create_connection(("127.0.0.1", port.ports["ws_port"]), WAIT_S)
        line = b"X-Filler: " + b"x" * 4000 + b"\r\n"
        data = b"GET / HTTP/1.1\r\n" + (line * 100 if what == "header" else b"x" * 400_000)
    else:
        sock = websocket(port)
        if what == "frame":
            data = frame_head(8 * MIB) + bytes(8 * MIB)
        else:
            whole = b"\x10\xff\xff\x7f" + bytes(2 * MIB)
            data = b"".join(
                frame_head(100) + whole[at : at + 100] for at in range(0, len(whole), 100)
            )
    most = 0
    with sock, suppress(ConnectionError, TimeoutError):
        sock.settimeout(0.05)
        for at in range(0, len(data), 1000):
            sock.sendall(data[at : at + 1000])
            if at % 8000 == 0:
                most = max(most, port.ask(held_bytes))
    assert most <= limit + 260 * KIB  # which is read at once
    until(lambda: not port.ask(lambda gateway: gateway.connections))
    assert port.ask(held_bytes) == 0


def test_unfinished_frames_of_a_websocket_count_and_are_freed(port: Port) -> None:
    with websocket(port) as sock:
        connect = encode(Connect(Version.V5, "c"), Version.V5)
        sock.sendall(frame_head(len(connect)) + connect)
        until(lambda: any(port.ask(lambda g: [each.is_established for each in g.connections])))
        sock.recv(4096)
        data = large()
        sock.sendall(frame_head(len(data)) + data[: 4 * MIB])
        until(lambda: port.ask(held_bytes) >= 4 * MIB)
    until(lambda: port.ask(held_bytes) == 0)


def alive() -> int:
    kinds = (MqttConnection, WebSocketTransport)
    return sum(isinstance(each, kinds) for each in gc.get_objects())


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
def test_a_connection_is_freed_without_the_cyclic_collector(port: Port, version: int) -> None:
    gc.collect()
    before = alive()
    gc.disable()
    try:
        for ending in ("disconnect", "gone", "error", "stranger", "refused", "unfinished"):
            with RawMqtt(port, version) as client:
                if ending == "stranger":
                    client.send_bytes(b"\x10")
                    until(lambda: port.ask(lambda gateway: gateway.connections))
                    continue
                if ending == "refused":
                    client.connect("c", user_name="nobody", password=b"x")
                    continue
                client.connect("c")
                client.subscribe("a/#", "$queue/q", qos=1)
                for topic in ("a/b", "$queue/q"):
                    client.publish(topic, b"x", 1)
                    for _ in range(2):
                        found = client.packet()
                        if isinstance(found, Publish):
                            client.send(PubAck(found.packet_id))
                if ending == "disconnect":
                    client.send(Disconnect())
                elif ending == "error":
                    client.send_bytes(b"\xf7\xff")
                elif ending == "unfinished":
                    client.send_bytes(large()[:MIB])
            until(lambda: not port.ask(lambda gateway: gateway.connections))
            until(lambda: port.ask(lambda _: alive()) == before)
        for ending in ("closed", "half", "request"):
            if ending == "request":
                with socket.create_connection(("127.0.0.1", port.ports["ws_port"])) as sock:
                    sock.sendall(SWITCH[:20])
                    until(lambda: port.ask(lambda gateway: gateway.connections))
            else:
                with websocket(port) as sock:
                    if ending == "half":
                        sock.sendall(frame_head(100_000) + bytes(1000))
            until(lambda: not port.ask(lambda gateway: gateway.connections))
            until(lambda: port.ask(lambda _: alive()) == before)
    finally:
        gc.enable()


def files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
def test_a_socket_is_closed_with_its_connection_whatever_the_client_does(
    port: Port, version: int
) -> None:
    """The client keeps its end: the broker's is closed all the same, and at once."""
    clients = [RawMqtt(port, version) for _ in range(20)]
    until(lambda: port.ask(lambda gateway: len(gateway.connections)) == 20)
    before = files()
    for number, client in enumerate(clients):
        client.connect(f"c{number}")
        client.send(Disconnect())
    until(lambda: not port.ask(lambda gateway: gateway.connections))
    assert files() == before - 20
    assert port.ask(lambda gateway: len(gateway.node_loop.lingering)) == 0
    for client in clients:
        with pytest.raises(Gone):
            client.packet()
        client.sock.close()


def test_resets_leave_nothing(port: Port) -> None:
    before = files()
    for number in range(50):
        with RawMqtt(port) as client:
            if number % 2:
                client.send(Connect(Version.V5, f"c{number}"))
            if number % 4 == 3:
                client.expect(ConnAck)
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: not port.ask(lambda gateway: gateway.connections))
    until(lambda: files() == before)
