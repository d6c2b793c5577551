"""Output that nobody reads: counted, bounded, and who reads nothing goes first."""

from braidmq.model.limits import GIB, MIB
from braidmq.net.unsent_output import BYTES_MIN, NOTED_BYTES, Unsent


class Sender:
    def __init__(self, unsent: Unsent) -> None:
        self.unsent = unsent
        self.refused = ""

    def has(self, size: int) -> None:
        self.unsent.note(self, size)

    def refuse_output(self, text: str) -> None:
        self.refused = text
        self.has(0)


def test_a_part_of_the_memory_may_be_unsent() -> None:
    assert Unsent(8 * GIB).bytes_max == GIB
    assert Unsent(0).bytes_max == BYTES_MIN


def test_what_is_unsent_counts_until_it_is_taken() -> None:
    unsent = Unsent(0)
    one, other = Sender(unsent), Sender(unsent)
    one.has(10 * MIB)
    other.has(5 * MIB)
    assert unsent.held_bytes == 15 * MIB
    one.has(2 * MIB)
    other.has(0)
    assert unsent.held_bytes == 2 * MIB
    one.has(NOTED_BYTES - 1)
    assert (unsent.held_bytes, len(unsent)) == (0, 0)


def test_who_has_taken_nothing_for_longest_goes_first() -> None:
    unsent = Unsent(0)
    reader, sleeper, newcomer = (Sender(unsent) for _ in range(3))
    reader.has(30 * MIB)
    sleeper.has(20 * MIB)
    reader.has(29 * MIB)
    newcomer.has(20 * MIB)
    assert [bool(each.refused) for each in (reader, sleeper, newcomer)] == [False, True, False]
    assert unsent.held_bytes == 49 * MIB
    assert unsent.refused == 1


def test_the_last_one_may_have_as_much_as_its_message_is_large() -> None:
    unsent = Unsent(0)
    alone = Sender(unsent)
    alone.has(2 * BYTES_MIN)
    assert not alone.refused
    other = Sender(unsent)
    other.has(MIB)
    assert alone.refused
    assert unsent.held_bytes == MIB
