import asyncio
import threading
from collections.abc import Iterator

import pytest

from braidmq.model.errors import AccessRefused, BadRequest
from braidmq.security import logins as logins_module
from braidmq.security.accounts import Accounts, Attempt
from braidmq.security.logins import Logins, TooManyLogins
from braidmq.security.passwords import verify_password

NOW = 1_700_000_000_000


@pytest.fixture
def logins(accounts: Accounts) -> Iterator[Logins]:
    made = Logins(accounts)
    yield made
    made.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Where each Argon2 ran."""
    seen: list[threading.Thread] = []
    real = Attempt.verify

    def counted(attempt: Attempt) -> bool:
        seen.append(threading.current_thread())
        return real(attempt)

    monkeypatch.setattr(Attempt, "verify", counted)
    return seen


async def test_a_fleet_that_comes_at_once_costs_one_argon2_beside_the_loop(
    logins: Logins, threads: list[threading.Thread]
) -> None:
    calls = [logins.authenticate("guest", "guest", NOW, "127.0.0.1") for _ in range(500)]
    users = await asyncio.gather(*calls)
    assert {user.name for user in users} == {"guest"}
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    assert not logins._running


async def test_one_who_gives_up_does_not_take_the_others_along(
    logins: Logins, threads: list[threading.Thread]
) -> None:
    first = asyncio.ensure_future(logins.authenticate("guest", "guest", NOW, "127.0.0.1"))
    second = asyncio.ensure_future(logins.authenticate("guest", "guest", NOW, "127.0.0.1"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).name == "guest"
    assert len(threads) == 1


async def test_a_wrong_password_is_refused_and_remembered(
    logins: Logins, threads: list[threading.Thread]
) -> None:
    for _ in range(3):
        with pytest.raises(AccessRefused):
            await logins.authenticate("guest", "wrong", NOW, "127.0.0.1")
    assert len(threads) == 1


async def test_more_than_can_be_checked_soon_are_turned_away(
    logins: Logins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins_module, "WAITING_MAX", 3)
    calls = [logins.authenticate("guest", f"guess {n}", NOW, "127.0.0.1") for n in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, TooManyLogins) for result in results) == 2
    assert (await logins.authenticate("guest", "guest", NOW, "127.0.0.1")).name == "guest"


async def test_hashing_beside_the_loop(logins: Logins) -> None:
    hashed = await logins.hash("secret")
    assert verify_password(hashed.encoded, b"secret")
    with pytest.raises(BadRequest):
        await logins.hash("")
