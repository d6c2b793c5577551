"""A protocol inside WebSocket: the payloads of binary frames are its stream of bytes."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import NamedTuple, cast

from websockets.datastructures import Headers
from websockets.exceptions import InvalidOrigin
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from braidmq.model.limits import KIB
from braidmq.net.input_budget import InputShare
from braidmq.net.tls_handshakes import ALERT, is_tls, note_tls
from braidmq.net.transport import BufferedReceiver, Transport
from braidmq.net.unsent_output import Unsent
from braidmq.net.web_origins import origin_allowed

PIECE_BYTES_MIN, PIECE_BYTES_MAX = 512, 256 * KIB
"""What is told apart at once, of small frames and of large ones."""

CONTROL_BYTES_MAX = 256
"""More than a closing frame has."""


class WebSocketOptions(NamedTuple):
    """What all WebSockets of a listener have in common."""

    subprotocol: Subprotocol
    allowed_origins: Sequence[str]
    message_bytes_max: int
    output_high_bytes: int
    """With so much unsent the receiver is told to pause its output."""
    output_bytes_max: int
    """With more unsent nothing is read."""
    read_s: float
    """What was read is worked on for so long at once."""
    work_in_background: Callable[[Iterator[object], str], None]
    """Takes the rest, a step at a time."""
    unsent: Unsent | None
    """None if what carries it counts that."""


class WebSocketTransport(asyncio.Protocol):
    """Packets may be cut anywhere by frames (MQTT-6.0.0-2): their payloads are one stream."""

    link = None
    transport: asyncio.Transport
    connection: BufferedReceiver

    def __init__(
        self,
        options: WebSocketOptions,
        listener: str,
        connect: Callable[[Transport], BufferedReceiver],
    ) -> None:
        self._options = options
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self.listener = listener
        self.host = self.peer = "?"
        self.certified_user: str | None = None
        self._protocol = _Handshake(options)
        self._raw = bytearray()
        """What came, before it is told apart."""
        self._is_late = False
        """There is some of that left."""
        self._piece_bytes = PIECE_BYTES_MIN
        self._pending = bytearray()
        self._receiving = False
        self._deaf = False
        self._kept_bytes = 0
        self._is_paused = self._waits = self._is_full = False
        self.share: InputShare | None = None
        self.receive_bytes = 0  # the loop's transport reads as much as it likes
        self.received_bytes = self.sent_bytes = 0
        self.heard_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.peer = peer[0], f"{peer[0]}:{peer[1]}"
        self.certified_user = transport.get_extra_info("certified_user")
        self.transport.set_write_buffer_limits(high=self._options.output_high_bytes)
        self.connection = self._connect(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self.drop_input()
        self.share = None
        if self._options.unsent is not None:
            self._options.unsent.note(self, 0)
        self.connection.lost()
        # What knows itself is freed only when garbage is collected, which is rarely.
        self._protocol.parser.close()
        del self.connection

    def pause_writing(self) -> None:
        self.connection.pause_output(True)

    def resume_writing(self) -> None:
        self._note_unsent()
        self._is_full = False
        self._resume_reading()
        self.connection.pause_output(False)

    @property
    def is_closing(self) -> bool:
        return self.transport.is_closing()

    @property
    def unread(self) -> bytes:
        return bytes(self._pending)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    def pause(self) -> None:
        self._is_paused = True
        self.transport.pause_reading()

    def resume(self) -> None:
        self._is_paused = False
        if not self.transport.is_closing():
            self._resume_reading()
            self._read_rest()

    def _wait(self) -> None:
        """Others hold too much that is not complete, or we do: somebody has to go first."""
        self._waits = True
        self.transport.pause_reading()
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        self._waits = False
        self._resume_reading()

    def _resume_reading(self) -> None:
        is_held = self._is_paused or self._waits or self._is_full or self._is_late
        if not is_held and not self.transport.is_closing():
            self.transport.resume_reading()

    def _note_unsent(self) -> None:
        """Have it counted what the peer does not take. Answers to pings are bounded, too: above
        what a connection may have unsent nothing is read that would have to be answered."""
        unsent_bytes = self.unsent_bytes
        if self._options.unsent is not None:
            self._options.unsent.note(self, unsent_bytes)
        if unsent_bytes > self._options.output_bytes_max and not self._is_full:
            self._is_full = True
            self.transport.pause_reading()

    def refuse_output(self, text: str) -> None:
        self.connection.refuse_output(text)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._protocol.state is State.CONNECTING and not self._raw and is_tls(data):
            note_tls(self.listener, self.peer)
            self.transport.write(ALERT)
            self.transport.close()
            return
        self._raw += data
        self._read(monotonic() + self._options.read_s)
        if self._raw and not self._is_late:
            self._is_late = True
            self.transport.pause_reading()
            self._options.work_in_background(self._catch_up(), f"frames of {self.peer}")

    def _catch_up(self) -> Iterator[None]:
        """Frames are told apart a slice at a time: of small ones there are thousands in a read."""
        try:
            while self._raw and not self.transport.is_closing():
                self._read(0.0)
                yield
        except Exception:
            self.transport.abort()
            raise
        self._raw.clear()
        self._is_late = False
        self._resume_reading()

    def _read(self, until: float) -> None:
        """As large a piece at once as does not take long."""
        read_s = self._options.read_s
        while self._raw:
            piece = bytes(self._raw[: self._piece_bytes])
            del self._raw[: self._piece_bytes]
            began = monotonic()
            self._read_piece(piece)
            now = monotonic()
            if now - began > read_s:
                self._piece_bytes = max(self._piece_bytes // 4, PIECE_BYTES_MIN)
            elif now - began < read_s / 8:
                self._piece_bytes = min(self._piece_bytes * 2, PIECE_BYTES_MAX)
            if now >= until:
                return

    def _read_piece(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._accept(event)
            else:
                self._take(cast(Frame, event))
        self._push()
        self.connection.limit_output()  # pings are answered too
        self._read_rest()
        self._note_kept()

    def _note_kept(self) -> None:
        """Have it counted what is kept of frames and packets that are not whole."""
        kept_bytes = len(self._raw) + len(self._pending) + len(self._protocol.reader.buffer)
        if self.share is not None:
            self.share.hold(kept_bytes - self._kept_bytes)
            self._kept_bytes = kept_bytes
            if kept_bytes and self.share.input_budget.is_over and not self._waits:
                self._wait()
        limit = CONTROL_BYTES_MAX if self._deaf else self.connection.input_bytes_max
        if kept_bytes > limit and not self._is_paused:
            # In the head of a request, before login, or after goodbye: nothing can be so large.
            self.transport.abort()

    def drop_input(self) -> None:
        self._deaf = True
        self._pending = bytearray()  # the other may be looked at just now
        self._protocol.reader.discard()
        if self.share is not None:
            self.share.hold(-self._kept_bytes)
        self._kept_bytes = 0

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._push()

    def _accept(self, request: Request) -> None:
        response = self._protocol.accept(request)
        if response.status_code == 101 and self._protocol.subprotocol is None:
            # MQTT-6.0.0-3
            name = self._options.subprotocol
            response = self._protocol.reject(400, f"the subprotocol must be {name}\n")
        self._protocol.send_response(response)

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.BINARY, Opcode.CONT):
            if not self._deaf:
                self._pending += frame.data
        elif frame.opcode is Opcode.TEXT:
            # MQTT-6.0.0-1
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "packets are sent in binary frames")

    def _push(self) -> None:
        """Send what the protocol wants sent: answers to pings, closing frames."""
        for data in self._protocol.data_to_send():
            if data:
                self.transport.write(data)
            elif self.transport.can_write_eof():
                self.transport.write_eof()
        self._note_unsent()
        if self._protocol.close_expected() and self._protocol.state is State.CLOSED:
            self.transport.close()

    def _read_rest(self) -> None:
        if self._pending and not self._receiving:
            self._receiving = True
            self.heard_s = self._loop.time()
            try:
                used = self.connection.receive(self._pending, len(self._pending))
            finally:
                self._receiving = False
            self.received_bytes += used
            del self._pending[:used]

    def write(self, data: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self.sent_bytes += len(data)
            self._protocol.send_binary(data)
            self._push()

    def finish(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self.resume()
            self._push()
        else:
            self.transport.close()

    def close(self) -> None:
        self.finish()

    def abort(self) -> None:
        self.transport.abort()


class _Handshake(ServerProtocol):
    """The opening of a WebSocket, with our rule of origins: a page of any web site could speak to
    a broker on the machine of whoever looks at it."""

    def __init__(self, options: WebSocketOptions) -> None:
        super().__init__(
            subprotocols=[options.subprotocol],
            select_subprotocol=_select_subprotocol,
            max_size=options.message_bytes_max,
        )
        self._allowed = options.allowed_origins

    def process_origin(self, headers: Headers) -> Origin | None:
        origin = headers.get("Origin")
        if origin is not None and not origin_allowed(origin, self._allowed):
            raise InvalidOrigin(origin)
        return None if origin is None else Origin(origin)


def _select_subprotocol(
    protocol: ServerProtocol, offered: Sequence[Subprotocol]
) -> Subprotocol | None:
    ours = protocol.available_subprotocols
    return next((each for each in ours or () if each in offered), None)
