"""Output that is not taken: how much of it all connections may have together, and who has to go.

What a peer asks for is its own to read. Deliveries stop, and nothing more is read from it, when it
does not; but each of a crowd may have some unsent, and one message may be large. That is memory,
and counts as such. Above the limit whoever has taken nothing for longest is cut off, until the rest
fits; the last one may go on, however large its message is.
"""

from typing import Protocol

from braidmq.model.limits import KIB, MIB

NOTED_BYTES = 64 * KIB
"""Who has less unsent is not looked at: the next moment it may be gone."""

BYTES_MIN = 64 * MIB
"""A node with little memory still has some slow readers."""

PART_OF_MEMORY = 8


class Sender(Protocol):
    def refuse_output(self, text: str) -> None:
        """Cut it off, with all that is unsent."""


class Unsent:
    def __init__(self, memory_bytes: int) -> None:
        self.resize(memory_bytes)
        self.held_bytes = 0
        self.refused = 0
        self._held: dict[Sender, int] = {}
        """By when the peer took something last."""
        self._is_refusing = False

    def resize(self, memory_bytes: int) -> None:
        self.bytes_max = max(memory_bytes // PART_OF_MEMORY, BYTES_MIN)

    def __len__(self) -> int:
        return len(self._held)

    def note(self, sender: Sender, size: int) -> None:
        """It has so much unsent now."""
        if size < NOTED_BYTES:
            size = 0
        before = self._held.get(sender, 0)
        if size < before:
            del self._held[sender]
        if size:
            self._held[sender] = size
        self.held_bytes += size - before
        if self.held_bytes > self.bytes_max and not self._is_refusing:
            self._refuse()

    def _refuse(self) -> None:
        self._is_refusing = True
        try:
            while self.held_bytes > self.bytes_max and len(self._held) > 1:
                sender, size = next(iter(self._held.items()))
                text = (
                    f"{self.held_bytes} bytes are unsent on all connections: {self.bytes_max} may"
                    f" be, and this one, with {size}, has read nothing for longest"
                )
                self.refused += 1
                self.note(sender, 0)
                sender.refuse_output(text)
        finally:
            self._is_refusing = False
