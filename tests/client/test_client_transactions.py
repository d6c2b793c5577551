"""Idempotent producers and transactions, by our client on a live node."""

import asyncio

import pytest
from talking import WAIT_S, drained, nothing_left, taken, url_of

import braidmq
from braidmq.client.connection import ChannelOwner
from braidmq.client.message import take
from braidmq.client.producer import publishing_of as publishing_of_producer
from braidmq.client.transaction import publishing_of
from braidmq.model.errors import Conflict
from braidmq.testing.live import LiveNode, free_ports, live_node
from braidmq.wire.amqp.methods import (
    TxAck,
    TxBegin,
    TxBeginOk,
    TxCommitOk,
    TxEnd,
    TxProducer,
    TxProducerOk,
)

pytestmark = pytest.mark.timeout(120)


class Crash(Exception):
    """What a program may fail with."""


async def test_what_happens_in_a_transaction_is_seen_with_its_commit(broker, queue, name):
    other = f"{name}-other"
    await broker.declare_queue(other)
    await broker.publish(queue, b"in")
    async with broker.consume(queue) as consumer, broker.transaction() as transaction:
        (message,) = await taken(consumer, 1)
        await transaction.publish(other, b"made of " + message.value)
        await transaction.publish_many(other, [b"1", b"2"])
        transaction.ack(message)
        with pytest.raises(braidmq.AlreadySettled):
            message.ack()
    assert await drained(broker, other, 3) == [b"made of in", b"1", b"2"]
    assert await nothing_left(broker, queue)


async def test_an_exception_aborts_it(broker, queue, name):
    other = f"{name}-other"
    await broker.declare_queue(other)
    await broker.publish(queue, b"in")
    async with broker.consume(queue) as consumer:
        (message,) = await taken(consumer, 1)
        with pytest.raises(Crash):  # noqa: PT012
            async with broker.transaction() as transaction:
                await transaction.publish(other, b"never")
                await publishing_of(transaction).flush()
                transaction.ack(message)
                raise Crash
        (again,) = await taken(consumer, 1)
        assert again.value == b"in"
        assert again.redelivered
        again.ack()
    assert await nothing_left(broker, other)


async def test_what_was_acknowledged_comes_again_when_the_acks_never_left(broker, queue):
    await broker.publish(queue, b"in")
    async with broker.consume(queue) as consumer:
        (message,) = await taken(consumer, 1)
        with pytest.raises(Crash):  # noqa: PT012
            async with broker.transaction() as transaction:
                transaction.ack(message)
                raise Crash
        (again,) = await taken(consumer, 1)
        again.ack()
    assert await nothing_left(broker, queue)


async def test_a_topic_that_is_not_there_aborts_the_commit(broker, queue):
    with pytest.raises(braidmq.Unroutable):  # noqa: PT012
        async with broker.transaction() as transaction:
            await transaction.publish(queue, b"a")
            await transaction.publish(f"{queue}-not-there", b"b")
    assert await nothing_left(broker, queue)


async def test_a_name_is_committed_once(broker, queue, name):
    async with broker.transaction(name) as transaction:
        await transaction.publish(queue, b"once")
    with pytest.raises(braidmq.TransactionCommitted):
        async with broker.transaction(name):
            pass
    assert await drained(broker, queue, 1) == [b"once"]


async def test_branches_of_several_programs_and_a_commit_from_elsewhere(node, broker, queue, name):
    for branch in ("won", "lost"):
        async with (
            braidmq.connect(url_of(node)) as other,
            other.transaction(name, branch=branch) as transaction,
        ):
            await transaction.publish(queue, branch.encode())
            await transaction.leave()
    async with broker.transaction(name, join=True) as transaction:
        with pytest.raises(braidmq.UnknownBranch):
            await transaction.commit(branches=["none"])
    # A commit that was refused has aborted it.
    with pytest.raises(braidmq.TransactionAborted):
        async with broker.transaction(name, join=True):
            pass


async def test_the_commit_chooses_among_branches(broker, queue, name):
    for branch in ("won", "lost"):
        async with broker.transaction(name, branch=branch) as transaction:
            await transaction.publish(queue, branch.encode())
            await transaction.leave()
    async with broker.transaction(name, join=True) as transaction:
        await transaction.commit(branches=["won"])
    assert await drained(broker, queue, 1) == [b"won"]
    assert await nothing_left(broker, queue)


async def test_each_error_has_its_type(broker, queue, name):
    with pytest.raises(braidmq.UnknownTransaction):
        async with broker.transaction(name, join=True):
            pass
    async with broker.transaction(name) as transaction:
        await transaction.abort()
    with pytest.raises(braidmq.TransactionAborted):
        async with broker.transaction(name, join=True):
            pass
    with pytest.raises(braidmq.TransactionAborted):  # noqa: PT012
        async with broker.transaction(f"{name}-2") as transaction:
            await broker.admin.abort_transaction(f"{name}-2")
            await transaction.publish(queue, b"after the abort")
    step = braidmq.Application(name=name, epoch=1, sequence=5)
    async with broker.transaction(application=step):
        pass
    with pytest.raises(braidmq.TransactionCommitted):
        async with broker.transaction(application=step):
            pass
    with pytest.raises(braidmq.StaleApplication):
        async with broker.transaction(application={**step, "epoch": 0, "sequence": 6}):
            pass
    async with broker._link.short_channel(ChannelOwner()) as channel:
        with pytest.raises(braidmq.UnknownProducer):
            await channel.call(TxProducer(producer=1 << 40), TxProducerOk)
    assert await nothing_left(broker, queue)


async def test_a_silent_transaction_is_aborted_and_holds_nobody_up(broker, queue, name):
    async with broker._link.short_channel(ChannelOwner()) as channel:
        await channel.call(TxBegin(name, session_ms=50), TxBeginOk)
    async with asyncio.timeout(WAIT_S):
        while (await broker.admin.transaction(name))["state"] != "complete":
            await asyncio.sleep(0.01)
    assert (await broker.admin.transaction(name))["reason"] == "session"


async def test_a_producers_name_is_one_programs(broker, queue, name):
    async with broker.producer(name=name) as old:
        await old.send(queue, b"1")
        async with broker.producer(name=name) as new:
            await new.send(queue, b"2")
            with pytest.raises(braidmq.PublishRefused) as refused:
                await old.send(queue, b"3")
            assert isinstance(refused.value.__cause__, braidmq.ProducerFenced)
    assert await drained(broker, queue, 2) == [b"1", b"2"]


def test_idempotence_needs_confirms():
    class Nobody:
        loop = None

    with pytest.raises(braidmq.BadRequest):
        braidmq.Producer(Nobody(), ack="none", idempotent=True)


@pytest.mark.crash
async def test_what_is_sent_again_is_written_once(data_dir):
    """Killed in the midst of publishing; all is there, once, in order."""
    ports = dict(zip(("amqp_port", "http_port"), free_ports(2), strict=True))
    total = 20_000
    url = f"amqp://guest:guest@127.0.0.1:{ports['amqp_port']}/"
    http_url = f"http://127.0.0.1:{ports['http_port']}"
    starting = live_node(data_dir, **ports)
    life = await asyncio.to_thread(starting.__enter__)
    try:
        async with braidmq.connect(url, http_url=http_url) as broker:
            await broker.declare_queue("q")
            async with broker.producer(idempotent=True, window=1000) as producer:
                for number in range(total):
                    await producer.put("q", b"%d" % number)
                    if number % 6000 == 5999:
                        await asyncio.to_thread(life.kill)
                        starting.__exit__(None, None, None)
                        starting = live_node(data_dir, **ports)
                        life = await asyncio.to_thread(starting.__enter__)
                await producer.flush()
            found = [int(value or b"") for value in [m.value async for m in broker.read("q")]]
        assert found == list(range(total))
    finally:
        starting.__exit__(None, None, None)


@pytest.mark.crash
async def test_a_transaction_goes_on_after_the_node_came_back(data_dir):
    ports = dict(zip(("amqp_port", "http_port"), free_ports(2), strict=True))
    url = f"amqp://guest:guest@127.0.0.1:{ports['amqp_port']}/"
    async with asyncio.timeout(WAIT_S * 3):
        with live_node(data_dir, **ports) as life:
            broker = braidmq.connect(url)
            await broker.open()
            await broker.declare_queue("q")
            transaction = await broker.transaction().__aenter__()
            await transaction.publish_many("q", [b"%d" % number for number in range(500)])
            await publishing_of(transaction).flush()
            await transaction.publish_many("q", [b"%d" % number for number in range(500, 1000)])
            await asyncio.to_thread(life.kill)
        with live_node(data_dir, **ports):
            await transaction.publish("q", b"1000")
            await transaction.commit()
            found = await drained(broker, "q", 1001)
            assert found == [b"%d" % number for number in range(1001)]
            assert await nothing_left(broker, "q")
            await broker.close()


def test_the_synchronous_twin(node: LiveNode, name):
    other = f"{name}-other"
    with braidmq.connect_sync(url_of(node), http_url=node.http_url) as broker:
        broker.declare_queue(name)
        broker.declare_queue(other)
        with broker.producer(idempotent=True) as producer:
            producer.send_many(name, [b"a", b"b"])
        with broker.consume(name) as consumer:
            with broker.transaction() as transaction:
                for _ in range(2):
                    message = next(consumer)
                    transaction.publish(other, message.value)
                    transaction.ack(message)
            with pytest.raises(Crash), broker.transaction() as transaction:  # noqa: PT012
                transaction.publish(other, b"never")
                raise Crash
        with broker.consume(other) as consumer:
            assert [next(consumer).value for _ in range(2)] == [b"a", b"b"]
            assert consumer.get(0.1) is None
        with broker.consume(name) as consumer:
            assert consumer.get(0.1) is None


async def test_an_ack_does_not_take_what_a_transaction_is_to_answer_for(broker, queue):
    """Acknowledgements of all up to a message are one frame: not across one of a transaction."""
    for value in (b"1", b"2", b"3"):
        await broker.publish(queue, value)
    async with broker.consume(queue) as consumer:
        first, second, third = await taken(consumer, 3)
        with pytest.raises(Crash):  # noqa: PT012
            async with broker.transaction() as transaction:
                second.ack()
                transaction.ack(first)
                raise Crash
        third.ack()
        (again,) = await taken(consumer, 1)
        assert again.value == b"1"
        again.ack()
    assert await nothing_left(broker, queue)


async def test_acks_that_are_refused_change_nothing(broker, queue):
    """Of three messages one is answered already: the transaction gets none of them."""
    for value in (b"1", b"2", b"3"):
        await broker.publish(queue, value)
    async with broker.consume(queue) as consumer:
        first, second, third = await taken(consumer, 3)
        source, ((low, _),) = take(first)
        _, ((high, _),) = take(third)
        second.ack()
        async with broker._link.short_channel(ChannelOwner()) as own:
            await own.call(TxBegin(), TxBeginOk)
            with pytest.raises(braidmq.NotInFlight):
                await own.call(TxAck(source.channel.number, low, high), TxCommitOk)
        source.give_back(low, high)
        again = await taken(consumer, 2)
        assert [message.value for message in again] == [b"1", b"3"]
        for message in again:
            message.ack()
    assert await nothing_left(broker, queue)


async def test_who_was_in_a_transaction_does_not_get_into_another_of_its_name(broker, queue, name):
    async with (
        broker._link.short_channel(ChannelOwner()) as old,
        broker._link.short_channel(ChannelOwner()) as new,
        broker._link.short_channel(ChannelOwner()) as late,
    ):
        first = await old.call(TxBegin(name), TxBeginOk)
        await broker.admin.abort_transaction(name)
        second = await new.call(TxBegin(name), TxBeginOk)
        assert second.number != first.number
        with pytest.raises(braidmq.UnknownTransaction):
            await late.call(TxBegin(name, join=True, number=first.number), TxBeginOk)
        # Its own end is its own, not that of the one that is open.
        with pytest.raises(braidmq.TransactionAborted):
            await old.call(TxEnd(True), TxCommitOk)
        assert (await broker.admin.transaction(name))["state"] == "empty"
        await new.call(TxEnd(True), TxCommitOk)


@pytest.mark.parametrize(
    "method",
    [
        TxProducer(sequence=(1 << 62) + 1),
        TxBegin(sequence=(1 << 64) - 1),
        TxBegin(application="a", application_epoch=(1 << 64) - 1),
        TxBegin(timeout_ms=25 * 60 * 60 * 1000),
        TxBegin(session_ms=(1 << 64) - 1),
    ],
)
async def test_numbers_beyond_all_measure_are_refused(broker, method):
    async with broker._link.short_channel(ChannelOwner()) as channel:
        with pytest.raises(Conflict):
            await channel.call(method, TxBeginOk)


async def test_a_producer_that_is_closed_leaves_nothing_behind(broker, queue):
    async with broker.producer(idempotent=True) as producer:
        await producer.send(queue, b"1")
        identity = publishing_of_producer(producer)._identity
    async with broker._link.short_channel(ChannelOwner()) as channel:
        with pytest.raises(braidmq.UnknownProducer):
            await channel.call(TxProducer(producer=identity.id), TxProducerOk)
