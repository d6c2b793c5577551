"""Hold hostile conversations with a live node: ``python -m tests.fuzz.amqp --minutes 600``."""

import socket
import struct
import sys

from tests.fuzz.hostile import FRAME_MAX, OPEN, Conversation, conversation
from tests.fuzz.watching import NAMESPACE, WAIT_S, Found, Session, main

from braidmq.testing.live import LiveNode
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind


class Peer:
    """A socket, and the frames that come from it."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = bytearray()

    def send(self, data: bytes) -> bool:
        try:
            self.sock.sendall(data)
        except ConnectionError:
            return False
        return True

    def frame(self) -> tuple[int, int, bytes] | None:
        """None at the end. A silent broker is a finding: whoever asks expects something."""
        while True:
            if self._input.startswith(b"AMQP"):
                return None  # it answered with its version and will hang up
            if len(self._input) >= 7:
                kind, channel, size = struct.unpack_from(">BHI", self._input)
                if size > FRAME_MAX:
                    raise Found(f"a frame of {size} bytes")
                if len(self._input) >= size + 8:
                    if self._input[size + 7] != 0xCE:
                        raise Found("a frame without its end")
                    payload = bytes(self._input[7 : size + 7])
                    del self._input[: size + 8]
                    return kind, channel, payload
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionError:
                return None
            except TimeoutError:
                raise Found("neither an answer nor an end") from None
            if not data:
                if self._input:
                    raise Found(f"half a frame at the end: {bytes(self._input[:20])!r}")
                return None
            self._input += data

    def log_in(self, vhost: str) -> None:
        self.send(PROTOCOL_HEADER)
        for answer in (
            m.ConnectionStartOk({"capabilities": {"basic.nack": True}}, "PLAIN", b"\0guest\0guest"),
            m.ConnectionTuneOk(2047, FRAME_MAX, 0),
        ):
            self.frame()
            self.send(m.method_frame(0, answer))
        self.send(m.method_frame(0, m.ConnectionOpen(vhost)))
        self.send(b"".join(m.method_frame(channel, m.ChannelOpen()) for channel in OPEN))
        for _ in ("connection", *OPEN):
            if self.frame() is None:
                raise Found("a good login is refused")

    def end(self, how: str) -> None:
        if how == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class Neighbour:
    """It publishes and consumes all the while, and each message comes back, once and whole."""

    def __init__(self, port: int) -> None:
        self._peer = Peer(port)
        self._peer.log_in("/")
        self._number = 0
        for method in (m.QueueDeclare("n", exclusive=True), m.BasicConsume("n", no_ack=True)):
            self._peer.send(m.method_frame(1, method))
            self._peer.frame()

    def works(self) -> None:
        self._number += 1
        body = str(self._number).encode()
        publish = m.method_frame(1, m.BasicPublish("", "n"))
        header = struct.pack(">HHQH", 60, 0, len(body), 0)
        self._peer.send(publish + m.frame(2, 1, header) + m.frame(3, 1, body))
        got = [self._peer.frame() for _ in range(3)]
        if [each and each[0] for each in got] != [1, 2, 3] or got[2] is None or got[2][2] != body:
            raise Found(f"the neighbour got {got} for its message {self._number}")

    def close(self) -> None:
        self._peer.sock.close()


def hold(port: int, talk: Conversation) -> None:
    peer = Peer(port)
    try:
        if talk.logged_in:
            peer.log_in(NAMESPACE)
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
        listen(peer, talk.codes)
    finally:
        peer.end(talk.ending)


def listen(peer: Peer, wanted: tuple[int, ...]) -> None:
    """To the end, or to the close that is wanted."""
    while (frame := peer.frame()) is not None:
        kind, _, payload = frame
        if kind != FrameKind.METHOD:
            continue
        method = m.decode(payload)
        if isinstance(method, m.ConnectionClose):
            if method.reply_code == 541:
                raise Found(f"internal error: {method.reply_text}")
            if wanted and method.reply_code not in wanted:
                raise Found(f"{wanted} was due, not {method.reply_code} {method.reply_text}")
            peer.send(m.method_frame(0, m.ConnectionCloseOk()))
            wanted = ()
        elif isinstance(method, m.ChannelClose) and method.reply_code == 541:
            raise Found(f"internal error: {method.reply_text}")
    if wanted:
        raise Found(f"{wanted} was due, and it hung up without a word")


def session(node: LiveNode) -> Session:
    port = node.ports["amqp_port"]
    return Session(node, "amqp", Neighbour(port), lambda seed: hold(port, conversation(seed)))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", session))
