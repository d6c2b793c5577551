"""The checker accepts what is promised and reports every mutant of it."""

import sys
import threading
from collections.abc import Callable

import pytest

from braidmq.testing.crash.checker import check
from braidmq.testing.crash.history import (
    NOWHERE,
    Arrival,
    Fate,
    LatestRead,
    Life,
    Order,
    Placed,
    Promise,
    Reader,
    Strand,
    body_of,
    parse_body,
)

MS = 1_000_000
COUNT = 20


def history(
    *, once: bool = False, order: Order = "first", whole_units: bool = False, delay_ms: int = 0
) -> Strand:
    """Two publishers whose messages were all confirmed and came once, in order; units of five."""
    strand = Strand("strand")
    promise = Promise(once=once, order=order, whole_units=whole_units)
    reader = strand.new_reader("reader", promise)
    for index, publisher in enumerate(strand.new_publishers(2)):
        for number in range(COUNT):
            publisher.send(unit=index * 100 + number // 5)
            sent_ns = (number + 1) * 10 * MS
            publisher.sent_ns[number] = sent_ns
            publisher.due_ns[number] = sent_ns + delay_ms * MS if delay_ms else 0
            publisher.fate[number] = Fate.CONFIRMED
            publisher.confirmed_ns[number] = sent_ns + MS
    for number in range(COUNT):
        for index in range(2):
            at_ns = (number + 1) * 10 * MS + max(2, delay_ms) * MS
            reader.add(Arrival(index, number, at_ns, 1, index << 48 | number))
    return strand


def reader_of(strand: Strand) -> Reader:
    return strand.readers["reader"]


def arrivals(strand: Strand) -> list[Arrival]:
    return list(reader_of(strand))


def replace(strand: Strand, changed: list[Arrival]) -> None:
    old = reader_of(strand)
    new = strand.new_reader("reader", old.promise)
    for each in changed:
        new.add(each)
    new.settled = old.settled


def kinds(strand: Strand) -> set[str]:
    return {found.kind for found in check(strand)}


ORDERS: list[Order] = ["none", "first", "connection", "place"]


@pytest.mark.parametrize("order", ORDERS)
def test_a_history_as_promised_is_accepted(order: Order) -> None:
    assert check(history(once=True, order=order, whole_units=True, delay_ms=5)) == []


# --- mutants ---


def drop_one(strand: Strand) -> None:
    replace(strand, arrivals(strand)[:7] + arrivals(strand)[8:])


def repeat_one(strand: Strand) -> None:
    all_of_them = arrivals(strand)
    replace(strand, [*all_of_them, all_of_them[5]])


def swap_two_of_one_publisher(strand: Strand) -> None:
    changed = arrivals(strand)
    late_enough_ns = changed[-1].at_ns
    changed = [each._replace(at_ns=late_enough_ns) for each in changed]
    changed[4], changed[6] = changed[6], changed[4]
    replace(strand, changed)


def swap_two_places(strand: Strand) -> None:
    changed = arrivals(strand)
    one, other = changed[4].place, changed[6].place
    changed[4], changed[6] = (
        changed[4]._replace(place=other),
        changed[6]._replace(place=one),
    )
    replace(strand, changed)


def come_early(strand: Strand) -> None:
    changed = arrivals(strand)
    changed[9] = changed[9]._replace(at_ns=changed[9].at_ns - 400 * MS)
    for publisher in strand.publishers:
        for number in range(COUNT):
            publisher.sent_ns[number] -= 410 * MS
    replace(strand, changed)


def come_before_it_was_sent(strand: Strand) -> None:
    changed = arrivals(strand)
    changed[9] = changed[9]._replace(at_ns=1)
    replace(strand, changed)


def come_from_nobody(strand: Strand) -> None:
    replace(strand, [*arrivals(strand), Arrival(0, COUNT, 10_000 * MS, 1, NOWHERE)])


def come_damaged(strand: Strand) -> None:
    reader_of(strand).arrived("strand", body_of("strand", 0, 3)[:-1] + b"y")


def come_from_another_strand(strand: Strand) -> None:
    reader_of(strand).arrived("strand", body_of("other", 0, 3))


def abort_one(strand: Strand) -> None:
    strand.publishers[1].fate[8] = Fate.ABORTED


def lose_half_of_an_undecided_unit(strand: Strand) -> None:
    for number in range(5, 10):
        strand.publishers[0].fate[number] = Fate.UNKNOWN
    replace(strand, [each for each in arrivals(strand) if (each.publisher, each.number) != (0, 7)])


def settle_and_see_again(strand: Strand) -> None:
    reader = reader_of(strand)
    reader.settle(0, 3)
    reader.settled[3] = arrivals(strand)[-1].at_ns + MS
    again = Arrival(0, 3, arrivals(strand)[-1].at_ns + 2 * MS, 2, NOWHERE)
    replace(strand, [*arrivals(strand), again])


def place_elsewhere(strand: Strand) -> None:
    strand.placed.append(Placed(unit=1, place=6, messages=5))


MUTANTS: list[tuple[Callable[[Strand], None], str, Order]] = [
    (drop_one, "lost", "none"),
    (repeat_one, "twice", "first"),
    (swap_two_of_one_publisher, "order", "first"),
    (swap_two_of_one_publisher, "order", "connection"),
    (swap_two_places, "order", "place"),
    (come_early, "early", "none"),
    (come_before_it_was_sent, "invented", "none"),
    (come_from_nobody, "invented", "none"),
    (come_damaged, "invented", "none"),
    (come_from_another_strand, "invented", "none"),
    (abort_one, "aborted-visible", "none"),
    (lose_half_of_an_undecided_unit, "half", "none"),
    (settle_and_see_again, "settled-again", "none"),
    (place_elsewhere, "misplaced", "none"),
]


@pytest.mark.parametrize(("mutate", "kind", "order"), MUTANTS)
def test_a_mutant_is_reported_as_what_it_is(
    mutate: Callable[[Strand], None], kind: str, order: Order
) -> None:
    is_repeated = mutate is settle_and_see_again
    strand = history(once=not is_repeated, order=order, whole_units=True, delay_ms=20)
    mutate(strand)
    assert kinds(strand) == {kind}


def test_what_is_promised_at_least_once_may_come_again() -> None:
    strand = history(once=False)
    repeat_one(strand)
    assert check(strand) == []


def test_a_copy_that_its_publisher_sent_again_is_settled_for_itself() -> None:
    strand = history()
    reader = reader_of(strand)
    late_ns = arrivals(strand)[-1].at_ns
    reader.settle(0, 3, place=3)
    reader.settled[3] = late_ns + MS
    reader.add(Arrival(0, 3, late_ns + 2 * MS, 2, place=900))
    assert check(strand) == []
    reader.add(Arrival(0, 3, late_ns + 3 * MS, 2, place=3))
    assert kinds(strand) == {"settled-again"}


def test_repetitions_count_for_the_order_within_a_connection() -> None:
    strand = history(order="connection")
    repeat_one(strand)
    assert kinds(strand) == {"order"}
    strand = history(order="connection")
    again = [each._replace(connection=2, at_ns=each.at_ns + 900 * MS) for each in arrivals(strand)]
    replace(strand, arrivals(strand) + again)
    assert check(strand) == []


def test_what_was_never_answered_may_be_there_or_not() -> None:
    strand = history(once=True)
    strand.publishers[0].fate[3] = Fate.UNKNOWN
    assert check(strand) == []
    replace(strand, [each for each in arrivals(strand) if (each.publisher, each.number) != (0, 3)])
    assert check(strand) == []


def test_an_undecided_unit_may_be_missing_as_a_whole() -> None:
    strand = history(whole_units=True)
    for number in range(5, 10):
        strand.publishers[0].fate[number] = Fate.UNKNOWN
    kept = [each for each in arrivals(strand) if each.publisher or not 5 <= each.number < 10]
    replace(strand, kept)
    assert check(strand) == []


def test_messages_are_where_the_answer_said() -> None:
    strand = history()
    strand.placed.append(Placed(unit=1, place=5, messages=5))
    assert check(strand) == []


@pytest.mark.parametrize(
    ("asked_ms", "answered_ms", "number", "is_fine"),
    [
        (55, 56, 4, True),
        (55, 56, 3, False),
        (55, 56, 5, False),  # not even sent by then
        (55, 65, 5, True),
        (60.5, 60.8, 5, True),  # sent, and not confirmed
        (60.5, 60.8, 4, True),
        (5, 6, NOWHERE, True),
        (55, 56, NOWHERE, False),
        (900, 901, COUNT - 1, True),
        (900, 901, COUNT - 2, False),
    ],
)
def test_the_latest_value_is_the_last_confirmed_or_a_later_one(
    asked_ms: float, answered_ms: float, number: int, is_fine: bool
) -> None:
    strand = history()
    strand.latest.append(LatestRead(0, number, int(asked_ms * MS), int(answered_ms * MS)))
    assert kinds(strand) == (set() if is_fine else {"stale"})


def test_the_highest_priority_comes_first_within_a_drain() -> None:
    strand = Strand("strand")
    reader = strand.new_reader("reader", Promise(order="priority"))
    for publisher in strand.new_publishers(3):
        for number in range(2):
            publisher.send()
            publisher.sent_ns[number] = 1
            publisher.fate[number] = Fate.CONFIRMED
    drained = [(2, 0), (2, 1), (1, 0), (1, 1), (0, 0), (0, 1)]
    for publisher_index, number in drained:
        reader.add(Arrival(publisher_index, number, 10, 1, NOWHERE))
    assert check(strand) == []
    for later, drain in (((2, 0), 1), ((0, 0), 1)):
        replace(strand, [Arrival(*each, 10, 1, NOWHERE) for each in drained])
        reader_of(strand).add(Arrival(*later, 11, drain, NOWHERE))
        assert kinds(strand) == {"order"}


def test_a_finding_says_in_which_life_it_was() -> None:
    strand = history()
    drop_one(strand)
    lives = [Life(0, 45 * MS, "kill at random"), Life(46 * MS, 0, "last")]
    (found,) = check(strand, lives)
    assert found.text == (
        "reader never got message 1.3, sent in life 0 (kill at random), "
        "confirmed in life 0 (kill at random)"
    )


def test_problems_of_clients_are_findings() -> None:
    strand = history()
    strand.problem("its session was lost")
    assert [(found.kind, found.text) for found in check(strand)] == [
        ("problem", "its session was lost")
    ]


@pytest.mark.parametrize("number", [0, 5, 64, 127, 128, 1000])
def test_a_body_says_who_sent_it_and_that_it_is_whole(number: int) -> None:
    body = body_of("a-strand", 3, number)
    assert parse_body("a-strand", body) == (3, number)
    assert parse_body("a-strand", body + b"x") is None
    assert parse_body("a-strand", b"mark") is None


def add_rows(reader: Reader, number: int) -> None:
    for _ in range(5000):
        reader.add(Arrival(number, number, number, number, number))


def test_rows_stay_whole_though_several_threads_add_them() -> None:
    reader = Reader()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=add_rows, args=(reader, each)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert len(reader) == 4 * 5000
    assert all(len(set(arrival)) == 1 for arrival in reader)
