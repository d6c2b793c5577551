"""Log-ins with tokens: whose they are, how long, and what is remembered of them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from braidmq.model.errors import AccessRefused, BadRequest, Conflict
from braidmq.model.ids import TimestampMs
from braidmq.security import jwks
from braidmq.security.accounts import Accounts
from braidmq.security.jwt_keys import REFETCH_MS
from braidmq.security.jwt_settings import JwtSettings
from braidmq.security.logins import Logins
from braidmq.security.records import ADMINISTRATOR, TokenUser
from braidmq.security.refusals import TokenRefused
from braidmq.security.rights import Verb
from braidmq.security.token_logins import REMEMBERED_MAX, TokenLogins
from braidmq.security.tokens import USED_KEPT_MS, Tokens
from braidmq.storage.store import Store
from braidmq.testing.issuer import AUDIENCE, ISSUER, Issuer

NOW_MS = 1_800_000_000_000


class Time:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.ms)

    wall_ms = now_ms


class World:
    def __init__(self, store: Store, accounts: Accounts, path: Path) -> None:
        self.clock, self.store, self.accounts = Time(), store, accounts
        self.issuer = Issuer()
        self.file = path / "jwks.json"
        self.file.write_bytes(self.issuer.jwks())
        self.settings = JwtSettings(
            jwks=str(self.file), issuer=ISSUER, audience=AUDIENCE, leeway_s=0
        )
        self.tokens = Tokens(store, accounts)
        self.logins = TokenLogins(accounts, self.tokens, self.clock, self.settings)
        accounts.add_user("ann", "secret", ["monitoring"])
        accounts.set_permission("ann", "/", "", ".*", ".*")

    def token(self, user: str = "bob", scope: str = "", lasts_s: int = 60) -> str:
        return self.issuer.token(user, scope, exp=self.clock.ms / 1000 + lasts_s)

    async def log_in(self, text: str, name: str = "") -> TokenUser:
        return await self.logins.authenticate(name, text, True)

    async def refused(self, text: str, name: str = "") -> str:
        with pytest.raises(TokenRefused) as caught:
            await self.log_in(text, name)
        return caught.value.reason


@pytest.fixture
async def world(store: Store, accounts: Accounts, tmp_path: Path) -> AsyncIterator[World]:
    made = World(store, accounts, tmp_path)
    made.logins.start(asyncio.get_running_loop())
    await made.logins.jwks.learn()
    yield made
    made.logins.stop()


async def test_a_jwt_without_an_account_may_what_its_scopes_say(world: World) -> None:
    user = await world.log_in(world.token(scope="read:%2F/a* tag:monitoring openid"))
    assert (user.name, user.tags, user.has_account) == ("bob", {"monitoring"}, False)
    assert user.expires_ms == NOW_MS + 60_000
    grants = world.accounts.grants("bob", "/", user.scopes)
    assert grants.may_read("a")
    assert not grants.may_write("a")
    assert world.logins.verified == {"jwt": 1}


async def test_a_jwt_can_not_take_the_name_of_an_account(world: World) -> None:
    for name in ("ann", "guest"):
        assert await world.refused(world.token(name, "tag:administrator")) == "user"


async def test_with_accounts_scopes_only_narrow(world: World) -> None:
    settings = msgspec.structs.replace(world.settings, users="account")
    world.logins.replace(settings)
    user = await world.log_in(world.token("ann", "read:%2F/a tag:administrator tag:monitoring"))
    assert user.tags == {"monitoring"}
    grants = world.accounts.grants("ann", "/", user.scopes)
    assert grants.may_read("a")
    assert not grants.may_write("a")
    assert await world.refused(world.token("bob", "read:%2F/a")) == "user"
    world.logins.replace(msgspec.structs.replace(settings, scope_claim=""))
    user = await world.log_in(world.token("ann"))
    assert user.scopes is None
    assert user.expires_ms == NOW_MS + 60_000


async def test_the_name_beside_it_is_its_users_or_none(world: World) -> None:
    text = world.token()
    await world.log_in(text, "bob")
    assert await world.refused(text, "eve") == "user"
    _, own, _ = world.tokens.issue("ann", NOW_MS)
    assert (await world.log_in(own, "ann")).name == "ann"
    assert await world.refused(own, "guest") == "user"


async def test_what_was_verified_is_known_until_it_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = world.token()
    await world.log_in(text)
    monkeypatch.setattr(world.logins.jwks.ring, "find", None)  # nothing is verified any more
    world.clock.ms += 59_999
    user = await world.log_in(text)
    assert world.logins.has_ended(user) == ""
    monkeypatch.undo()
    world.clock.ms += 1
    assert world.logins.has_ended(user) == "the token has expired"
    assert await world.refused(text) == "expired"


async def test_memory_of_them_is_bounded(world: World) -> None:
    from braidmq.security.jwt_claims import Claims

    text = world.token()
    await world.log_in(text)
    for number in range(REMEMBERED_MAX):
        world.logins._claims[number.to_bytes(4, "big")] = Claims("x", (), NOW_MS + 1)
    await world.log_in(world.token("carl"))
    assert len(world.logins._claims) == REMEMBERED_MAX


async def test_keys_rotate(world: World) -> None:
    old = world.token()
    await world.log_in(old)
    world.clock.ms += REFETCH_MS
    world.issuer.rotate("two", "ES256")
    world.file.write_bytes(world.issuer.jwks())
    fetches = world.logins.jwks.fetches
    found = await asyncio.gather(*(world.log_in(world.token(f"user-{n}")) for n in range(20)))
    assert len(found) == 20
    assert world.logins.jwks.fetches == fetches + 1
    # The key of the old one is gone, and so is what was remembered of it.
    world.clock.ms += REFETCH_MS
    assert await world.refused(old) == "unknown-key"


async def test_a_flood_of_unknown_keys_is_one_question(world: World) -> None:
    strangers = [Issuer(f"wrong-{number}") for number in range(3)]
    texts = [each.token("eve", exp=NOW_MS / 1000 + 60) for each in strangers]
    world.clock.ms += REFETCH_MS
    fetches = world.logins.jwks.fetches
    for text in texts * 30:
        assert await world.refused(text) == "unknown-key"
    assert world.logins.jwks.fetches == fetches + 1
    assert world.logins.recognise("", world.token(), True) is not None


async def test_a_provider_that_can_not_be_reached_changes_nothing(world: World) -> None:
    world.file.unlink()
    world.clock.ms += REFETCH_MS
    assert await world.refused(Issuer("other").token("eve", exp=NOW_MS / 1000 + 60)) == (
        "unknown-key"
    )
    assert world.logins.jwks.failures == 1
    assert (await world.log_in(world.token())).name == "bob"


async def test_settings_can_change(world: World) -> None:
    text = world.token()
    await world.log_in(text)
    world.logins.replace(msgspec.structs.replace(world.settings, audience="other"))
    assert await world.refused(text) == "audience"
    world.logins.replace(JwtSettings())
    assert not world.logins.is_token(text)
    world.logins.replace(world.settings)
    await world.logins.jwks.learn()
    await world.log_in(text)


async def test_a_token_is_a_password(world: World) -> None:
    logins = Logins(world.accounts, world.logins)
    _, own, _ = world.tokens.issue("ann", NOW_MS, scopes=["read:%2F/a"])
    for secret in (own, own.encode(), world.token("bob")):
        name = "bob" if secret not in (own, own.encode()) else "ann"
        assert (await logins.authenticate("", secret, NOW_MS, "::1")).name == name
        assert isinstance(logins.recognise(name, secret, NOW_MS, "::1"), TokenUser)
    assert not isinstance(await logins.authenticate("ann", "secret", NOW_MS, "::1"), TokenUser)
    logins.close()


async def test_tokens_of_ours(world: World) -> None:
    info, text, _ = world.tokens.issue(
        "ann", NOW_MS, NOW_MS + 1000, name="laptop", scopes=["read:%2F/a", "tag:monitoring"]
    )
    assert (info.name, info.scopes, info.last_used_ms) == (
        *("laptop", ["read:%2F/a", "tag:monitoring"], None),
    )
    with pytest.raises(Conflict, match="laptop"):
        world.tokens.issue("ann", NOW_MS, name="laptop")
    with pytest.raises(BadRequest, match="scope"):
        world.tokens.issue("ann", NOW_MS, scopes=["everything"])
    user = await world.log_in(text)
    assert user.tags == {"monitoring"}
    assert user.scopes is not None
    assert not user.scopes.may(Verb.WRITE, "/", "a")
    assert world.tokens.token(info.id).last_used_ms == NOW_MS
    world.clock.ms += 1000
    assert world.logins.has_ended(user) == "the token has expired"
    assert await world.refused(text) == "expired"
    info, text, _ = world.tokens.issue("ann", NOW_MS)
    user = await world.log_in(text)
    world.tokens.revoke(info.id)
    assert world.logins.has_ended(user) == "the token was revoked"
    assert await world.refused(text) == "unknown"


async def test_the_last_use_is_kept_now_and_then(world: World) -> None:
    info, text, _ = world.tokens.issue("ann", NOW_MS)
    for wait_ms in (0, 1, USED_KEPT_MS - 2, 1, 5):
        world.clock.ms += wait_ms
        await world.log_in(text)
        assert world.tokens.token(info.id).last_used_ms == world.clock.ms
    restarted = Tokens(world.store, world.accounts)
    assert restarted.token(info.id).last_used_ms == NOW_MS + USED_KEPT_MS


async def test_a_stolen_database_has_no_secret(world: World) -> None:
    _, text, _ = world.tokens.issue("ann", NOW_MS, name="x", scopes=["read:%2F/a"])
    await world.log_in(text)
    jwt = world.token()
    await world.log_in(jwt)
    secret = text.rpartition("_")[2]
    kept = b"".join(
        key.encode() + value
        for table in ("users", "tokens", "permissions", "namespaces")
        for key, value in world.store.catalogue.items(table)
    )
    assert kept
    assert secret.encode() not in kept
    assert bytes.fromhex(secret) not in kept
    assert jwt.encode() not in kept


async def test_guest_stays_on_this_machine(world: World) -> None:
    _, text, _ = world.tokens.issue("guest", NOW_MS)
    with pytest.raises(AccessRefused, match="own machine"):
        await world.logins.authenticate("", text, False)
    assert ADMINISTRATOR in (await world.log_in(text)).tags


def test_redirects_are_not_followed() -> None:
    handler = jwks._NoRedirects()
    assert handler.redirect_request(None, None, 302, "", {}, "http://other") is None
