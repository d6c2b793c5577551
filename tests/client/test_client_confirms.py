"""What a confirm says: where a message is, one by one and as a stream."""

import asyncio

import pytest
from talking import WAIT_S, taken, url_of

import braidmq
from braidmq.testing.live import LiveNode

pytestmark = pytest.mark.timeout(60)


async def test_a_message_is_where_its_confirm_says(broker, queue):
    for number in range(3):
        confirm = await broker.publish(queue, b"%d" % number)
        assert (confirm.error, confirm.place) == (None, braidmq.Place(queue, 0, number))
        assert (confirm.routing_key, confirm.value) == (queue, b"%d" % number)
    assert "offset=2" in repr(confirm)


async def test_in_many_partitions_many_at_once(broker, name):
    """With keys and without, in batches whose neighbours go elsewhere."""
    await broker.admin.create_topic(name, partitions=5)
    async with broker.producer(linger_ms=20) as producer:
        confirms = await asyncio.gather(
            *(
                producer.send(name, b"%d" % number, key=f"k{number % 7}" if number % 3 else None)
                for number in range(400)
            )
        )
    told = {confirm.value: confirm.place for confirm in confirms}
    found = {m.value: (name, m.partition, m.offset) async for m in broker.read(name)}
    assert told == found
    assert len({place.partition for place in told.values()}) == 5


async def test_producers_that_share_a_journal_entry(broker, queue, node: LiveNode):
    """Publishes of many connections to one queue are one batch to the broker."""

    async def publish(mark: int) -> list[braidmq.Confirm]:
        async with braidmq.connect(url_of(node)) as other, other.producer(linger_ms=0) as producer:
            await producer.put(queue, b"put")
            sends = (producer.send(queue, b"%d-%d" % (mark, number)) for number in range(50))
            return await asyncio.gather(*sends)

    every = await asyncio.gather(*(publish(mark) for mark in range(6)))
    told = {confirm.value: confirm.place for confirms in every for confirm in confirms}
    found = {m.value: (queue, m.partition, m.offset) async for m in broker.read(queue)}
    assert found.pop(b"put")
    assert told == found


async def test_a_partition_that_was_named(broker, name):
    await broker.admin.create_topic(name, partitions=3)
    confirm = await broker.publish(name, b"x", partition=2)
    assert confirm.place == (name, 2, 0)


async def test_nothing_is_said_that_is_not_known(broker, name):
    await broker.admin.create_topic(name, partitions=1, deduplication_window_ms=60_000)
    for _ in range(2):
        confirm = await broker.publish(name, b"x", message_id="same")
        assert (confirm.places, confirm.place) == ((), None)


async def test_idempotent_producers_are_told_too(broker, name):
    await broker.admin.create_topic(name, partitions=3)
    async with broker.producer(idempotent=True) as producer:
        sends = (producer.send(name, b"%d" % n, key=None if n % 2 else "k") for n in range(40))
        confirms = await asyncio.gather(*sends)
    told = {confirm.value: confirm.place for confirm in confirms}
    assert told == {m.value: (name, m.partition, m.offset) async for m in broker.read(name)}


async def test_who_only_puts_is_told_nothing(broker, queue):
    async with broker.producer() as producer:
        await producer.put(queue, b"x")
        await producer.flush()
        assert not producer._publishing._wants_places


async def test_a_producer_without_confirms(broker, queue):
    async with broker.producer(ack="none") as producer:
        assert (await producer.send(queue, b"x")).places == ()
        with pytest.raises(braidmq.BadRequest):
            producer.confirms()


# --- a stream ---


async def test_every_put_has_its_confirm(broker, queue):
    async with broker.producer() as producer:
        stream = producer.confirms()

        async def read() -> list[braidmq.Confirm]:
            return [confirm async for confirm in stream]

        reading = asyncio.create_task(read())
        for number in range(500):
            await producer.put(queue, b"%d" % number)
        await producer.put_many(queue, [b"500", b"501"])
        await producer.put("nowhere", b"lost")
        assert (await producer.send(queue, b"mine")).place == (queue, 0, 502)
        await producer.flush()  # who reads the stream has what failed
    async with asyncio.timeout(WAIT_S):
        confirms = await reading
    assert [confirm.value for confirm in confirms if confirm.error is None] == [
        b"%d" % number for number in range(502)
    ]
    assert [c.place for c in confirms[:502]] == [(queue, 0, number) for number in range(502)]
    (lost,) = (confirm for confirm in confirms if confirm.error is not None)
    assert (type(lost.error), lost.routing_key, lost.value) == (
        braidmq.Unroutable, "nowhere", b"lost",
    )  # fmt: skip


async def test_puts_wait_for_who_does_not_read(broker, queue):
    async with broker.producer(window=50, batch_records=10) as producer:
        stream = producer.confirms()

        async def put() -> None:
            for _ in range(500):
                await producer.put(queue, b"x")

        putting = asyncio.create_task(put())
        await taken_from(stream, 1)
        for _ in range(20):
            await broker.publish(queue, b"others go on")
        assert not putting.done()
        assert len(producer._publishing._stream) <= 2 * 50
        assert len(await taken_from(stream, 499)) == 499
        await putting


async def test_a_stream_ends_with_an_error_if_there_is_one(node: LiveNode, queue):
    async with braidmq.connect(url_of(node), reconnect=False) as broker:
        producer = await broker.producer().__aenter__()
        stream = producer.confirms()
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        broker._link._connection._transport.abort()
        with pytest.raises(braidmq.ConnectionLost):
            await reading


async def taken_from(stream, count: int) -> list[braidmq.Confirm]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(stream) for _ in range(count)]


# --- blocks of work ---


async def test_a_block_that_ends_well_acknowledges(broker, queue):
    await broker.publish(queue, b"1")
    async with broker.consume(queue) as consumer:
        (message,) = await taken(consumer, 1)
        async with message.process():
            pass
        with pytest.raises(braidmq.AlreadySettled):
            await message.ack()
    assert (await broker.declare_queue(queue)).message_count == 0


async def test_a_block_that_fails_tries_again_and_then_gives_up(broker, name):
    await broker.declare_queue(f"{name}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    await broker.declare_queue(name, arguments=arguments)
    await broker.publish(name, b"bad")
    async with broker.consume(name) as consumer, broker.consume(f"{name}-dead") as dead:
        for error in (KeyError("first"), ValueError("no such job")):
            (message,) = await taken(consumer, 1)
            with pytest.raises(type(error)):
                async with message.process(delay_ms=1, reject=ValueError):
                    raise error
        (letter,) = await taken(dead, 1)
        assert (letter.death.reason, letter.death.error) == ("rejected", "ValueError: no such job")
        assert letter.death.attempts == 2
        await letter.ack()


async def test_what_was_answered_inside_stays_so(broker, queue):
    async with broker.producer() as producer:
        await producer.send_many(queue, [b"%d" % number for number in range(4)])
    async with broker.consume(queue) as consumer:
        messages = await taken(consumer, 3)
        async with messages[0].process():
            await messages[0].ack()
        with pytest.raises(KeyError):  # noqa: PT012
            async with messages[1].process():
                await messages[1].ack()
                raise KeyError
        async with messages[2].process():
            await messages[2].nack(delay_ms=1)
        assert {m.value for m in await taken(consumer, 2)} == {b"3", b"2"}


async def test_a_block_for_a_batch(broker, queue):
    async with broker.producer() as producer:
        await producer.send_many(queue, [b"%d" % number for number in range(10)])
    async with broker.consume(queue, prefetch=10) as consumer:
        batch = await consumer.next_batch()
        assert len(batch) == 10
        first, *_ = batch
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with batch.process():
                await first.ack()
                raise ZeroDivisionError
        again = await taken(consumer, 9)
        assert [int(m.value) for m in again] == list(range(1, 10))
        assert all(message.redelivered for message in again)


async def test_who_is_cancelled_gives_it_back(broker, queue):
    await broker.publish(queue, b"1")
    async with broker.consume(queue, prefetch=1) as consumer:
        (message,) = await taken(consumer, 1)

        async def work() -> None:
            async with message.process(reject=Exception):
                await asyncio.Event().wait()

        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        working.cancel()
        (again,) = await taken(consumer, 1)
        assert (again.value, again.redelivered) == (b"1", True)
