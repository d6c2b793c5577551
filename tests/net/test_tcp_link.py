"""The link between a socket and a connection: bytes in any pieces, and every way to end."""

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.net.input_budget import InputBudget
from braidmq.net.tcp import Poller, TcpLink

RECEIVE_BYTES = 4096
HIGH_BYTES = 64 << 10


class Packets:
    """A protocol of packets with their length in front, as a connection sees it."""

    def __init__(self, on_packet: Callable[[bytes], None] = lambda _: None) -> None:
        self.link: TcpLink
        self.packets: list[bytes] = []
        self.paused: list[bool] = []
        self.is_lost = False
        self.wanted_bytes = 0
        self._on_packet = on_packet

    def receive(self, data: memoryview, size: int) -> int:
        at = 0
        self.wanted_bytes = 0
        while size - at >= 4 and self.link.is_reading:
            (length,) = struct.unpack_from("<I", data, at)
            if size - at - 4 < length:
                self.wanted_bytes = 4 + length
                break
            self.packets.append(bytes(data[at + 4 : at + 4 + length]))
            at += 4 + length
            self._on_packet(self.packets[-1])
        return at

    def pause_output(self, paused: bool) -> None:
        self.paused.append(paused)

    def lost(self) -> None:
        assert not self.is_lost
        self.is_lost = True


class Pair:
    """A link, and the socket at its other end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        receiver: Packets,
        kind: type[TcpLink] = TcpLink,
    ) -> None:
        self.loop = loop
        ours, self.peer = socket.socketpair()
        for each in (ours, self.peer):
            each.setblocking(False)
        self.poller = Poller(loop)
        self.link = kind(self.poller, ours.detach(), "::1", 7, RECEIVE_BYTES, HIGH_BYTES)
        receiver.link = self.link
        if kind is TcpLink:
            self.link.start(receiver)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0)

    async def until_received(self, size: int) -> None:
        await self.until(lambda: self.link.received_bytes >= size)
        assert self.link.received_bytes == size

    async def say(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.peer, data)

    async def hear(self, size: int) -> bytes:
        async with asyncio.timeout(20):
            heard = b""
            while len(heard) < size and (more := await self.loop.sock_recv(self.peer, 1 << 16)):
                heard += more
            return heard


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop() if request.param == "asyncio" else uvloop.new_event_loop()
    yield made
    made.close()


def packet(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


SIZES = st.one_of(
    st.integers(0, 40), st.integers(RECEIVE_BYTES // 2 - 8, RECEIVE_BYTES + 8), st.just(20_000)
)


@settings(max_examples=60)
@given(
    sizes=st.lists(SIZES, max_size=12),
    cuts=st.lists(st.integers(1, 6000), min_size=1, max_size=12),
    pausing=st.booleans(),
)
def test_any_chunking_gives_the_same_packets(
    sizes: list[int], cuts: list[int], pausing: bool
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def pause(_packet: bytes) -> None:
            # Read no more, and go on a moment later, or before this read is over.
            if pausing:
                receiver.link.pause()
                if len(receiver.packets) % 2:
                    receiver.link.resume()
                else:
                    loop.call_soon(receiver.link.resume)

        receiver = Packets(pause)
        pair = Pair(loop, receiver)
        expected = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
        stream = b"".join(packet(each) for each in expected)
        at = 0
        while at < len(stream):
            for cut in cuts:
                await pair.say(stream[at : at + cut])
                at += cut
                await asyncio.sleep(0)
        await pair.until(lambda: len(receiver.packets) == len(expected))
        assert receiver.packets == expected
        assert pair.link.unread == b""
        pair.peer.close()
        await pair.until(lambda: receiver.is_lost)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_what_the_peer_does_not_read_waits_and_keeps_its_order(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        receiver = Packets()
        pair = Pair(loop, receiver)
        sent = b""
        while not receiver.paused:
            piece = len(sent).to_bytes(8, "little") * 2048
            sent += piece
            pair.link.write(piece)
        assert receiver.paused == [True]
        assert pair.link.unsent_bytes > HIGH_BYTES
        assert await pair.hear(len(sent)) == sent
        await pair.until(lambda: receiver.paused == [True, False])
        assert pair.link.unsent_bytes == 0
        pair.link.write(b"more")
        assert await pair.hear(4) == b"more"
        pair.link.abort()
        await pair.until(lambda: receiver.is_lost)
        pair.peer.close()

    loop.run_until_complete(main())


def test_closing_sends_what_is_unsent(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        receiver = Packets()
        pair = Pair(loop, receiver)
        pair.link.write(bytes(4 << 20))
        assert pair.link.unsent_bytes
        pair.link.close()
        assert pair.link.is_closing
        pair.link.write(b"too late")
        await asyncio.sleep(0)
        assert not receiver.is_lost
        assert await pair.hear((4 << 20) + 1) == bytes(4 << 20)
        await pair.until(lambda: receiver.is_lost)
        pair.peer.close()

    loop.run_until_complete(main())


def test_aborting_does_not_wait_and_is_told_later(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        receiver = Packets(lambda _: receiver.link.abort())
        pair = Pair(loop, receiver)
        pair.link.write(bytes(4 << 20))
        await pair.say(packet(b"1") + packet(b"2"))
        await pair.until(lambda: bool(receiver.packets))
        pair.link.abort()
        await pair.until(lambda: receiver.is_lost)
        assert receiver.packets == [b"1"]
        pair.link.resume()
        pair.link.pause()
        pair.link.close()
        pair.peer.close()

    loop.run_until_complete(main())


def test_who_finishes_is_read_until_the_peer_closes(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        receiver = Packets()
        pair = Pair(loop, receiver)
        pair.link.pause()
        pair.link.write(bytes(1 << 20) + b"goodbye")
        pair.link.finish()
        pair.link.write(b"too late")
        heard = await pair.hear(2 << 20)
        assert heard == bytes(1 << 20) + b"goodbye"
        assert not receiver.is_lost
        await pair.say(packet(b"not heard any more"))
        await pair.until(lambda: pair.link.received_bytes > 0)
        pair.peer.close()
        await pair.until(lambda: receiver.is_lost)
        assert receiver.packets == []

    loop.run_until_complete(main())


def test_a_peer_that_is_gone_is_lost_to_who_writes(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        receiver = Packets()
        pair = Pair(loop, receiver)
        pair.link.pause()
        pair.peer.close()
        pair.link.write(b"anybody?")
        await pair.until(lambda: receiver.is_lost)

    loop.run_until_complete(main())


def test_a_peer_that_goes_while_much_is_unsent_is_lost(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        receiver = Packets()
        pair = Pair(loop, receiver)
        pair.link.pause()
        pair.link.write(bytes(4 << 20))
        pair.peer.close()
        await pair.until(lambda: receiver.is_lost)
        assert pair.link.unsent_bytes == 0

    loop.run_until_complete(main())


def test_a_mistake_of_ours_ends_only_the_connection_it_is_made_for(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        reported: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: reported.append(context))

        def fail(_packet: bytes) -> None:
            raise ZeroDivisionError

        broken, whole = Packets(fail), Packets()
        first, second = Pair(loop, broken), Pair(loop, whole)
        await first.say(packet(b"x"))
        await first.until(lambda: broken.is_lost)
        assert [type(each["exception"]) for each in reported] == [ZeroDivisionError]
        assert "::1:7" in str(reported[0]["message"])
        await second.say(packet(b"y"))
        await second.until(lambda: whole.packets == [b"y"])
        second.link.abort()
        await second.until(lambda: whole.is_lost)
        first.peer.close()
        second.peer.close()

    loop.run_until_complete(main())


def test_bytes_are_counted_in_both_directions(loop: asyncio.AbstractEventLoop) -> None:
    async def main() -> None:
        receiver = Packets()
        pair = Pair(loop, receiver)
        assert (pair.link.received_bytes, pair.link.sent_bytes) == (0, 0)
        for size in (0, 7, RECEIVE_BYTES, 20_000):
            before, count = pair.link.received_bytes, len(receiver.packets)
            whole = packet(bytes(size))
            await pair.say(whole[:3])
            await pair.until_received(before + 3)
            assert len(receiver.packets) == count
            await pair.say(whole[3:])
            await pair.until_received(before + len(whole))
            assert len(receiver.packets) == count + 1
        assert pair.link.sent_bytes == 0
        pair.link.write(b"seven b")
        assert pair.link.sent_bytes == 7
        # Counted when it is handed over, and once, in however many pieces it goes.
        pair.link.write(bytes(4 << 20))
        pair.link.write(b"behind")
        assert pair.link.unsent_bytes
        everything = 7 + (4 << 20) + 6
        assert pair.link.sent_bytes == everything
        assert len(await pair.hear(everything)) == everything
        await pair.until(lambda: not pair.link.unsent_bytes)
        assert pair.link.sent_bytes == everything
        received = pair.link.received_bytes
        pair.link.finish()
        pair.link.write(b"too late")
        assert pair.link.sent_bytes == everything
        pair.peer.close()
        await pair.until(lambda: receiver.is_lost)
        assert (pair.link.received_bytes, pair.link.sent_bytes) == (received, everything)

    loop.run_until_complete(main())


def test_when_something_was_heard_is_told_by_the_clock_of_the_loop(
    loop: asyncio.AbstractEventLoop,
) -> None:
    async def main() -> None:
        receiver = Packets()
        before = time.monotonic()
        pair = Pair(loop, receiver)
        opened = pair.link.heard_s
        assert before <= opened <= time.monotonic()
        pair.link.write(b"what is said is not heard")
        assert pair.link.heard_s == opened
        # The beginning of a packet is enough, and so is the middle of a large one.
        whole = packet(bytes(3 * RECEIVE_BYTES))
        for piece in (whole[:2], whole[2:RECEIVE_BYTES], whole[RECEIVE_BYTES:]):
            heard, count, spoken = pair.link.heard_s, pair.link.received_bytes, time.monotonic()
            await pair.say(piece)
            await pair.until_received(count + len(piece))
            assert heard <= spoken <= pair.link.heard_s <= time.monotonic()
        heard = pair.link.heard_s
        pair.peer.close()
        await pair.until(lambda: receiver.is_lost)
        assert pair.link.heard_s == heard

    loop.run_until_complete(main())


def test_what_came_before_a_reset_is_read_and_then_its_end(loop: asyncio.AbstractEventLoop) -> None:
    """libuv, below uvloop, says once that a socket is broken, and looks at it no more."""

    async def main() -> None:
        receiver = Packets()
        with socket.create_server(("127.0.0.1", 0)) as server:
            peer = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        ours.setblocking(False)
        poller = Poller(loop)
        link = TcpLink(poller, ours.detach(), "::1", 7, RECEIVE_BYTES, HIGH_BYTES)
        receiver.link = link
        peer.sendall(packet(bytes(RECEIVE_BYTES // 2)) * 5)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        link.start(receiver)
        async with asyncio.timeout(20):
            while not receiver.is_lost:
                await asyncio.sleep(0)
        poller.close()

    loop.run_until_complete(main())


def test_a_large_packet_has_memory_for_what_came_of_it(loop: asyncio.AbstractEventLoop) -> None:
    class Owner:
        refused = ""

        def refuse_input(self, text: str) -> None:
            self.refused = text
            pair.link.drop_input()

    async def main() -> None:
        nonlocal pair
        receiver = Packets()
        pair = Pair(loop, receiver)
        input_budget, owner = InputBudget(loop.call_soon, 0), Owner()
        pair.link.share = input_budget.share(owner)
        whole = packet(bytes(40 << 20))
        await pair.say(whole[:1000])
        await pair.until_received(1000)
        assert 0 < input_budget.held_bytes <= RECEIVE_BYTES
        await pair.say(whole[1000 : 1 << 20])
        await pair.until_received(1 << 20)
        assert 1 << 20 <= input_budget.held_bytes <= 2 << 20
        # A connection may hold half of what all may.
        sending = loop.create_task(pair.say(whole[1 << 20 :]))
        await pair.until(lambda: bool(owner.refused))
        assert str(input_budget.share_bytes_max) in owner.refused
        assert input_budget.held_bytes == 0
        await sending
        assert receiver.packets == []
        pair.peer.close()
        await pair.until(lambda: receiver.is_lost)

    pair: Pair
    loop.run_until_complete(main())


def test_who_takes_long_does_not_keep_all_others_from_the_loop() -> None:
    """However many are ready: when time is over the loop goes on, and the rest comes first then."""
    heard: list[int] = []

    class Slow(Packets):
        def __init__(self, number: int) -> None:
            super().__init__(lambda _: heard.append(number))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        first = Pair(loop, Slow(0))
        poller = first.poller
        poller.serve_s = 0.0
        peers = [first.peer]
        for number in range(1, 50):
            ours, peer = socket.socketpair()
            ours.setblocking(False)
            receiver = Slow(number)
            receiver.link = TcpLink(poller, ours.detach(), "::1", 7, RECEIVE_BYTES, HIGH_BYTES)
            receiver.link.start(receiver)
            peers.append(peer)
        for _ in range(3):
            for peer in peers:
                peer.sendall(packet(b"x") * 2000)  # more than is read at once
        in_turns = []
        while len(heard) < 50 * 6000:
            before = len(heard)
            await asyncio.sleep(0)
            in_turns.append(set(heard[before:]))
        assert max(len(each) for each in in_turns) == 1
        served = [number for each in in_turns for number in each]
        assert sorted(served[:50]) == list(range(50)), "everybody, before anybody again"
        for peer in peers:
            peer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
