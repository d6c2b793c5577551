"""Who guesses waits longer and longer, and nobody else does."""

import pytest

from braidmq.security.failed_logins import (
    ADDRESS_FACTOR,
    FORGOTTEN_MS,
    KNOWN_MAX,
    FailedLogins,
    TooManyFailures,
)

NOW_MS = 1_700_000_000_123


@pytest.fixture
def failed() -> FailedLogins:
    made = FailedLogins()
    made.replace(3, 60, limit_loopback=False)
    return made


def waits(failed: FailedLogins, user: str, host: str, now_ms: int, loopback: bool = False) -> int:
    try:
        failed.require_calm(user, host, now_ms, loopback=loopback)
    except TooManyFailures as error:
        return error.wait_ms
    return 0


def guess(failed: FailedLogins, user: str, host: str, now_ms: int, loopback: bool = False) -> None:
    failed.failed(user, host, now_ms, loopback=loopback)


def test_waits_double_up_to_the_longest(failed: FailedLogins) -> None:
    seen, now_ms = [], NOW_MS
    for _ in range(12):
        guess(failed, "ann", "h", now_ms)
        wait_ms = waits(failed, "ann", "h", now_ms)
        assert waits(failed, "ann", "h", now_ms + wait_ms) == 0
        seen.append(wait_ms)
        now_ms += wait_ms
    assert seen == [0, 0, *(1000 * min(2**n, 60) for n in range(10))]
    assert failed.held_back == 10


def test_another_address_and_another_user_do_not_wait(failed: FailedLogins) -> None:
    for _ in range(5):
        guess(failed, "ann", "h", NOW_MS)
    assert waits(failed, "ann", "h", NOW_MS)
    assert not waits(failed, "ann", "elsewhere", NOW_MS), "nobody can lock out a user"
    assert not waits(failed, "bob", "h", NOW_MS)


def test_an_address_that_tries_many_users_waits_with_all_of_them(failed: FailedLogins) -> None:
    for number in range(3 * ADDRESS_FACTOR):
        assert not waits(failed, "bob", "h", NOW_MS)
        guess(failed, f"user {number}", "h", NOW_MS)
    assert waits(failed, "bob", "h", NOW_MS) == 1000


def test_who_logs_in_begins_anew(failed: FailedLogins) -> None:
    for _ in range(2):
        guess(failed, "ann", "h", NOW_MS)
    failed.succeeded("ann", "h")
    for _ in range(2):
        guess(failed, "ann", "h", NOW_MS)
    assert not waits(failed, "ann", "h", NOW_MS)


def test_failures_of_long_ago_do_not_count(failed: FailedLogins) -> None:
    for _ in range(9):
        guess(failed, "ann", "h", NOW_MS)
    later_ms = NOW_MS + FORGOTTEN_MS + 1
    guess(failed, "ann", "h", later_ms)
    assert not waits(failed, "ann", "h", later_ms)


@pytest.mark.parametrize("off", ["the machine's own", "settings"])
def test_it_is_off(failed: FailedLogins, off: str) -> None:
    if off == "settings":
        failed.replace(0, 60, limit_loopback=True)
    loopback = off != "settings"
    for _ in range(100):
        guess(failed, "ann", "h", NOW_MS, loopback)
    assert not waits(failed, "ann", "h", NOW_MS, loopback)


def test_what_is_known_is_bounded(failed: FailedLogins) -> None:
    for number in range(KNOWN_MAX + 100):
        guess(failed, "ann", f"host {number}", NOW_MS)
    assert len(failed._known) == KNOWN_MAX
