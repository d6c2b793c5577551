"""What one client does wrong is its own affair: the others go on, and memory stays bounded."""

import random
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from raw_client import FRAME_MAX, PERSISTENT, Gone, RawClient, content_frames

from braidmq.testing.live import LiveNode
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind
from braidmq.wire.amqp.properties import content_header_payload

KIB = 1 << 10
MIB = 1 << 20

SLOW_CONSUMER_BYTES_MAX = 48 * MIB
"""One write's worth of output, twice (rendered and joined), and what the allocator keeps."""

CONNECTION_BYTES_MAX = 40 * KIB


def rss_bytes(node: LiveNode) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * KIB


@pytest.fixture
def neighbour(node: LiveNode, name: str) -> Iterator[Callable[[], None]]:
    """Another connection; calling it shows that it still publishes and gets."""
    with RawClient(node) as client:
        client.open(1)
        client.declare(name)

        def works() -> None:
            client.publish(1, name, b"still here")
            client.ask(1, m.BasicGet(name, no_ack=True), m.BasicGetOk)
            assert client.content()[1] == b"still here"

        works()
        yield works
        works()


# --- bad input ---

PUBLISH = m.method_frame(1, m.BasicPublish("", "nowhere"))
HEADER = m.frame(FrameKind.HEADER, 1, content_header_payload(3, PERSISTENT))
BODY = m.frame(FrameKind.BODY, 1, b"abc")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(m.method_frame(1, m.BasicQos())[:-1] + b"\0", 501, id="bad-frame-end"),
        pytest.param(struct.pack(">BHI", 1, 1, FRAME_MAX + 1), 501, id="oversize-frame"),
        pytest.param(struct.pack(">BHI", 3, 1, 0xFFFFFFFF), 501, id="huge-frame"),
        pytest.param(m.frame(1, 1, b"\0"), 501, id="half-a-method-id"),
        pytest.param(m.frame(1, 1, struct.pack(">HH", 60, 20)), 501, id="method-without-fields"),
        pytest.param(m.frame(1, 1, struct.pack(">HH", 60, 999)), 540, id="unknown-method"),
        pytest.param(m.frame(1, 1, struct.pack(">HH", 999, 1)), 540, id="unknown-class"),
        pytest.param(BODY, 505, id="body-first"),
        pytest.param(HEADER, 505, id="header-first"),
        pytest.param(PUBLISH + BODY, 505, id="body-before-header"),
        pytest.param(PUBLISH + PUBLISH, 505, id="method-instead-of-header"),
        pytest.param(PUBLISH + HEADER + HEADER, 505, id="header-twice"),
        pytest.param(PUBLISH + HEADER + PUBLISH, 505, id="method-instead-of-body"),
        pytest.param(m.method_frame(7, m.BasicQos()), 504, id="channel-not-open"),
        pytest.param(m.method_frame(1, m.ChannelOpen()), 504, id="channel-opened-twice"),
        pytest.param(m.method_frame(0, m.BasicQos()), 504, id="channel-method-on-zero"),
        pytest.param(m.method_frame(0, m.ConnectionTuneOk()), 504, id="handshake-again"),
        pytest.param(m.method_frame(1, m.QueueDeclareOk("x", 0, 0)), 503, id="an-answer"),
    ],
)
def test_bad_input_is_answered_with_its_code(
    node: LiveNode, neighbour: Callable[[], None], data: bytes, code: int
) -> None:
    with RawClient(node) as client:
        client.open(1)
        client.send(data)
        close = client.expect(m.ConnectionClose, 0)
        assert close.reply_code == code, close
        neighbour()
        client.method(0, m.ConnectionCloseOk())
        client.expect_end()


def test_random_bytes_instead_of_the_protocol_header(
    node: LiveNode, neighbour: Callable[[], None]
) -> None:
    source = random.Random(4)
    for size in (1, 7, 8, 9, 100, 100_000):
        with RawClient(node) as client:
            client.send(source.randbytes(size).replace(b"A", b"B") + b"\0" * 8)
            assert client.sock.recv(8) == PROTOCOL_HEADER
            neighbour()


def test_random_bytes_after_the_handshake(node: LiveNode, neighbour: Callable[[], None]) -> None:
    source = random.Random(5)
    for _ in range(30):
        with RawClient(node) as client:
            client.open(1)
            client.send(source.randbytes(source.randrange(8, 5000)))
            client.sock.shutdown(1)
            client.expect_end()
    neighbour()


def test_a_flood_after_the_error_is_thrown_away(
    node: LiveNode, neighbour: Callable[[], None]
) -> None:
    with RawClient(node) as client:
        client.open(1)
        client.send(struct.pack(">BHI", 1, 1, 0xFFFFFFFF) + b"\xff" * 4_000_000)
        assert client.expect(m.ConnectionClose).reply_code == 501
        neighbour()
        client.send(b"\xff" * 4_000_000)
        neighbour()


def test_what_comes_behind_a_close_does_not_cost_its_answer(node: LiveNode, name: str) -> None:
    """amqplib, for one, sends acks of its channels behind connection.close."""
    with RawClient(node) as client:
        client.open(1)
        client.declare(name)
        client.method(0, m.ConnectionClose())
        for _ in range(50):
            client.send(content_frames(1, m.BasicPublish("", name), b"x" * 100_000))
        client.expect(m.ConnectionCloseOk, 0)
        client.method(0, m.ConnectionClose())
        client.expect(m.ConnectionCloseOk, 0)


def test_flipped_bits_in_good_traffic(node: LiveNode, neighbour: Callable[[], None]) -> None:
    source = random.Random(6)
    good = b"".join(
        (
            m.method_frame(1, m.QueueDeclare("", exclusive=True, arguments={"x-max-length": 5})),
            content_frames(1, m.BasicPublish("amq.topic", "a.b"), b"x" * 50),
            m.method_frame(1, m.BasicConsume("", consumer_tag="t")),
            content_frames(1, m.BasicPublish("", "nowhere", mandatory=True), b"y" * 50),
            m.method_frame(1, m.BasicQos(0, 5)),
        )
    )
    for _ in range(100):
        data = bytearray(good)
        data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        with RawClient(node) as client:
            client.open(1)
            client.send(bytes(data))
            client.sock.shutdown(1)
            client.expect_end()
    neighbour()


def test_one_byte_at_a_time(node: LiveNode, name: str) -> None:
    with RawClient(node) as client:
        client.open(1)
        client.declare(f"{name}.slow")
        for byte in content_frames(1, m.BasicPublish("", f"{name}.slow"), b"drop by drop"):
            client.send(bytes([byte]))
        client.ask(1, m.BasicGet(f"{name}.slow"), m.BasicGetOk)
        assert client.content()[1] == b"drop by drop"


def test_half_open_peers_are_given_up(node: LiveNode, neighbour: Callable[[], None]) -> None:
    """One that never logs in, and one that promised heartbeats and fell silent."""
    with RawClient(node) as mute, RawClient(node) as silent:
        silent.open(1, heartbeat_s=1)
        silent.expect_end()
        neighbour()
        mute.expect_end()


def test_a_peer_that_vanishes_inside_a_message_leaves_nothing(node: LiveNode, name: str) -> None:
    with RawClient(node) as watcher:
        watcher.open(1)
        watcher.declare(name)
        with RawClient(node) as client:
            client.open(1)
            client.send(content_frames(1, m.BasicPublish("", name), b"z" * 500_000)[:-1000])
        assert watcher.declare(name, passive=True).message_count == 0


# --- pressure ---


def test_a_full_queue_says_no_to_each_message_beyond(node: LiveNode, name: str) -> None:
    with RawClient(node) as client:
        client.open(1)
        client.declare(name, arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
        client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        client.send(content_frames(1, m.BasicPublish("", name), b"x") * 25)
        answers: dict[int, bool] = {}
        while len(answers) < 25:
            _, answer = client.next_method()
            assert isinstance(answer, m.BasicAck | m.BasicNack)
            first = max(answers, default=0) + 1 if answer.multiple else answer.delivery_tag
            for tag in range(first, answer.delivery_tag + 1):
                answers[tag] = isinstance(answer, m.BasicAck)
        assert [answers[tag] for tag in range(1, 26)] == [True] * 10 + [False] * 15
        assert client.declare(name, passive=True, arguments={}).message_count == 10


@pytest.mark.parametrize("body_bytes", [1_000, 64_000, 1_000_000])
def test_a_consumer_that_stops_reading_costs_no_memory(
    fresh_node: LiveNode, name: str, body_bytes: int
) -> None:
    backlog = 200_000_000 // body_bytes
    with RawClient(fresh_node) as publisher, RawClient(fresh_node, 4096) as sleeper:
        # At once: a peer that is slow to log in is hung up on.
        sleeper.open(1)
        publisher.open(1)
        publisher.declare(name, durable=True)
        publisher.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        fill(publisher, name, body_bytes, backlog)
        before = rss_bytes(fresh_node)
        sleeper.ask(1, m.BasicConsume(name, no_ack=True), m.BasicConsumeOk)
        left = settled_count(publisher, name)
        assert left * body_bytes > 150_000_000
        assert rss_bytes(fresh_node) - before < SLOW_CONSUMER_BYTES_MAX
        # It wakes up, and everything is there.
        for number in range(backlog):
            sleeper.expect(m.BasicDeliver)
            _, body = sleeper.content()
            assert struct.unpack_from(">I", body) == (number,)
        assert publisher.declare(name, passive=True).message_count == 0


@pytest.mark.parametrize("count", [11, 12, 15, 20, 30, 60])
def test_a_consumer_that_paused_for_a_while_goes_on(node: LiveNode, name: str, count: int) -> None:
    """Some of what is due fits into the socket, and what is left is more or less than the mark."""
    with RawClient(node) as publisher, RawClient(node, 4096) as sleeper:
        sleeper.open(1)
        publisher.open(1)
        publisher.declare(name, durable=True)
        publisher.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        fill(publisher, name, 100_000, count)
        sleeper.ask(1, m.BasicConsume(name, no_ack=True), m.BasicConsumeOk)
        settled_count(publisher, name)
        publisher.publish(1, name, b"one more")
        for _ in range(count):
            sleeper.expect(m.BasicDeliver)
            sleeper.content()
        sleeper.expect(m.BasicDeliver)
        assert sleeper.content()[1] == b"one more"


def fill(client: RawClient, queue: str, body_bytes: int, count: int) -> None:
    """Publish numbered messages, a megabyte at a time, each time waiting for the confirm."""
    step = max(MIB // body_bytes, 1)
    for start in range(0, count, step):
        stop = min(start + step, count)
        filling = b"x" * (body_bytes - 4)
        client.send(
            b"".join(
                content_frames(1, m.BasicPublish("", queue), struct.pack(">I", number) + filling)
                for number in range(start, stop)
            )
        )
        while client.expect(m.BasicAck).delivery_tag < stop:
            pass


def settled_count(client: RawClient, queue: str) -> int:
    """How much a queue has left, once that stays the same for many turns of the broker's loop."""
    same, count = 0, -1
    while same < 200:
        now = client.declare(queue, passive=True).message_count
        same = same + 1 if now == count else 0
        count = now
    return count


def test_a_thousand_idle_connections(fresh_node: LiveNode, name: str) -> None:
    with ExitStack() as stack:
        # The first hundred pay for what all share: arenas, caches, the pool of buffers.
        connect_idle(fresh_node, stack, f"{name}.warm", 100)
        before = rss_bytes(fresh_node)
        clients = connect_idle(fresh_node, stack, name, 1000)
        each = (rss_bytes(fresh_node) - before) / len(clients)
        # Shown with -rA, or when it is too much.
        print(f"{each / KIB:.1f} KiB for each idle connection")  # noqa: T201
        assert each < CONNECTION_BYTES_MAX
        for number in (0, 499, 999):
            clients[-1].publish(1, f"{name}.{number}", b"wake up")
            clients[number].expect(m.BasicDeliver)
            assert clients[number].content()[1] == b"wake up"


def connect_idle(node: LiveNode, stack: ExitStack, name: str, count: int) -> list[RawClient]:
    clients = []
    for number in range(count):
        client = stack.enter_context(RawClient(node)).open(1, heartbeat_s=60)
        client.declare(f"{name}.{number}", exclusive=False)
        client.ask(1, m.BasicConsume(f"{name}.{number}"), m.BasicConsumeOk)
        clients.append(client)
    return clients


def test_a_publisher_that_never_reads_its_confirms_does_not_grow_the_broker(
    fresh_node: LiveNode, name: str
) -> None:
    """Its confirms gather, a few bytes for many messages; nothing else does."""
    with RawClient(fresh_node) as watcher, RawClient(fresh_node, 4096) as publisher:
        watcher.open(1)
        watcher.declare(name, arguments={"x-max-length": 100})
        publisher.open(1)
        publisher.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        message = content_frames(1, m.BasicPublish("", name), b"x" * 100, b"\0\0")
        publisher.send(message * 1000)
        before = rss_bytes(fresh_node)
        for _ in range(200):
            publisher.send(message * 1000)
        try:
            while watcher.declare(name, passive=True).message_count < 100:
                pass
        except Gone:
            pytest.fail("the watcher was thrown out")
        assert rss_bytes(fresh_node) - before < SLOW_CONSUMER_BYTES_MAX
