"""What a channel is told, in order, and only what is true (docs/adr/0018).

The disk is the test's: commits wait until it lets them through, or fail.
"""

from collections.abc import Callable, Iterator

import pytest
from raw_client import Gone, RawClient, content_frames

from braidmq.engine.engine import Engine
from braidmq.gateways.amqp.queues import SUBSCRIPTION
from braidmq.model.clock import SystemClock
from braidmq.testing.faulty_disk import CutAt
from braidmq.testing.hosted import SMALL, CommitGate, HostedNode, hosted_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import FrameKind

MARKER = 9
"""A channel whose replies wait for nothing: what was sent before its question was handled."""


class Client(RawClient):
    def __init__(self, node: HostedNode) -> None:
        super().__init__(node)
        self.open(1, MARKER)

    def said(self, count: int, channel: int | None = 1) -> list[str]:
        """The names of the next methods of a channel."""
        found: list[str] = []
        while len(found) < count:
            frame = self.frame()
            if frame.kind == FrameKind.METHOD and channel in (None, frame.channel):
                found.append(type(m.decode(frame.payload)).__name__)
        return found

    def said_so_far(self) -> list[str]:
        """The names of what came before the answer to a question asked now."""
        self.method(MARKER, m.BasicQos())
        found: list[str] = []
        while (frame := self.frame()).channel != MARKER:
            if frame.kind == FrameKind.METHOD:
                found.append(type(m.decode(frame.payload)).__name__)
        return found


@pytest.fixture
def disk() -> CommitGate:
    return CommitGate()


@pytest.fixture
def node(disk: CommitGate) -> Iterator[HostedNode]:
    with hosted_node(disk) as node:
        yield node


@pytest.fixture
def client(node: HostedNode) -> Iterator[Client]:
    with Client(node) as client:
        yield client


DURABLE = m.QueueDeclare("d", durable=True)
FULL = "full"
"""A queue that has a message, and is not durable."""


def with_message(client: Client) -> None:
    client.declare(FULL, 1)
    client.publish(1, FULL, b"x")


# --- order ---

BEHIND: dict[str, tuple[list[m.Method], list[str]]] = {
    "get-empty": ([m.BasicGet("d")], ["BasicGetEmpty"]),
    "get-ok": ([m.BasicGet(FULL)], ["BasicGetOk"]),
    "deliveries": ([m.BasicConsume(FULL, "c")], ["BasicConsumeOk", "BasicDeliver"]),
    "cancel-ok": (
        [m.BasicConsume("d", "c"), m.BasicCancel("c")],
        ["BasicConsumeOk", "BasicCancelOk"],
    ),
    "qos-ok": ([m.BasicQos()], ["BasicQosOk"]),
    "recover-ok": ([m.BasicRecover(True)], ["BasicRecoverOk"]),
    "select-ok": ([m.ConfirmSelect()], ["ConfirmSelectOk"]),
    "tx": ([m.TxSelect(), m.TxRollback()], ["TxSelectOk", "TxRollbackOk"]),
    "flow-ok": ([m.ChannelFlow(True)], ["ChannelFlowOk"]),
    "close-ok": ([m.ChannelClose(200, "")], ["ChannelCloseOk"]),
    "close": ([m.QueueDeclare("none", passive=True)], ["ChannelClose"]),
    "reopened": (
        [m.ChannelClose(200, ""), m.ChannelOpen(), m.BasicQos()],
        ["ChannelCloseOk", "ChannelOpenOk", "BasicQosOk"],
    ),
    "both closed it": (
        [m.QueueDeclare("none", passive=True), m.ChannelClose(200, "")],
        ["ChannelClose", "ChannelCloseOk"],
    ),
}


@pytest.mark.parametrize(("methods", "answers"), BEHIND.values(), ids=BEHIND)
def test_nothing_overtakes_a_reply_that_waits_for_the_disk(
    client: Client, disk: CommitGate, methods: list[m.Method], answers: list[str]
) -> None:
    with_message(client)
    disk.shut()
    client.method(1, DURABLE, *methods)
    assert client.said_so_far() == []
    disk.let_through()
    assert client.said(1 + len(answers)) == ["QueueDeclareOk", *answers]
    assert client.said_so_far() == []


def test_other_channels_don_t_wait(client: Client, disk: CommitGate) -> None:
    with_message(client)
    client.ask(2, m.ChannelOpen(), m.ChannelOpenOk)
    disk.shut()
    client.method(1, DURABLE)
    client.method(2, m.BasicConsume(FULL, "c"))
    assert client.said(2, 2) == ["BasicConsumeOk", "BasicDeliver"]


def test_a_return_comes_before_its_confirm_and_both_behind_what_waits(
    client: Client, disk: CommitGate
) -> None:
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    disk.shut()
    client.method(1, DURABLE)
    client.send(content_frames(1, m.BasicPublish("", "nowhere", mandatory=True), b"x"))
    assert client.said_so_far() == []
    disk.let_through()
    assert client.said(3) == ["QueueDeclareOk", "BasicReturn", "BasicAck"]


def test_who_is_told_that_a_queue_is_deleted_is_told_of_its_consumer_afterwards(
    client: Client, disk: CommitGate
) -> None:
    client.method(1, DURABLE, m.BasicConsume("d", "c"))
    assert client.said(2) == ["QueueDeclareOk", "BasicConsumeOk"]
    disk.shut()
    client.method(1, m.QueueDelete("d"))
    assert client.said_so_far() == []
    disk.let_through()
    assert client.said(2) == ["QueueDeleteOk", "BasicCancel"]


def test_what_piles_up_behind_a_reply_holds_up_the_consumer(
    client: Client, disk: CommitGate
) -> None:
    body = bytes(100_000)
    client.declare(FULL, 1)
    for _ in range(60):
        client.publish(1, FULL, body)
    disk.shut()
    client.method(1, DURABLE, m.BasicConsume(FULL, "c"))
    for _ in range(50):  # turns in which more could be handed out
        assert client.said_so_far() == []
    left = client.ask(MARKER, m.BasicGet(FULL, no_ack=True), m.BasicGetOk).message_count
    assert left > 60 // 2
    disk.let_through()
    assert client.said(61)[:3] == ["QueueDeclareOk", "BasicConsumeOk", "BasicDeliver"]


# --- where messages went, for who asks ---


def placed(client: Client, count: int) -> list[m.BasicPlaced]:
    return [client.expect(m.BasicPlaced) for _ in range(count)]


def test_who_asks_is_told_before_the_confirm(client: Client, disk: CommitGate) -> None:
    client.ask(1, DURABLE, m.QueueDeclareOk)
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    client.publish(1, "d", b"not asked")
    assert client.said(1) == ["BasicAck"]
    client.method(1, m.ConfirmPlaces())
    disk.shut()
    client.publish(1, "d", b"1")
    assert client.said_so_far() == []
    disk.let_through()
    assert placed(client, 1) == [m.BasicPlaced(2, 1, "d", 0, 1)]
    assert client.said(1) == ["BasicAck"]


def test_a_place_for_each_queue_and_none_for_what_goes_nowhere(client: Client) -> None:
    client.method(1, m.ConfirmPlaces())  # before there are confirms: they come with them
    for queue in ("e", "f"):
        client.declare(queue, 1)
        client.ask(1, m.QueueBind(queue, "amq.fanout"), m.QueueBindOk)
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    client.send(content_frames(1, m.BasicPublish("amq.fanout", ""), b"x"))
    assert {each.topic for each in placed(client, 2)} == {"e", "f"}
    assert client.said(1) == ["BasicAck"]
    client.publish(1, "nowhere", b"x")
    assert client.said(1) == ["BasicAck"]


def test_a_refused_message_has_no_place(client: Client) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    client.ask(1, m.QueueDeclare("small", arguments=arguments), m.QueueDeclareOk)
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    client.method(1, m.ConfirmPlaces())
    client.publish(1, "small", b"1")
    assert client.said(2) == ["BasicPlaced", "BasicAck"]
    client.publish(1, "small", b"2")
    assert client.said(1) == ["BasicNack"]


def test_nobody_but_the_broker_says_where_messages_are(client: Client) -> None:
    client.method(1, m.BasicPlaced(1, 1, "d", 0, 0))
    assert client.expect(m.ConnectionClose).reply_code in (503, 540)


# --- who is gone ---


def test_a_closed_channel_is_told_nothing_more_though_its_number_is_used_again(
    client: Client, disk: CommitGate
) -> None:
    client.ask(1, DURABLE, m.QueueDeclareOk)
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    disk.shut()
    client.publish(1, "d", b"x")
    client.method(1, m.ChannelClose(200, ""), m.ChannelOpen(), m.BasicQos())
    assert client.said(3) == ["ChannelCloseOk", "ChannelOpenOk", "BasicQosOk"]
    disk.let_through()
    client.ask(1, m.QueueDeclare("e", durable=True), m.QueueDeclareOk)  # which the ack comes before


def test_a_channel_with_an_error_is_told_nothing_more(client: Client, disk: CommitGate) -> None:
    client.ask(1, DURABLE, m.QueueDeclareOk)
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    disk.shut()
    client.publish(1, "d", b"x")
    client.method(1, m.QueueDeclare("none", passive=True))
    assert client.said(1) == ["ChannelClose"]
    client.method(1, m.ChannelCloseOk(), m.ChannelOpen())
    assert client.said(1) == ["ChannelOpenOk"]
    disk.let_through()
    client.ask(1, m.QueueDeclare("e", durable=True), m.QueueDeclareOk)


def test_a_closed_connection_is_told_nothing_more(
    node: HostedNode, client: Client, disk: CommitGate
) -> None:
    disk.shut()
    client.method(1, DURABLE)
    client.method(0, m.ConnectionClose(200, ""))
    assert client.said(1, None) == ["ConnectionCloseOk"]
    with Client(node) as other:
        disk.let_through()
        other.ask(1, m.QueueDeclare("e", durable=True), m.QueueDeclareOk)  # which "d" comes before
    client.method(0, m.ConnectionClose(200, ""))
    assert client.said(1, None) == ["ConnectionCloseOk"]


def test_each_close_of_a_connection_is_answered_and_the_client_closes_the_socket(
    client: Client,
) -> None:
    """As amqp091-go's when several goroutines close it: an end in place of an answer is a failure
    to those that were not the first."""
    closes = 3 * [m.ConnectionClose(200, "")]
    client.method(0, *closes)
    assert client.said(3, None) == 3 * ["ConnectionCloseOk"]
    client.method(0, *closes)
    assert client.said(3, None) == 3 * ["ConnectionCloseOk"]
    client.method(0, m.ConnectionCloseOk())
    with pytest.raises(Gone):
        client.frame()


def test_both_may_close_a_connection_at_once(client: Client) -> None:
    client.method(0, m.ConnectionOpen("/"), m.ConnectionClose(200, ""))
    assert client.said(2, None) == ["ConnectionClose", "ConnectionCloseOk"]
    client.method(0, m.ConnectionCloseOk())
    with pytest.raises(Gone):
        client.frame()


def test_nor_is_one_that_has_an_error(node: HostedNode, client: Client, disk: CommitGate) -> None:
    disk.shut()
    client.method(1, DURABLE)
    client.method(MARKER, m.ChannelFlow(False))
    assert client.expect(m.ConnectionClose).reply_code == 540
    with Client(node) as other:
        disk.let_through()
        other.ask(1, m.QueueDeclare("e", durable=True), m.QueueDeclareOk)  # which "d" comes before
    client.method(0, m.ConnectionCloseOk())
    with pytest.raises(Gone):
        client.frame()


@pytest.mark.parametrize("waits", [False, True])
def test_both_may_close_a_channel_at_once(client: Client, disk: CommitGate, waits: bool) -> None:
    """As amqp091-go does: its close crosses ours, and it answers ours all the same."""
    if waits:
        disk.shut()
    before = [DURABLE] if waits else []
    after = [m.BasicQos(), m.BasicGet("none")]
    client.method(1, *before, m.QueueDeclare("none", passive=True), m.ChannelClose(200, ""), *after)
    client.publish(1, "d", b"x")
    if waits:
        assert client.said_so_far() == []
        disk.let_through()
        assert client.said(1) == ["QueueDeclareOk"]
    assert client.said(2) == ["ChannelClose", "ChannelCloseOk"]
    client.method(1, m.ChannelCloseOk())
    assert client.said_so_far() == []
    client.ask(1, m.ChannelOpen(), m.ChannelOpenOk)
    client.ask(1, m.BasicQos(), m.BasicQosOk)


# --- a disk that fails ---


def prepared(client: Client) -> None:
    """Everything the methods below need."""
    client.ask(1, DURABLE, m.QueueDeclareOk)
    client.ask(1, m.QueueDeclare("a", durable=True, auto_delete=True), m.QueueDeclareOk)
    client.ask(1, m.BasicConsume("a", "c"), m.BasicConsumeOk)
    client.ask(1, m.ExchangeDeclare("x", "direct", durable=True), m.ExchangeDeclareOk)
    client.ask(1, m.ExchangeBind("x", "amq.direct", "k"), m.ExchangeBindOk)
    client.ask(1, m.QueueBind("d", "x", "k"), m.QueueBindOk)
    client.ask(MARKER, m.ConfirmSelect(), m.ConfirmSelectOk)
    client.publish(MARKER, "d", b"x")
    client.expect(m.BasicAck)


Step = Callable[[Client], None]


def sends(*methods: m.Method) -> Step:
    return lambda client: client.method(1, *methods)


def publishes_in_tx(client: Client) -> None:
    client.ask(1, m.TxSelect(), m.TxSelectOk)
    client.publish(1, "d", b"x")
    client.method(1, m.TxCommit())


def ends(commit: bool) -> Step:
    def step(client: Client) -> None:
        client.ask(1, m.TxBegin(name="t"), m.TxBeginOk)
        client.publish(1, "d", b"x")
        client.method(1, m.TxEnd(commit=commit))

    return step


WRITES: dict[str, Step] = {
    "exchange.declare": sends(m.ExchangeDeclare("y", "direct", durable=True)),
    "exchange.delete": sends(m.ExchangeDelete("x")),
    "exchange.bind": sends(m.ExchangeBind("x", "amq.direct", "l")),
    "exchange.unbind": sends(m.ExchangeUnbind("x", "amq.direct", "k")),
    "queue.declare": sends(m.QueueDeclare("new", durable=True)),
    "queue.bind": sends(m.QueueBind("d", "x", "l")),
    "queue.unbind": sends(m.QueueUnbind("d", "x", "k")),
    "queue.purge": sends(m.QueuePurge("d")),
    "queue.delete": sends(m.QueueDelete("d")),
    "basic.cancel of an auto-delete queue": sends(m.BasicCancel("c")),
    "basic.consume of a new group": sends(m.BasicConsume("d", "g", arguments={"x-group": "g"})),
    "tx.commit": publishes_in_tx,
    "tx.end, commit": ends(True),
    "tx.end, rollback": ends(False),
    "tx.producer": sends(m.TxProducer(name="p")),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_said_to_be_done_that_the_disk_did_not_take(
    client: Client, disk: CommitGate, write: Step
) -> None:
    prepared(client)
    disk.shut()
    write(client)
    assert client.said_so_far() == []
    disk.break_down()
    closed = client.expect(m.ConnectionClose)
    assert (closed.reply_code, "injected fault" in closed.reply_text) == (541, True)


def test_nor_to_who_finds_it_done_by_another(
    node: HostedNode, client: Client, disk: CommitGate
) -> None:
    disk.shut()
    with Client(node) as other:
        client.method(1, DURABLE)
        assert client.said_so_far() == []
        other.method(1, DURABLE)
        assert other.said_so_far() == []
        disk.break_down()
        assert other.expect(m.ConnectionClose).reply_code == 541
        assert client.expect(m.ConnectionClose).reply_code == 541


def test_what_the_disk_did_not_take_is_refused_in_its_confirm(
    client: Client, disk: CommitGate
) -> None:
    client.ask(1, DURABLE, m.QueueDeclareOk)
    client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    client.publish(1, "d", b"1")
    client.expect(m.BasicAck)
    disk.shut()
    client.publish(1, "d", b"2")
    assert client.said_so_far() == []
    disk.break_down()
    assert client.expect(m.BasicNack).delivery_tag == 2


# --- a node that is cut off ---


def test_a_tx_commit_cut_off_anywhere_is_decided_when_the_node_is_back(
    client: Client, disk: CommitGate
) -> None:
    client.ask(1, DURABLE, m.QueueDeclareOk)
    client.ask(1, m.QueueDeclare("jobs", durable=True), m.QueueDeclareOk)
    client.ask(MARKER, m.ConfirmSelect(), m.ConfirmSelectOk)
    client.publish(MARKER, "jobs", b"job")
    client.expect(m.BasicAck)
    client.ask(1, m.TxSelect(), m.TxSelectOk)
    tag = client.ask(1, m.BasicGet("jobs"), m.BasicGetOk).delivery_tag
    client.content()
    client.ask(1, m.QueueDeclare("jobs", passive=True), m.QueueDeclareOk)  # all of that is on disk
    disk.shut()
    client.publish(1, "d", b"done")
    client.method(1, m.BasicAck(tag), m.TxCommit())
    disk.wait_for_commit()
    found = set()
    for cut in range(0, disk.unsynced_bytes + 1, 16):
        engine = Engine.open(disk.crash(CutAt(cut)), SystemClock().now_ms(), SMALL)
        assert engine.transactions.transactions() == []
        found.add(
            tuple(
                engine.state.subscription(engine.state.topic("/", queue), SUBSCRIPTION).ready
                for queue in ("jobs", "d")
            )
        )
        engine.close()
    assert found == {(1, 0), (0, 1)}
