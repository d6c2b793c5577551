"""Queues, exchanges and bindings by the client, and what of them comes back with the connection."""

import asyncio

import pytest
from talking import WAIT_S, drained, taken, url_of

import braidmq
from braidmq.testing.live import LiveNode

pytestmark = pytest.mark.timeout(60)


async def cut(broker: braidmq.Broker) -> None:
    """Lose the connection, as with a cable, and wait for the next one."""
    before = broker._link._connection
    assert before is not None
    before._transport.abort()
    async with asyncio.timeout(WAIT_S):
        while broker._link._connection is before or not broker.connected:
            await asyncio.sleep(0.001)


async def test_a_queue_says_what_is_in_it(broker, name):
    assert await broker.declare_queue(name) == braidmq.Queue(name, 0, 0)
    await broker.publish(name, b"x")
    async with broker.consume(name, prefetch=1):
        assert (await broker.declare_queue(name)).consumer_count == 1
    assert (await broker.declare_queue(name)).message_count == 1
    with pytest.raises(braidmq.Conflict):
        await broker.declare_queue(name, auto_delete=True)
    with pytest.raises(braidmq.Conflict):
        await broker.delete_queue(name, if_empty=True)
    assert await broker.delete_queue(name) == 1
    with pytest.raises(braidmq.Unroutable):
        await broker.publish(name, b"x")


async def test_what_an_exchange_gets_goes_where_it_is_bound(broker, name):
    events, audit = f"{name}-events", f"{name}-audit"
    await broker.declare_exchange(events, "topic")
    await broker.declare_exchange(audit, "fanout")
    for queue in ("mail", "all"):
        await broker.declare_queue(f"{name}-{queue}")
    await broker.bind(events, f"{name}-mail", "order.*")
    await broker.bind(events, audit, "#", kind="exchange")
    await broker.bind(audit, f"{name}-all")
    confirm = await broker.publish("order.new", b"1", exchange=events)
    assert set(confirm.places) == {(f"{name}-mail", 0, 0), (f"{name}-all", 0, 0)}
    await broker.unbind(events, f"{name}-mail", "order.*")
    confirm = await broker.publish("order.new", b"2", exchange=events)
    assert confirm.place == (f"{name}-all", 0, 1)
    await broker.unbind(events, audit, "#", kind="exchange")
    with pytest.raises(braidmq.Unroutable):
        await broker.publish("order.new", b"3", exchange=events)
    with pytest.raises(braidmq.Conflict):
        await broker.delete_exchange(audit, if_unused=True)
    await broker.delete_exchange(audit)
    await broker.delete_exchange(events)
    with pytest.raises(braidmq.NotFound):
        await broker.bind(events, f"{name}-mail")


@pytest.mark.parametrize("kind", ["queues", "topic", ""])
async def test_a_kind_that_is_none(broker, kind):
    with pytest.raises(braidmq.BadRequest, match="'queue', 'exchange'"):
        await broker.bind("a", "b", kind=kind)
    with pytest.raises(braidmq.BadRequest, match="'queue', 'exchange'"):
        await broker.unbind("a", "b", kind=kind)


async def test_an_exclusive_queue_is_nobody_elses(broker, node: LiveNode):
    queue = await broker.declare_queue(exclusive=True)
    assert queue.name
    async with braidmq.connect(url_of(node)) as other:
        with pytest.raises(braidmq.Conflict):
            await other.declare_queue(queue.name, exclusive=True)
        await broker.publish(queue.name, b"x")
        assert await drained(broker, queue.name, 1) == [b"x"]
    assert (await broker.declare_queue(exclusive=True)).name != queue.name


async def test_what_goes_with_a_connection_comes_back_with_the_next(broker, name):
    """A program that is told of what happens, through a queue of its own without a name."""
    await broker.declare_exchange(f"{name}-x", "fanout", durable=False, auto_delete=True)
    await broker.declare_exchange(f"{name}-in", "direct", durable=False)
    await broker.bind(f"{name}-in", f"{name}-x", "k", kind="exchange")
    queue = await broker.declare_queue(exclusive=True, auto_delete=True)
    await broker.bind(f"{name}-x", queue.name)
    async with broker.consume(queue.name) as consumer, broker.producer() as producer:
        for number in range(3):
            await producer.send("k", b"%d" % number, exchange=f"{name}-in")
            (message,) = await taken(consumer, 1)
            assert message.value == b"%d" % number
            await message.ack()
            await cut(broker)


async def test_what_was_undone_stays_undone(broker, name):
    exchange, kept = f"{name}-x", f"{name}-kept"
    await broker.declare_exchange(exchange, "fanout", durable=False)
    for queue in (name, kept):
        await broker.declare_queue(queue, exclusive=True)
        await broker.bind(exchange, queue)
    await broker.unbind(exchange, kept)
    await broker.delete_queue(name)
    await cut(broker)
    with pytest.raises(braidmq.Unroutable):
        await broker.publish("", b"x", exchange=exchange)
    with pytest.raises(braidmq.Unroutable):
        await broker.publish(name, b"x")
    assert (await broker.publish(kept, b"x")).place == (kept, 0, 0)
    await broker.delete_exchange(exchange)
    await cut(broker)
    with pytest.raises(braidmq.PublishRefused):
        await broker.publish("", b"x", exchange=exchange)


async def test_a_queue_that_went_with_its_last_consumer_stays_away(broker, name):
    await broker.declare_queue(name, auto_delete=True)
    async with broker.consume(name), broker.consume(name):
        pass
    await cut(broker)
    with pytest.raises(braidmq.Unroutable):
        await broker.publish(name, b"x")


async def test_durable_queues_that_somebody_deleted_stay_away(broker, name, node: LiveNode):
    await broker.declare_queue(name)
    async with braidmq.connect(url_of(node)) as other:
        await other.delete_queue(name)
    await cut(broker)
    with pytest.raises(braidmq.Unroutable):
        await broker.publish(name, b"x")


async def test_somebody_elses_by_now(broker, name, node: LiveNode, caplog):
    """What can't be restored is said, and the rest goes on."""
    await broker.declare_exchange(name, "fanout", durable=False)
    async with braidmq.connect(url_of(node)) as other:
        await other.delete_exchange(name)
        await other.declare_exchange(name, "direct", durable=False)
        await cut(broker)
        assert "exchange.declare could not be restored" in caplog.text
        await broker.declare_queue(f"{name}-q")
        await broker.publish(f"{name}-q", b"x")


async def test_outside_its_with(node: LiveNode):
    broker = braidmq.connect(url_of(node))
    for work in (broker.publish("q", b"x"), broker.declare_queue("q"), broker.call("q", b"x")):
        with pytest.raises(braidmq.Closed, match="with"):
            await work
    async with broker:
        pass
    for work in (broker.publish("q", b"x"), broker.declare_queue("q"), broker.call("q", b"x")):
        with pytest.raises(braidmq.Closed, match="closed"):
            await work
