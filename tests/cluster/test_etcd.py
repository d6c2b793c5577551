"""The client of etcd against a real one: of one member, of three, with passwords, over TLS."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from braidmq.client.tls import TlsOptions
from braidmq.cluster.etcd import (
    Away,
    Changes,
    Compare,
    Delete,
    Etcd,
    EtcdAway,
    EtcdRefused,
    EtcdSettings,
    LeaseGone,
    LeaseId,
    Listing,
    Put,
    Unanswered,
    absent,
    bound_to,
    unchanged,
)
from braidmq.model.errors import BadSetting
from braidmq.testing.certificates import Authority
from braidmq.testing.etcd import LiveEtcd, has_etcd, live_etcd
from braidmq.testing.live import free_ports

pytestmark = pytest.mark.skipif(not has_etcd(), reason="no etcd here: apt install etcd-server")

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveEtcd]:
    with live_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
async def etcd(server: LiveEtcd) -> AsyncIterator[Etcd]:
    async with client(*server.urls) as etcd:
        yield etcd


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/braid/{request.node.name}/"


@asynccontextmanager
async def client(*urls: str, **settings: Any) -> AsyncIterator[Etcd]:
    etcd = Etcd(EtcdSettings(urls, **{"timeout_s": PATIENCE_S, **settings}))
    try:
        yield etcd
    finally:
        await etcd.close()


async def seen(events: AsyncIterator[Any], wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        async for event in events:
            if wanted(event):
                return event
    raise AssertionError("the watch ended")


async def test_swap(etcd: Etcd, prefix: str) -> None:
    key = prefix + "state"
    assert await etcd.get(key) is None
    first = await etcd.swap([absent(key)], [Put(key, b"one")])
    assert first.succeeded
    kept = await etcd.get(key)
    assert kept is not None
    assert (kept.value, kept.revision, kept.lease) == (b"one", first.revision, 0)

    assert not (await etcd.swap([absent(key)], [Put(key, b"other")])).succeeded
    second = await etcd.swap([unchanged(key, kept.revision)], [Put(key, b"two")])
    assert second.succeeded
    assert second.revision > first.revision
    assert not (await etcd.swap([unchanged(key, kept.revision)], [Put(key, b"three")])).succeeded
    after = await etcd.get(key)
    assert after is not None
    assert after.value == b"two"


async def test_all_of_a_swap_or_nothing(etcd: Etcd, prefix: str) -> None:
    here, there = prefix + "here", prefix + "there"
    await etcd.swap([], [Put(here, b"x")])
    refused = await etcd.swap([absent(there), absent(here)], [Put(there, b"y"), Delete(here)])
    assert not refused.succeeded
    assert (await etcd.below(prefix)).kept.keys() == {here}
    taken = await etcd.swap([absent(there)], [Put(there, b"y"), Delete(here)])
    assert taken.succeeded
    assert (await etcd.below(prefix)).kept.keys() == {there}


async def test_bytes_come_back(etcd: Etcd, prefix: str) -> None:
    value, key = bytes(range(256)) * 100, prefix + "a b/ü"
    await etcd.swap([], [Put(key, value), Put(prefix + "empty", b"")])
    kept = (await etcd.below(prefix)).kept
    assert {key: each.value for key, each in kept.items()} == {key: value, prefix + "empty": b""}


async def test_below_is_not_beside(etcd: Etcd, prefix: str) -> None:
    beside = prefix[:-1] + "0"  # the character after the slash
    await etcd.swap([], [Put(prefix + "a", b""), Put(beside, b""), Put(prefix[:-1], b"")])
    assert (await etcd.below(prefix)).kept.keys() == {prefix + "a"}


async def test_keys_go_with_their_lease(etcd: Etcd, prefix: str) -> None:
    key = prefix + "node"
    lease = await etcd.grant(30)
    await etcd.swap([absent(key)], [Put(key, b"me", lease)])
    kept = await etcd.get(key)
    assert kept is not None
    assert kept.lease == lease
    assert (await etcd.swap([bound_to(key, lease)], [Put(prefix + "mine", b"")])).succeeded
    assert not (await etcd.swap([bound_to(key, lease + 1)], [Put(prefix + "no", b"")])).succeeded
    assert await etcd.keep_alive(lease) == 30
    await etcd.revoke(lease)
    assert await etcd.get(key) is None
    with pytest.raises(LeaseGone):
        await etcd.keep_alive(lease)
    await etcd.revoke(lease)  # it has ended already
    with pytest.raises(LeaseGone):
        await etcd.swap([], [Put(key, b"", lease)])


async def test_a_lease_that_nobody_keeps_ends(etcd: Etcd, prefix: str) -> None:
    lease = await etcd.grant(1)
    await etcd.swap([], [Put(prefix + "node", b"", lease)])
    await seen(etcd.watch(prefix), lambda each: isinstance(each, Changes))
    assert await etcd.get(prefix + "node") is None


async def test_watch(etcd: Etcd, prefix: str) -> None:
    key = prefix + "state"
    await etcd.swap([], [Put(key, b"0")])
    events = etcd.watch(prefix)
    listing = await anext(events)
    assert isinstance(listing, Listing)
    assert listing.kept[key].value == b"0"

    put = await etcd.swap([], [Put(key, b"1"), Put(prefix + "other", b"2")])
    await etcd.swap([], [Put("/beside", b"")])
    changes = await anext(events)
    assert isinstance(changes, Changes)
    assert changes.revision == put.revision
    found = {name: each and each.value for name, each in changes.kept.items()}
    assert found == {key: b"1", prefix + "other": b"2"}
    await etcd.swap([], [Delete(key)])
    gone = await anext(events)
    assert isinstance(gone, Changes)
    assert gone.kept == {key: None}
    await events.aclose()


async def test_a_watch_that_is_behind_lists_anew(etcd: Etcd, server: LiveEtcd, prefix: str) -> None:
    """What it would go on from is compacted away."""
    for number in range(3):
        last = await etcd.swap([], [Put(prefix + "state", b"%d" % number)])
    post(server.urls[0], "/v3/kv/compaction", {"revision": str(last.revision)})
    found = [each async for each in etcd._changes(prefix, 1)]
    assert found == []


async def test_nobody_there() -> None:
    etcd = Etcd(EtcdSettings((f"http://127.0.0.1:{free_ports(1)[0]}",)))
    with pytest.raises(EtcdAway) as away:
        await etcd.swap([], [Put("a", b"")])
    # It was sent to nobody: there is no doubt.
    assert not isinstance(away.value, Unanswered)
    first = await anext(etcd.watch("a"))
    assert isinstance(first, Away)


async def test_somebody_else_there() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with other:
        port = other.sockets[0].getsockname()[1]
        async with client(f"http://127.0.0.1:{port}") as etcd:
            with pytest.raises(EtcdRefused, match="none of etcd's"):
                await etcd.get("a")


async def test_a_swap_that_is_not_answered_is_not_sent_again() -> None:
    """It may have been done. Reads are asked of the next endpoint."""
    asked: list[bytes] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    servers = [await asyncio.start_server(silent, "127.0.0.1", 0) for _ in range(2)]
    urls = tuple(f"http://127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers)
    async with client(*urls) as etcd:
        with pytest.raises(Unanswered):
            await etcd.swap([], [Put("a", b"")])
        assert len(asked) == 1
        with pytest.raises(EtcdAway):
            await etcd.get("a")
        assert len(asked) == 3
    for each in servers:
        each.close()


@pytest.mark.parametrize("url", ["127.0.0.1:2379", "ftp://a", "http://", "http://a/b"])
def test_endpoints_that_are_none(url: str) -> None:
    with pytest.raises(BadSetting):
        Etcd(EtcdSettings((url,)))
    with pytest.raises(BadSetting):
        Etcd(EtcdSettings(()))


async def test_members_come_and_go(tmp_path: Path) -> None:
    with live_etcd(tmp_path, members=3) as server:
        etcd = Etcd(EtcdSettings(server.urls, timeout_s=PATIENCE_S / 10))
        events = etcd.watch("/braid/")
        assert isinstance(await anext(events), Listing)
        server.members[0].kill()
        lost = await seen(events, lambda each: isinstance(each, Away | Listing))
        assert isinstance(lost, Away)
        # A new leader among the two that are left takes its time.
        again = await seen(events, lambda each: isinstance(each, Listing))
        assert again.kept == {}
        await until_swapped(etcd, [absent("/braid/x")], [Put("/braid/x", b"1")])
        changes = await seen(events, lambda each: not isinstance(each, Away))
        assert changes.kept["/braid/x"].value == b"1"

        server.members[1].kill()  # one of three: nothing can be decided
        with pytest.raises(EtcdAway):
            await etcd.swap([absent("/braid/y")], [Put("/braid/y", b"2")])
        server.members[0].start()
        await until_swapped(etcd, [], [Put("/braid/z", b"3")])
        assert (await etcd.below("/braid/")).kept["/braid/z"].value == b"3"
        await events.aclose()
        await etcd.close()


async def until_swapped(etcd: Etcd, compares: list[Compare], changes: list[Put | Delete]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await etcd.swap(compares, changes)
            except EtcdAway:
                continue
            return


async def test_passwords(tmp_path: Path) -> None:
    with live_etcd(tmp_path) as server:
        url = server.urls[0]
        for path, body in (
            ("/v3/auth/user/add", {"name": "root", "password": "top"}),
            ("/v3/auth/user/grant", {"user": "root", "role": "root"}),
            ("/v3/auth/user/add", {"name": "braid", "password": "pass"}),
            ("/v3/auth/role/add", {"name": "braid"}),
            ("/v3/auth/role/grant", {"name": "braid", "perm": below("/braid/")}),
            ("/v3/auth/user/grant", {"user": "braid", "role": "braid"}),
            ("/v3/auth/enable", {}),
        ):
            post(url, path, body)

        async with client(url, user="braid", password="pass") as etcd:
            assert (await etcd.swap([], [Put("/braid/a", b"1")])).succeeded
            with pytest.raises(EtcdRefused, match="permission denied"):
                await etcd.swap([], [Put("/other", b"1")])
            async with aclosing(etcd.watch("/braid/")) as events:
                assert isinstance(await anext(events), Listing)
            etcd._token = "expired.1"
            assert await etcd.get("/braid/a") is not None
        async with client(url) as nobody:
            with pytest.raises(EtcdRefused, match="user name is empty"):
                await nobody.get("/braid/a")
        async with client(url, user="braid", password="wrong") as other:
            with pytest.raises(EtcdRefused, match="authentication failed"):
                await other.get("/braid/a")


async def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with live_etcd(tmp_path, authority=authority) as server:
        mine = authority.issue("braid", client=True)
        options = TlsOptions(str(authority.file), str(mine.cert), str(mine.key))
        etcd = Etcd(EtcdSettings(server.urls, tls=options, timeout_s=PATIENCE_S))
        assert (await etcd.swap([], [Put("/braid/a", b"1")])).succeeded
        events = etcd.watch("/braid/")
        assert isinstance(await anext(events), Listing)
        await etcd.swap([], [Put("/braid/a", b"2")])
        changes = await anext(events)
        assert isinstance(changes, Changes)
        await events.aclose()
        await etcd.close()
        for trusted in (TlsOptions(str(authority.file)), TlsOptions()):
            async with client(*server.urls, tls=trusted) as stranger:
                with pytest.raises(EtcdAway):
                    await stranger.get("/braid/a")


async def test_a_lease_outlives_an_endpoint(server: LiveEtcd) -> None:
    """The first endpoint is nobody: the next one is asked, and asked first from then on."""
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    etcd = Etcd(EtcdSettings((nobody, *server.urls), timeout_s=PATIENCE_S))
    lease = await etcd.grant(30)
    assert await etcd.keep_alive(LeaseId(lease)) == 30
    await etcd.revoke(lease)
    await etcd.close()


def below(prefix: str) -> dict[str, str]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    key, range_end = (base64.b64encode(each.encode()).decode() for each in (prefix, end))
    return {"permType": "READWRITE", "key": key, "range_end": range_end}


def post(url: str, path: str, body: object) -> None:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE_S):
        pass
