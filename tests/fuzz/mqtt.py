"""Hold hostile conversations with a live node: ``python -m tests.fuzz.mqtt --minutes 600``."""

import socket
import struct
import sys

from tests.fuzz.hostile_mqtt import Conversation, conversation
from tests.fuzz.watching import WAIT_S, Found, Session, main

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    Request,
    Subscribe,
    decode,
    encode,
)
from braidmq.wire.mqtt.text import Reader

LENGTH_BYTES_MAX = 4
UNKNOWN_VERSION = b"\x20\x02\x00\x01"
"""In words of 3.1.1, which say it to clients of every version."""


class Peer:
    """A socket, and the packets that come from it."""

    def __init__(self, port: int, version: int) -> None:
        self.version = version
        self.sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = bytearray()

    def send(self, data: bytes) -> bool:
        try:
            self.sock.sendall(data)
        except ConnectionError:
            return False
        return True

    def packet(self) -> Packet | None:
        """None at the end. A silent broker is a finding: whoever asks expects something."""
        while True:
            found = self._parse()
            if found is not None:
                return found
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError:
                return None
            except TimeoutError:
                raise Found("neither an answer nor an end") from None
            if not data:
                if self._input:
                    raise Found(f"half a packet at the end: {bytes(self._input[:20])!r}")
                return None
            self._input += data

    def _parse(self) -> Packet | None:
        data = bytes(self._input)
        length = next((n for n, byte in enumerate(data[1:5], 1) if byte < 0x80), 0)
        if not length:
            if len(data) > LENGTH_BYTES_MAX:
                raise Found(f"no remaining length: {data[:20]!r}")
            return None
        size = 1 + length + Reader(data, 1).variable()
        if len(data) < size:
            return None
        del self._input[:size]
        if data[:size] == UNKNOWN_VERSION:
            return ConnAck(False, Reason.UNSUPPORTED_PROTOCOL_VERSION)
        try:
            return decode(self.version, data[0] >> 4, data[0] & 15, data[1 + length : size])
        except MqttError as error:
            raise Found(f"a packet that can't be read: {data[:size]!r}: {error}") from None

    def end(self, how: str) -> None:
        if how == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Neighbour:
    """It publishes and receives all the while, and each message comes back, once and whole."""

    def __init__(self, port: int) -> None:
        self._peer = Peer(port, Version.V5)
        self._peer.send(encode(Connect(client_id="neighbour")))
        self._peer.send(encode(Subscribe(1, (Request("neighbour", 1),))))
        self._peer.packet()
        self._peer.packet()
        self._number = 0

    def works(self) -> None:
        self._number += 1
        payload = str(self._number).encode()
        self._peer.send(encode(Publish("neighbour", payload, 1, packet_id=1)))
        got = [self._peer.packet() for _ in range(2)]
        messages = [each for each in got if isinstance(each, Publish)]
        answers = [each for each in got if isinstance(each, PubAck)]
        if len(messages) != 1 or messages[0].payload != payload or answers != [PubAck(1)]:
            raise Found(f"the neighbour got {got} for its message {self._number}")
        self._peer.send(encode(PubAck(messages[0].packet_id)))

    def close(self) -> None:
        self._peer.sock.close()


def hold(port: int, talk: Conversation) -> None:
    peer = Peer(port, talk.version)
    try:
        if talk.opening:
            peer.send(talk.opening)
            answer = peer.packet()
            if not isinstance(answer, ConnAck) or answer.reason:
                raise Found(f"a good CONNECT is answered with {answer}")
        for piece in talk.pieces:
            if not peer.send(piece):
                break
        if talk.ending in ("drop", "reset"):
            return
        if talk.ending == "shut":
            try:
                peer.sock.shutdown(socket.SHUT_WR)
            except OSError:
                return
        listen(peer, talk.codes if talk.version == Version.V5 else ())
    finally:
        peer.end(talk.ending)


def listen(peer: Peer, wanted: tuple[int, ...]) -> None:
    """To the end, which a DISCONNECT with the reason that is wanted comes before."""
    while (packet := peer.packet()) is not None:
        reason = packet.reason if isinstance(packet, ConnAck | Disconnect) else Reason.SUCCESS
        if reason == Reason.UNSPECIFIED_ERROR:
            raise Found(f"an internal error: {packet}")
        if isinstance(packet, Disconnect):
            if wanted and reason not in wanted:
                raise Found(f"{wanted} was due, not {packet}")
            wanted = ()
    if wanted:
        raise Found(f"{wanted} was due, and it hung up without a word")


def session(node: LiveNode) -> Session:
    port = node.ports["mqtt_port"]
    return Session(node, "mqtt", Neighbour(port), lambda seed: hold(port, conversation(seed)))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", session))
