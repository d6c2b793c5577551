"""Where two logs part, against logs that are looked at entry by entry."""

from hypothesis import given
from hypothesis import strategies as st

from braidmq.cluster.log import Log, LogView, TermStart, is_history
from braidmq.cluster.shard import Term
from braidmq.model.ids import Lsn

Entries = list[tuple[int, int]]


def starts(entries: Entries) -> tuple[TermStart, ...]:
    found: list[TermStart] = []
    for lsn, (term, _) in enumerate(entries, 1):
        if term and (not found or found[-1].term != term):
            found.append(TermStart(Term(term), Lsn(lsn)))
    return tuple(found)


def view(entries: Entries) -> LogView:
    return LogView(last=Lsn(len(entries)), terms=starts(entries))


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[Entries, Entries]:
    """As elections make them: each leader goes on with one of the logs, and the other gets a part
    of that, and is cut where they part."""
    logs: list[Entries] = [[(0, number) for number in range(draw(st.integers(0, 3)))] for _ in "ab"]
    shortest = min(logs, key=len)
    logs = [list(shortest), list(shortest) + logs[0][len(shortest) :] + logs[1][len(shortest) :]]
    number = 100
    for term in range(1, draw(st.integers(1, 6))):
        leads = draw(st.integers(0, 1))
        leader, other = logs[leads], logs[1 - leads]
        size = draw(st.integers(1, 4))
        leader += [(term, number + each) for each in range(size)]
        number += size
        if draw(st.booleans()):
            kept = common(leader, other)
            del other[kept:]
            other += leader[kept : kept + draw(st.integers(0, len(leader) - kept))]
    return logs[0], logs[1]


def common(a: Entries, b: Entries) -> int:
    return next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


@given(two_logs())
def test_logs_agree_up_to_where_their_entries_do(logs: tuple[Entries, Entries]) -> None:
    ours, theirs = logs
    assert is_history(starts(ours), Lsn(len(ours)))
    agreed = Log(view(ours)).agreement(starts(theirs), Lsn(len(theirs)))
    assert agreed == common(ours, theirs)
    assert Log(view(theirs)).agreement(starts(ours), Lsn(len(ours))) == agreed


def test_a_cut_forgets_terms_that_began_behind_it() -> None:
    log = Log(view([(1, 1), (1, 2), (2, 3)]))
    log.cut(Lsn(2))
    assert (log.last, log.durable, log.term) == (2, 2, 1)
    log.append(Lsn(3), Lsn(5), [TermStart(Term(3), Lsn(4))])
    assert (log.last, log.durable, log.terms[-1]) == (5, 2, (3, 4))


def test_bytes_behind_an_entry_are_counted_as_far_as_they_are_known() -> None:
    log = Log(view([(1, 1), (1, 2)]))
    assert log.bytes_after(Lsn(2)) == 0
    assert log.bytes_after(Lsn(1)) is None
    for first in (3, 5, 7):
        log.append(Lsn(first), Lsn(first + 1), size=100)
    assert [log.bytes_after(Lsn(lsn)) for lsn in (1, 2, 3, 4, 6, 8)] == [
        None,
        300,
        300,
        200,
        100,
        0,
    ]
