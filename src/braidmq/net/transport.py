"""The two sides of an open connection.

A ``Transport`` carries the bytes of one peer: TCP, or something over it. A ``Receiver`` is what
makes sense of them: a connection of some protocol. Neither knows more of the other than this.
"""

from typing import TYPE_CHECKING, Protocol

from braidmq.net.input_budget import InputShare
from braidmq.record.buffer import Buffer

if TYPE_CHECKING:
    from braidmq.net.tcp import TcpLink


class Transport(Protocol):
    host: str
    """The peer's address."""
    peer: str
    """The same with its port."""
    listener: str
    """The name of the listener that accepted it."""
    certified_user: str | None
    """Whom the certificate stands for that the peer showed, if it showed one."""
    share: InputShare | None
    """Where it has counted what it keeps of a packet that is not whole."""
    receive_bytes: int
    """What is read at once."""

    @property
    def link(self) -> "TcpLink | None":
        """What compiled code may read and write directly; None for a transport that frames."""

    @property
    def is_closing(self) -> bool: ...
    @property
    def unread(self) -> bytes:
        """The beginning of a packet, as far as it came."""

    @property
    def unsent_bytes(self) -> int: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def heard_s(self) -> float:
        """When something came last, by the loop's clock."""

    def write(self, data: bytes) -> None: ...
    def pause(self) -> None:
        """Read no more until ``resume``."""

    def resume(self) -> None:
        """Read on, first what was left unread."""

    def drop_input(self) -> None:
        """Take no notice of anything that comes from now on, or came and is not taken yet."""

    def finish(self) -> None:
        """Say goodbye; the peer closes, or is cut off after a while."""

    def close(self) -> None:
        """Once everything is sent."""

    def abort(self) -> None: ...


class Receiver(Protocol):
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


class BufferedReceiver(Receiver, Protocol):
    """One whose transport may have buffers of its own."""

    @property
    def input_bytes_max(self) -> int:
        """What such a transport may keep: a frame of its own, and a packet."""

    def receive(self, data: Buffer, size: int) -> int: ...
    def limit_output(self) -> None:
        """Read no more of a peer that does not read: the transport has answered it, too."""


class Carried(Protocol):
    """A connection, as its listener knows it."""

    @property
    def transport(self) -> Transport: ...
