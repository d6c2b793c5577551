"""Who has the keys of a subscription whose order is kept."""

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from braidmq.engine.topics import Consumer


class KeySlots:
    """Key-ordered delivery: keys fall into slots, and a slot sticks to one consumer while any of
    its messages is unsettled after being delivered."""

    SLOTS: ClassVar[int] = 1024
    KNOWN_MAX: ClassVar[int] = 4096
    """Messages of a partition whose slots are known before they are delivered: some windows."""
    __slots__ = ("known", "owner", "pending", "slot_of", "unnoted")

    def __init__(self) -> None:
        self.owner: dict[int, Consumer] = {}
        self.pending: dict[int, dict[tuple[int, int], None]] = {}
        """By slot, what is in ``slot_of``."""
        self.slot_of: dict[tuple[int, int], int] = {}
        """(partition, offset) of messages that were delivered and are not settled."""
        self.known: dict[int, dict[int, int]] = {}
        """By partition and offset, slots that were read; an offset never means another message."""
        self.unnoted: dict[int, list[tuple[int, int]]] = {}
        """By partition, offsets that waited for their retry at a restart: their keys have still
        to be read, and until then nothing is handed out."""

    def known_in(self, partition: int) -> dict[int, int]:
        found = self.known.get(partition)
        if found is None:
            found = self.known[partition] = {}
        elif len(found) > self.KNOWN_MAX:
            found.clear()
        return found

    def delivered(self, partition: int, offset: int, slot: int, consumer: "Consumer") -> None:
        self.owner[slot] = consumer
        self.noted(partition, offset, slot)

    def noted(self, partition: int, offset: int, slot: int) -> None:
        if (partition, offset) not in self.slot_of:
            self.slot_of[partition, offset] = slot
            self.pending.setdefault(slot, {})[partition, offset] = None

    def settled(self, partition: int, offset: int) -> None:
        slot = self.slot_of.pop((partition, offset), None)
        if slot is None:
            return
        del self.pending[slot][partition, offset]
        if not self.pending[slot]:
            del self.pending[slot]
            self.owner.pop(slot, None)

    def forget(self, partition: int) -> None:
        """Nothing of a partition counts as delivered any more."""
        self.known.pop(partition, None)
        self.unnoted.pop(partition, None)
        for number, offset in [each for each in self.slot_of if each[0] == partition]:
            self.settled(number, offset)

    def gone(self, consumer: "Consumer") -> None:
        for slot in [slot for slot, owner in self.owner.items() if owner is consumer]:
            del self.owner[slot]
