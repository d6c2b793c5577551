"""Consuming through the client, against a live node."""

import asyncio

import pytest
from talking import WAIT_S, nothing_left, taken, url_of

import braidmq
from braidmq.client.consumer import consuming_of
from braidmq.testing.live import LiveNode

pytestmark = pytest.mark.timeout(60)


async def filled(broker: braidmq.Broker, queue: str, count: int) -> None:
    async with broker.producer() as producer:
        await producer.send_many(queue, [b"%d" % number for number in range(count)])


async def test_messages_one_by_one(broker, queue):
    await filled(broker, queue, 3000)
    async with broker.consume(queue, prefetch=100) as consumer:
        for number in range(3000):
            message = await anext(consumer)
            assert message.value == b"%d" % number
            await message.ack()
    assert await nothing_left(broker, queue)


async def test_messages_in_batches(broker, queue):
    await filled(broker, queue, 3000)
    values: list[bytes] = []
    async with broker.consume(queue, prefetch=500) as consumer:
        async for batch in consumer.batches():
            assert len(batch) == len(batch.values) <= 500
            assert [message.value for message in batch] == batch.values
            values += batch.values
            await batch.ack()
            if len(values) == 3000:
                break
    assert values == [b"%d" % number for number in range(3000)]
    assert await nothing_left(broker, queue)


async def test_what_is_not_answered_goes_back(broker, queue):
    await filled(broker, queue, 10)
    async with broker.consume(queue) as consumer:
        messages = await taken(consumer, 10)
        for message in messages[1::2]:
            await message.ack()
        with pytest.raises(braidmq.AlreadySettled):
            await messages[1].ack()
    async with broker.consume(queue) as consumer:
        again = await taken(consumer, 5)
        assert [message.value for message in again] == [b"0", b"2", b"4", b"6", b"8"]
        assert all(message.redelivered for message in again)
        for message in reversed(again):
            await message.ack()
    assert await nothing_left(broker, queue)


async def test_prefetch_is_a_limit(broker, queue):
    await filled(broker, queue, 10)
    async with broker.consume(queue, prefetch=4) as consumer:
        messages = await taken(consumer, 4)
        assert await consumer.get(timeout_s=0.05) is None
        messages[0].ack()
        assert (await taken(consumer, 1))[0].value == b"4"


async def test_nack_delivers_again(broker, queue):
    await filled(broker, queue, 2)
    async with broker.consume(queue) as consumer:
        first, second = await taken(consumer, 2)
        await first.nack()
        await second.ack()
        (again,) = await taken(consumer, 1)
        assert (again.value, again.redelivered, again.delivery_count) == (b"0", True, 2)
        await again.ack()
    assert await nothing_left(broker, queue)


async def test_nack_after_a_time(broker, queue):
    await filled(broker, queue, 1)
    loop = asyncio.get_running_loop()
    async with broker.consume(queue) as consumer:
        (first,) = await taken(consumer, 1)
        since = loop.time()
        await first.nack(delay_ms=300)
        (again,) = await taken(consumer, 1)
        assert loop.time() - since >= 0.29
        await again.ack()


async def test_a_batch_is_answered_but_for_what_was_answered_before(broker, queue):
    await filled(broker, queue, 6)
    async with broker.consume(queue) as consumer:
        batch = await consumer.next_batch(WAIT_S)
        assert batch is not None
        messages = list(batch)
        assert len(messages) == 6
        messages[2].ack()
        messages[4].ack()
        batch.nack()
        with pytest.raises(braidmq.AlreadySettled):
            batch.ack()
        again = await taken(consumer, 4)
        assert sorted(message.value for message in again) == [b"0", b"1", b"3", b"5"]
        for message in again:
            message.ack()
    assert await nothing_left(broker, queue)


async def test_reject_makes_a_dead_letter(broker, name):
    dead = f"{name}-dead"
    await broker.declare_queue(dead)
    await broker.declare_queue(
        name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    )
    await filled(broker, name, 3)
    async with broker.consume(name) as consumer:
        messages = await taken(consumer, 3)
        messages[0].ack()
        messages[1].reject()
        messages[2].ack()
    async with broker.consume(dead, auto_ack=True) as consumer:
        (letter,) = await taken(consumer, 1)
    assert letter.value == b"1"
    assert letter.headers["x-death"][0]["reason"] == "rejected"


async def died(broker, name: str, **arguments) -> tuple[braidmq.Consumer, str]:
    dead = f"{name}-dead"
    await broker.declare_queue(dead)
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    await broker.declare_queue(name, arguments=to | arguments)
    return dead


async def test_an_error_is_kept_with_the_dead_letter(broker, name):
    dead = await died(broker, name)
    await filled(broker, name, 4)
    async with broker.consume(name) as consumer:
        messages = await taken(consumer, 4)
        messages[1].reject(error="not an order \N{SNOWMAN}")
        messages[2].reject(error=KeyError("price"))
        messages[3].reject(error="x" * 5000)
        messages[0].ack()
        with pytest.raises(braidmq.AlreadySettled):
            messages[1].reject(error="again")
    async with broker.consume(dead, auto_ack=True) as consumer:
        letters = await taken(consumer, 3)
    deaths = [letter.death for letter in letters]
    said = ["not an order \N{SNOWMAN}", "KeyError: 'price'", "x" * 4096]
    assert [death.error for death in deaths] == said
    assert {(d.topic, d.reason, d.partition, d.attempts) for d in deaths} == {
        (name, "rejected", 0, 1)
    }
    assert [death.offset for death in deaths] == [1, 2, 3]
    assert {death.subscription for death in deaths} == {"queue"}
    assert all(death.time is not None and death.time.year >= 2024 for death in deaths)
    assert messages[0].death is None


async def test_a_nack_with_an_error_is_a_nack(broker, name):
    dead = await died(broker, name, **{"x-queue-type": "quorum", "x-delivery-limit": 2})
    await filled(broker, name, 1)
    async with broker.consume(name) as consumer:
        for attempt in range(3):
            (message,) = await taken(consumer, 1)
            assert message.delivery_count == attempt + 1
            await message.nack(delay_ms=0, error=f"attempt {attempt}")
    async with broker.consume(dead, auto_ack=True) as consumer:
        (letter,) = await taken(consumer, 1)
    assert (letter.death.reason, letter.death.attempts) == ("max-attempts", 3)
    assert letter.death.error == "attempt 2"


async def test_a_batch_fails_with_an_error(broker, name):
    dead = await died(broker, name)
    await filled(broker, name, 3)
    async with broker.consume(name) as consumer:
        batch = await consumer.next_batch(WAIT_S)
        assert batch is not None
        list(batch)[1].ack()
        batch.reject(error="all of them")
    async with broker.consume(dead, auto_ack=True) as consumer:
        letters = await taken(consumer, 2)
    assert [letter.value for letter in letters] == [b"0", b"2"]
    assert {letter.death.error for letter in letters} == {"all of them"}


async def test_a_broker_that_keeps_no_errors_is_not_told_any(broker, queue, monkeypatch):
    await filled(broker, queue, 1)
    async with broker.consume(queue) as consumer:
        (message,) = await taken(consumer, 1)
        monkeypatch.setattr(consuming_of(consumer)._channel.connection, "can_tell_errors", False)
        for answer in (message.nack, message.reject):
            with pytest.raises(braidmq.Unsupported):
                answer(error="why")
        await message.ack()
    assert await nothing_left(broker, queue)


async def test_two_consumers_share_a_queue(broker, queue):
    async with (
        broker.consume(queue, prefetch=10) as one,
        broker.consume(queue, prefetch=10) as other,
    ):
        await filled(broker, queue, 20)
        found = await taken(one, 10) + await taken(other, 10)
    assert sorted(int(message.value) for message in found) == list(range(20))


async def test_an_exclusive_consumer_is_alone(broker, queue):
    async with broker.consume(queue, exclusive=True):
        with pytest.raises(braidmq.AccessRefused):
            async with broker.consume(queue):
                pass


async def test_a_queue_that_is_not_there(broker, queue):
    with pytest.raises(braidmq.NotFound, match="nowhere"):
        async with broker.consume("nowhere"):
            pass
    await broker.publish(queue, b"the connection lives")


async def test_get_without_a_message(broker, queue):
    async with broker.consume(queue) as consumer:
        assert await consumer.get(timeout_s=0.01) is None
        await broker.publish(queue, b"x")
        message = await consumer.get(WAIT_S)
        assert message is not None
        message.ack()


async def test_a_cancelled_wait_loses_nothing(broker, queue):
    async with broker.consume(queue, auto_ack=True) as consumer:
        for number in range(20):
            waiting = asyncio.create_task(anext(consumer))
            await asyncio.sleep(0)
            waiting.cancel()
            await broker.publish(queue, b"%d" % number)
            assert [message.value for message in await taken(consumer, 1)] == [b"%d" % number]


async def test_a_closed_consumer_says_so(broker, queue):
    async with broker.consume(queue) as consumer:
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
    with pytest.raises(braidmq.Closed):
        await waiting


# --- groups ---


async def values_of(broker: braidmq.Broker, queue: str, count: int, **options) -> list[bytes]:
    async with broker.consume(queue, auto_ack=True, **options) as consumer:
        return [message.value for message in await taken(consumer, count)]


async def test_every_group_has_every_message(broker, queue):
    async with (
        broker.consume(queue, group="billing") as billing,
        broker.consume(queue, group="shipping") as shipping,
    ):
        await filled(broker, queue, 50)
        for consumer in (billing, shipping):
            messages = await taken(consumer, 50)
            assert [message.value for message in messages] == [b"%d" % n for n in range(50)]


async def test_a_group_goes_on_where_it_was(broker, queue):
    async with broker.consume(queue, group="g") as consumer:
        await filled(broker, queue, 10)
        for message in await taken(consumer, 6):
            message.ack()
    assert await values_of(broker, queue, 4, group="g") == [b"6", b"7", b"8", b"9"]


async def test_where_a_new_group_begins(broker, queue):
    await filled(broker, queue, 10)
    assert await values_of(broker, queue, 10, group="all") == [b"%d" % n for n in range(10)]
    assert await values_of(broker, queue, 3, group="some", start=7) == [b"7", b"8", b"9"]
    async with broker.consume(queue, group="new", start="latest", auto_ack=True) as consumer:
        await broker.publish(queue, b"fresh")
        assert [message.value for message in await taken(consumer, 1)] == [b"fresh"]


async def test_members_of_a_group_share_its_messages(broker, queue):
    async with (
        broker.consume(queue, group="g", prefetch=10) as one,
        broker.consume(queue, group="g", prefetch=10) as other,
    ):
        await filled(broker, queue, 20)
        found = await taken(one, 10) + await taken(other, 10)
    assert sorted(int(message.value) for message in found) == list(range(20))


async def test_one_key_goes_to_one_member(broker, queue):
    async with (
        broker.consume(queue, group="g", mode="key-ordered") as one,
        broker.consume(queue, group="g", mode="key-ordered") as other,
    ):
        async with broker.producer() as producer:
            for number in range(200):
                await producer.put(queue, b"%d" % number, key=f"customer-{number % 20}")
        found = {one: set[bytes](), other: set[bytes]()}
        last: dict[bytes, int] = {}
        left = 200
        while left:
            for consumer, keys in found.items():
                while (message := await consumer.get(timeout_s=0.01)) is not None:
                    assert message.key is not None
                    assert last.get(message.key, -1) < int(message.value)
                    last[message.key] = int(message.value)
                    keys.add(message.key)
                    left -= 1
        assert len(last) == 20
        assert not found[one] & found[other]


async def test_a_group_in_another_mode(broker, queue):
    async with broker.consume(queue, group="g"):
        with pytest.raises(braidmq.Conflict, match="shared"):
            async with broker.consume(queue, group="g", mode="key-ordered"):
                pass


@pytest.mark.parametrize("group", ["", "queue", "queue.0123"])
async def test_names_that_are_no_groups(broker, queue, group):
    with pytest.raises(braidmq.Conflict, match="x-group"):
        async with broker.consume(queue, group=group):
            pass


async def test_a_deleted_queue_ends_its_consumers(node: LiveNode, broker, queue):
    import pika

    async with broker.consume(queue) as consumer:
        parameters = pika.URLParameters(url_of(node))
        connection = await asyncio.to_thread(pika.BlockingConnection, parameters)
        await asyncio.to_thread(lambda: connection.channel().queue_delete(queue))
        with pytest.raises(braidmq.ConsumerCancelled):
            await anext(consumer)
        await asyncio.to_thread(connection.close)
