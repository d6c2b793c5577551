import asyncio
from typing import Protocol

from braidmq.net.input_budget import InputShare
from braidmq.net.unsent_output import Unsent

RECEIVE_BYTES_MAX: int
SERVE_S: float

class Receiver(Protocol):
    """A connection, whatever it speaks."""

    @property
    def wanted_bytes(self) -> int:
        """The size of the packet that is not complete, 0 if that is not known."""

    def receive(self, data: memoryview, size: int) -> int:
        """Take whole packets from the front; returns how many bytes they had."""

    def pause_output(self, paused: bool) -> None:
        """The socket is full, or has room again."""

    def refuse_output(self, text: str) -> None:
        """The connection is cut off, because of what is unsent."""

    def lost(self) -> None: ...

class FastPath:
    """Who may take what came before the receiver is asked."""

class Poller:
    """The sockets of all links of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    unsent: Unsent | None
    """Where links have counted what their peers do not take."""
    serve_s: float
    """So long are links served at once; then whatever else the loop has to do comes first."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def close(self) -> None: ...

class TcpLink:
    host: str
    """The peer's address."""
    peer: str
    """The same with its port."""
    fast_path: FastPath | None
    share: InputShare | None
    """Where it has counted what it keeps of a packet that is not whole."""
    receive_bytes: int
    """What is read at once."""

    def __init__(
        self,
        poller: Poller,
        fd: int,
        host: str,
        port: int,
        receive_bytes: int,
        output_high_bytes: int,
    ) -> None: ...
    def start(self, receiver: Receiver) -> None: ...
    @property
    def is_closing(self) -> bool: ...
    @property
    def is_reading(self) -> bool: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int:
        """Handed to it, whether or not the socket took them yet."""

    @property
    def heard_s(self) -> float:
        """When something came last, by the loop's clock."""

    @property
    def unread(self) -> bytes: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def write(self, data: bytes) -> None: ...
    def refuse_output(self, text: str) -> None: ...
    def drop_input(self) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
