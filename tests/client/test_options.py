"""Options that are none are refused at once, and what is used outside its ``with``."""

import pytest

import braidmq

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ack": "bogus"}, "'none', 'leader', 'all'"),
        ({"blocked": "later"}, "'wait', 'raise'"),
        ({"ack": "none", "idempotent": True}, "idempotent"),
    ],
)
async def test_of_producers(broker, options, said):
    with pytest.raises(braidmq.BadRequest, match=said):
        broker.producer(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "bogus"}, "'shared', 'key-ordered', 'single-active', 'exclusive', 'assigned'"),
        ({"start": "now"}, "'earliest', 'latest', an offset, or a datetime"),
        ({"start": -1}, "0 or more"),
        ({"start": True}, "an offset"),
        ({"start": 1.5}, "an offset"),
    ],
)
async def test_of_consumers(broker, queue, options, said):
    with pytest.raises(braidmq.BadRequest, match=said):
        broker.consume(queue, group="g", **options)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"overflow": "bogus"}, "'reject'"),
        ({"ordering": "bogus"}, "'strict'"),
        ({"durability": 1}, "'disk'"),
    ],
)
async def test_of_topics(broker, name, settings, said):
    for work in (
        broker.admin.create_topic(name, **settings),
        broker.admin.alter_topic(name, **settings),
        broker.admin.put_template(name, "x-*", settings),
    ):
        with pytest.raises(braidmq.BadRequest, match=said):
            await work
    with pytest.raises(braidmq.BadRequest, match="'shared'"):
        await broker.admin.create_subscription(name, "s", mode="bogus")


async def test_a_consumer_outside_its_with(broker, queue):
    consumer = broker.consume(queue)

    async def all_of_it() -> None:
        works = (
            anext(consumer),
            consumer.get(0),
            consumer.next_batch(0),
            anext(consumer.batches()),
        )
        for work in works:
            with pytest.raises(braidmq.Closed, match="with"):
                await work
        with pytest.raises(braidmq.Closed, match="with"):
            async for _ in consumer:
                pass

    await all_of_it()
    async with consumer:
        await broker.publish(queue, b"x")
        assert (await anext(consumer)).value == b"x"
    await all_of_it()
    with pytest.raises(braidmq.Closed, match="consume\\(\\)"):
        await consumer.__aenter__()


async def test_a_consumer_that_was_refused(broker, name):
    consumer = broker.consume(name)
    with pytest.raises(braidmq.NotFound):
        await consumer.__aenter__()
    with pytest.raises(braidmq.NotFound):
        await anext(consumer)


async def test_a_producer_outside_its_with(broker, queue):
    producer = broker.producer()

    async def all_of_it() -> None:
        for work in (producer.send(queue, b"x"), producer.send_many(queue, [b"x"])):
            with pytest.raises(braidmq.Closed, match="with"):
                await work
        with pytest.raises(braidmq.Closed, match="with"):
            await producer.put(queue, b"x")

    await all_of_it()
    async with producer:
        await producer.send(queue, b"x")
    await all_of_it()
