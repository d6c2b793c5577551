"""MQTT over WebSocket: the handshake, origins, frames that cut packets anywhere."""

import socket
from pathlib import Path

import pytest
from mqtt_in_process import RoomyDisk, mqtt_port
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.packets import Connect, PingReq, PubAck, Publish, Request, Subscribe, encode

WAIT_S = 20.0


def open_socket(node: LiveNode, origin: str | None = None, *protocols: str) -> ClientConnection:
    offered = [Subprotocol(each) for each in protocols or ("mqtt",)]
    url = f"ws://127.0.0.1:{node.ports['ws_port']}/mqtt"
    origin_header = None if origin is None else Origin(origin)
    return connect(url, origin=origin_header, subprotocols=offered, open_timeout=WAIT_S)


def take(socket: ClientConnection, size: int) -> bytes:
    got = b""
    while len(got) < size:
        data = socket.recv(WAIT_S)
        assert isinstance(data, bytes)
        got += data
    return got


def test_packets_may_be_cut_anywhere(node: LiveNode, name: str) -> None:
    stream = b"".join(
        encode(each, 4)
        for each in (
            Connect(4, name),
            Subscribe(1, (Request(name),)),
            Publish(name, b"hello", 1, packet_id=7),
            PingReq(),
        )
    )
    with open_socket(node) as socket:
        assert socket.subprotocol == "mqtt"
        for byte in stream:
            socket.send(bytes((byte,)))
        message = encode(Publish(name, b"hello"), 4)
        expected = [b"\x20\2\0\0", b"\x90\3\0\1\0", message, encode(PubAck(7), 4), b"\xd0\0"]
        got = take(socket, sum(map(len, expected)))
        assert sorted(got) == sorted(b"".join(expected))
        assert got.startswith(b"".join(expected[:2]))


def test_the_subprotocol_must_be_mqtt(node: LiveNode) -> None:
    with pytest.raises(InvalidStatus) as refused, open_socket(node, None, "chat"):
        pass
    assert refused.value.response.status_code == 400


def test_text_frames_are_refused(node: LiveNode) -> None:
    with open_socket(node) as socket:
        socket.send("text")
        with pytest.raises(Exception, match="1003"):
            socket.recv(WAIT_S)


def test_pages_of_other_machines_are_refused_unless_allowed(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text('[mqtt]\norigins = "https://app.example.com, *.example.org"\n')
    with live_node(tmp_path / "data", config=config) as node:
        for origin in (
            "https://app.example.com",
            "https://a.b.example.org:8443",
            "http://localhost",
        ):
            with open_socket(node, origin) as socket:
                assert socket.subprotocol == "mqtt"
        for origin in (
            "http://app.example.com",
            "https://example.org",
            "https://evil.example",
            "null",
        ):
            with pytest.raises(InvalidStatus) as refused, open_socket(node, origin):
                pass
            assert refused.value.response.status_code == 403


def test_pongs_that_nobody_reads_are_bounded() -> None:
    """A client that sends pings and reads nothing is not read any more, or has to go."""
    settings = MqttSettings(output_bytes_max=1 << 20)
    with (
        mqtt_port(RoomyDisk(), settings=settings) as port,
        socket.create_connection(("127.0.0.1", port.ports["ws_port"]), WAIT_S) as peer,
    ):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        peer.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        assert peer.recv(1000).startswith(b"HTTP/1.1 101")
        pings = (b"\x89\xfd\0\0\0\0" + bytes(125)) * 500_000
        peer.settimeout(1.0)
        with pytest.raises((TimeoutError, ConnectionError)):
            peer.sendall(pings)
        unsent = port.ask(lambda gateway: [each.unsent_bytes for each in gateway.connections])
        assert sum(unsent) < 4 << 20
