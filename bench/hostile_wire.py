"""What attackers share: connections as far as they are needed, and bytes for them."""

import json
import selectors
import socket
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from typing import Any

from braidmq.client.address import parse_address
from braidmq.loadgen.amqp_client import Client
from braidmq.model.limits import KIB
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import FrameKind
from braidmq.wire.amqp.properties import Properties, content_header_payload, encode_properties
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import Connect, encode

Ports = dict[str, int]
Attack = Callable[[Ports, float], None]
FRAME = 128 * KIB - 8
GUEST = "Basic " + b64encode(b"guest:guest").decode()


def pour(pieces: list[tuple[socket.socket, memoryview]], seconds: float) -> None:
    """Send each socket its bytes, as fast as it takes them, and then keep it open: until the time
    is over, or everybody is hung up on."""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for sock, data in pieces:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_WRITE, data)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(0.1):
                sock = key.fileobj  # type: ignore[assignment]
                try:
                    rest = key.data[sock.send(key.data[: 1 << 18]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(sock)
                    continue
                if len(rest):
                    selector.modify(sock, selectors.EVENT_WRITE, rest)
                else:
                    selector.unregister(sock)
    for sock, _ in pieces:
        sock.close()


def tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 20)


def amqp(ports: Ports, user: str = "guest") -> socket.socket:
    address = parse_address(f"amqp://{user}:{user}@127.0.0.1:{ports['amqp_port']}")
    return Client(address).socket


def hear(sock: socket.socket) -> bytes:
    return sock.recv(1 << 16)


def mqtt(ports: Ports, name: str, version: Version = Version.V3_1_1) -> socket.socket:
    sock = tcp(ports["mqtt_port"])
    sock.sendall(encode(Connect(version, name), version))
    heard = hear(sock)
    assert heard.startswith((b"\x20\2\0\0", b"\x20")), heard
    return sock


SWITCH = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


def frame_head(size: int) -> bytes:
    """Of a binary frame of a WebSocket, with a mask of zeros."""
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + size.to_bytes(8)
    return b"\x82" + length + bytes(4)


def websocket(ports: Ports) -> socket.socket:
    sock = tcp(ports["ws_port"])
    sock.sendall(SWITCH)
    heard = b""
    while not heard.endswith(b"\r\n\r\n"):
        heard += sock.recv(4096)
    return sock


def message_frames(
    size: int,
    sent: int,
    exchange: str = "",
    channel: int = 1,
    key: str = "hostile",
    headers: dict[str, Any] | None = None,
) -> bytes:
    """A message of ``size`` bytes, as far as its first ``sent``."""
    properties = encode_properties(Properties(headers=headers))
    head = m.method_frame(channel, m.BasicPublish(exchange, key)) + m.frame(
        FrameKind.HEADER, channel, content_header_payload(size, properties)
    )
    pieces = (min(FRAME, sent - at) for at in range(0, sent, FRAME))
    return head + b"".join(m.frame(FrameKind.BODY, channel, bytes(each)) for each in pieces)


def http_head(
    method: str, path: str, body: bytes = b"", content_type: str = "application/json"
) -> bytes:
    """A whole request."""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {GUEST}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def request(ports: Ports, method: str, path: str, body: object = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{ports['http_port']}{path}", data, method=method
    )
    asked.add_header("Authorization", GUEST)
    asked.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return bytes(answer.read())
