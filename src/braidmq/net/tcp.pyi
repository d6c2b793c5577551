import asyncio
from collections.abc import Callable

from braidmq.net.input_budget import InputShare
from braidmq.net.transport import Receiver
from braidmq.net.unsent_output import Unsent

RECEIVE_BYTES_MAX: int
SERVE_S: float

def accept(listener: int) -> tuple[int, str, int] | None:
    """The next connection that waits: its file, the peer's address and port; None if there is
    none. Raises OSError."""

class FastPath:
    """Who may take what came before the receiver is asked."""

class Poller:
    """The sockets of all links of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    unsent: Unsent | None
    """Where links have counted what their peers do not take."""
    on_tls: Callable[[TcpLink], None] | None
    """Told of a plain link whose peer speaks TLS."""
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
    listener: str
    """The name of the listener that accepted it."""
    certified_user: str | None
    """Whom the certificate stands for that the peer showed, if it showed one."""
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
    @property
    def link(self) -> TcpLink: ...
    @property
    def local(self) -> tuple[str, int] | None:
        """Our own address and port."""

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
