"""TLS on a link: records in any pieces, and every way to end."""

import asyncio
import ssl
from collections.abc import Callable, Iterator

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_tcp_link import RECEIVE_BYTES, Packets, Pair, packet

from braidmq.net.tls import TlsLink
from braidmq.net.tls_contexts import TlsContext
from braidmq.net.tls_handshakes import Handshakes, TlsPort
from braidmq.net.transport import Receiver
from braidmq.testing.certificates import Authority


class TlsPair(Pair):
    """A link with TLS, and a client of it on the socket at its other end."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, receiver: Packets, authority: Authority
    ) -> None:
        super().__init__(loop, receiver, TlsLink)
        self.receiver = receiver
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(authority.file))
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake(self, server: ssl.SSLContext, connect: Callable[[TlsLink], Receiver]) -> Handshakes:
        handshakes = Handshakes(self.loop, 10)
        assert isinstance(self.link, TlsLink)
        TlsPort(handshakes, "tls", TlsContext(server, (), None)).begin(self.link, connect)
        return handshakes

    async def establish(self, server: ssl.SSLContext) -> None:
        handshakes = self.shake(server, lambda _: self.receiver)
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self.push()
                self.incoming.write(await self.loop.sock_recv(self.peer, 1 << 16))
        await self.push()
        await self.until(lambda: handshakes.counts.done["tls"] == 1)

    async def push(self, cuts: tuple[int, ...] = ()) -> None:
        """Send what the client wrote, in pieces of these sizes and then the rest."""
        data, at = self.outgoing.read(), 0
        for cut in cuts:
            await self.say(data[at : at + cut])
            at += cut
            await asyncio.sleep(0)
        if data[at:]:
            await self.say(data[at:])

    async def read(self, size: int) -> bytes:
        got = b""
        async with asyncio.timeout(20):
            while len(got) < size:
                try:
                    more = self.tls.read(size - len(got))
                    if not more:
                        break
                    got += more
                except ssl.SSLWantReadError:
                    data = await self.loop.sock_recv(self.peer, 1 << 16)
                    if not data:
                        self.incoming.write_eof()
                    self.incoming.write(data)
        return got


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> ssl.SSLContext:
    pair = authority.for_node()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return context


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = uvloop.new_event_loop()
    yield made
    made.close()


SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(RECEIVE_BYTES // 2 - 8, RECEIVE_BYTES + 8),
    st.sampled_from([16_380, 16_384, 20_000, 200_000]),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(SIZES, max_size=12),
    writes=st.lists(st.integers(1, 30_000), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 6000), max_size=12),
    pausing=st.booleans(),
)
def test_any_records_in_any_pieces_give_the_same_packets(
    loop: asyncio.AbstractEventLoop,
    authority: Authority,
    server: ssl.SSLContext,
    sizes: list[int],
    writes: list[int],
    cuts: list[int],
    pausing: bool,
) -> None:
    sent = [bytes([number % 251]) * size for number, size in enumerate(sizes)]

    async def exchange() -> None:
        def on_packet(_: bytes) -> None:
            if pausing:
                receiver.link.pause()
                loop.call_soon(receiver.link.resume)

        receiver = Packets(on_packet)
        pair = TlsPair(loop, receiver, authority)
        await pair.establish(server)
        stream, at = b"".join(map(packet, sent)), 0
        for size in writes:
            if stream[at : at + size]:
                pair.tls.write(stream[at : at + size])
            at += size
        if stream[at:]:
            pair.tls.write(stream[at:])
        await pair.push(tuple(cuts))
        await pair.until(lambda: len(receiver.packets) == len(sent))
        assert receiver.packets == sent
        assert pair.link.received_bytes == len(stream)
        pair.link.abort()
        await pair.until(lambda: receiver.is_lost)
        pair.peer.close()
        pair.poller.close()

    loop.run_until_complete(exchange())


def test_one_byte_at_a_time(
    loop: asyncio.AbstractEventLoop, authority: Authority, server: ssl.SSLContext
) -> None:
    """The handshake, a record of 16 KiB, and records of one byte."""

    async def exchange() -> None:
        receiver = Packets()
        pair = TlsPair(loop, receiver, authority)
        handshakes = pair.shake(server, lambda _: receiver)
        with pytest.raises(ssl.SSLWantReadError):
            pair.tls.do_handshake()
        hello = pair.outgoing.read()
        for number in range(len(hello)):
            await pair.say(hello[number : number + 1])
            await asyncio.sleep(0)
        pair.incoming.write(await loop.sock_recv(pair.peer, 1 << 16))
        pair.tls.do_handshake()
        await pair.push()
        await pair.until(lambda: handshakes.counts.done["tls"] == 1)
        large = packet(b"x" * 16_380)
        pair.tls.write(large)
        record = pair.outgoing.read()
        for number in range(len(record)):
            await pair.say(record[number : number + 1])
            if number % 64 == 0:
                await asyncio.sleep(0)
        for one in packet(b"hello"):
            pair.tls.write(bytes([one]))
        await pair.push()
        await pair.until(lambda: len(receiver.packets) == 2)
        assert receiver.packets == [b"x" * 16_380, b"hello"]
        pair.link.abort()
        await pair.until(lambda: receiver.is_lost)
        pair.peer.close()
        pair.poller.close()

    loop.run_until_complete(exchange())


@pytest.mark.parametrize("how", ["close", "finish"])
def test_what_was_written_arrives_before_the_goodbye(
    loop: asyncio.AbstractEventLoop, authority: Authority, server: ssl.SSLContext, how: str
) -> None:
    async def exchange() -> None:
        receiver = Packets()
        pair = TlsPair(loop, receiver, authority)
        await pair.establish(server)
        data = bytes(range(256)) * 12_000
        pair.link.write(data)
        assert receiver.paused == [True]
        assert pair.link.sent_bytes == len(data)
        getattr(pair.link, how)()
        pair.link.write(b"not sent any more")
        assert await pair.read(len(data)) == data
        assert await pair.read(1) == b""
        pair.peer.close()
        await pair.until(lambda: receiver.is_lost)
        pair.poller.close()

    loop.run_until_complete(exchange())


def test_the_peers_goodbye(
    loop: asyncio.AbstractEventLoop, authority: Authority, server: ssl.SSLContext
) -> None:
    async def exchange() -> None:
        receiver = Packets()
        pair = TlsPair(loop, receiver, authority)
        await pair.establish(server)
        pair.tls.write(packet(b"last"))
        with pytest.raises(ssl.SSLWantReadError):
            pair.tls.unwrap()
        await pair.push()
        await pair.until(lambda: receiver.is_lost)
        assert receiver.packets == [b"last"]
        pair.incoming.write(await loop.sock_recv(pair.peer, 1 << 16))
        pair.tls.unwrap()  # it is told goodbye too
        pair.peer.close()
        pair.poller.close()

    loop.run_until_complete(exchange())


def test_bytes_that_are_no_record_end_just_that_link(
    loop: asyncio.AbstractEventLoop, authority: Authority, server: ssl.SSLContext
) -> None:
    async def exchange() -> None:
        receivers = [Packets(), Packets()]
        bad, good = (TlsPair(loop, each, authority) for each in receivers)
        for pair in (bad, good):
            await pair.establish(server)
        bad.tls.write(packet(b"x" * 100))
        record = bytearray(bad.outgoing.read())
        record[50] ^= 1
        await bad.say(bytes(record))
        await bad.until(lambda: receivers[0].is_lost)
        assert receivers[0].packets == []
        good.tls.write(packet(b"hello"))
        await good.push()
        await good.until(lambda: receivers[1].packets == [b"hello"])
        good.link.abort()
        await good.until(lambda: receivers[1].is_lost)
        for pair in (bad, good):
            pair.peer.close()
            pair.poller.close()

    loop.run_until_complete(exchange())


def test_a_crowd_of_handshakes_is_worked_on_in_slices(
    loop: asyncio.AbstractEventLoop, authority: Authority, server: ssl.SSLContext
) -> None:
    """Those who are connected are served between two of them."""

    async def exchange() -> None:
        count = 60
        receivers = [Packets() for _ in range(count)]
        pairs = [TlsPair(loop, each, authority) for each in receivers]
        handshakes = Handshakes(loop, 10)
        port = TlsPort(handshakes, "tls", TlsContext(server, (), None))
        for pair, receiver in zip(pairs, receivers, strict=True):
            assert isinstance(pair.link, TlsLink)
            port.begin(pair.link, lambda _, receiver=receiver: receiver)  # type: ignore[misc]
            with pytest.raises(ssl.SSLWantReadError):
                pair.tls.do_handshake()
            await pair.push()
        assert len(handshakes) == count
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        turn()
        for pair in pairs:
            pair.incoming.write(await loop.sock_recv(pair.peer, 1 << 16))
            pair.tls.do_handshake()
            await pair.push()
        await pairs[0].until(lambda: handshakes.counts.done["tls"] == count)
        assert turns >= 3
        assert len(handshakes) == 0
        for pair in pairs:
            pair.link.abort()
        await pairs[0].until(lambda: all(each.is_lost for each in receivers))
        for pair in pairs:
            pair.peer.close()
            pair.poller.close()

    loop.run_until_complete(exchange())


def test_handshakes_end_after_their_time_and_the_first_of_too_many(
    loop: asyncio.AbstractEventLoop,
    authority: Authority,
    server: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("braidmq.net.tls_handshakes.HANDSHAKES_MAX", 2)

    async def exchange() -> None:
        handshakes = Handshakes(loop, 0.2)
        port = TlsPort(handshakes, "tls", TlsContext(server, (), None))
        pairs = [TlsPair(loop, Packets(), authority) for _ in range(3)]
        for pair in pairs:
            assert isinstance(pair.link, TlsLink)
            port.begin(pair.link, lambda _: Packets())
        assert pairs[0].link.is_closing
        assert len(handshakes) == 2
        await pairs[0].until(lambda: all(each.link.is_closing for each in pairs))
        assert handshakes.counts.failed["tls"] == 3
        assert len(handshakes) == 0
        for pair in pairs:
            pair.peer.close()
            pair.poller.close()

    loop.run_until_complete(exchange())


def test_a_full_read_is_seen_as_one(
    loop: asyncio.AbstractEventLoop, authority: Authority, server: ssl.SSLContext
) -> None:
    """Connections read more at once when a read was as large as it may be."""

    async def exchange() -> None:
        sizes: list[int] = []

        class Sizes(Packets):
            def receive(self, data: memoryview, size: int) -> int:
                sizes.append(size)
                return size

        receiver = Sizes()
        pair = TlsPair(loop, receiver, authority)
        await pair.establish(server)
        for _ in range(100):
            pair.tls.write(b"x" * 1000)
        await pair.push()
        await pair.until_received(100_000)
        assert max(sizes) >= RECEIVE_BYTES
        pair.link.abort()
        await pair.until(lambda: receiver.is_lost)
        pair.peer.close()
        pair.poller.close()

    loop.run_until_complete(exchange())
