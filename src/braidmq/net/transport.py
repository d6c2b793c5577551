"""What a connection needs of whatever carries its bytes."""

from typing import Protocol

from braidmq.net.input_budget import InputShare


class Transport(Protocol):
    """What carries the bytes: TCP, or WebSocket over it."""

    host: str
    """The peer's address."""
    peer: str
    """The same with its port."""
    share: InputShare | None
    """Where it has counted what it keeps of a packet that is not whole."""
    receive_bytes: int
    """What is read at once."""

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
