"""Publishing through the client, against a live node."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from talking import drained, nothing_left, taken

import braidmq
from braidmq.client.publishing import _Batch
from braidmq.wire.amqp.client import PublishBatch

pytestmark = pytest.mark.timeout(60)


async def test_a_message_sent_is_there_when_send_returns(broker, queue):
    async with broker.producer(linger_ms=0) as producer:
        await producer.send(queue, b"hello")
        assert producer.unconfirmed == 0
    assert await drained(broker, queue, 1) == [b"hello"]


async def test_values_may_be_text_and_other_buffers(broker, queue):
    for value in ("täxt", bytearray(b"array"), memoryview(b"view"), b""):
        await broker.publish(queue, value)
    assert await drained(broker, queue, 4) == ["täxt".encode(), b"array", b"view", b""]


@pytest.mark.parametrize("value", [5, True, None, {"a": 1}])
async def test_what_is_no_value_is_refused(broker, queue, value):
    with pytest.raises(TypeError, match="bytes or str"):
        await broker.publish(queue, value)


async def test_a_body_of_many_frames(broker, queue):
    values = [bytes([number]) * size for number, size in enumerate((131_064, 131_065, 900_000))]
    async with broker.producer() as producer:
        await producer.send_many(queue, values)
    assert await drained(broker, queue, 3) == values


async def test_order_is_that_of_the_puts_whatever_ends_a_batch(broker, queue):
    values = [b"%d" % number + b"." * (number % 7 * 4000) for number in range(500)]
    async with broker.producer(batch_records=10, batch_bytes=20_000) as producer:
        for value in values[:300]:
            await producer.put(queue, value)
        await producer.put_many(queue, values[300:400])
        for value in values[400:]:
            await producer.put(queue, value)
    assert await drained(broker, queue, 500) == values


async def test_sends_at_once_share_a_batch(broker, queue):
    async with broker.producer(linger_ms=0) as producer:
        await asyncio.gather(*(producer.send(queue, b"%d" % n) for n in range(1000)))
    assert await drained(broker, queue, 1000) == [b"%d" % n for n in range(1000)]


async def test_a_batch_lingers_until_flush(broker, queue):
    async with broker.producer(linger_ms=3_600_000) as producer:
        await producer.put(queue, b"1")
        assert producer.unconfirmed == 1
        await producer.flush()
        assert producer.unconfirmed == 0
    assert await drained(broker, queue, 1) == [b"1"]


async def test_linger_ends_by_itself(broker, queue):
    async with broker.producer(linger_ms=20) as producer:
        await producer.send(queue, b"1")
    assert await drained(broker, queue, 1) == [b"1"]


async def test_without_confirms_everything_still_comes(broker, queue):
    async with broker.producer(ack="none") as producer:
        for number in range(1000):
            await producer.put(queue, b"%d" % number)
        await producer.send(queue, b"last")
        await producer.flush()
        assert producer.unconfirmed == 0
        assert len(await drained(broker, queue, 1001)) == 1001


async def test_the_window_holds_back(broker, queue):
    async with broker.producer(window=100, batch_records=10) as producer:
        for number in range(2000):
            await producer.put(queue, b"%d" % number)
            assert producer.unconfirmed <= 100
    assert len(await drained(broker, queue, 2000)) == 2000


async def test_puts_that_nobody_awaits_are_refused_in_the_end(broker, queue):
    async with broker.producer(window=100) as producer:
        for _ in range(200):
            producer.put(queue, b"x")
        with pytest.raises(braidmq.WindowFull):
            producer.put(queue, b"x")


# --- what fails ---


async def test_a_topic_that_is_not_there(broker, queue):
    async with broker.producer(linger_ms=0) as producer:
        with pytest.raises(braidmq.Unroutable, match="nowhere"):
            await producer.send("nowhere", b"lost")
        await producer.send(queue, b"goes on")
    assert await drained(broker, queue, 1) == [b"goes on"]


async def test_only_those_that_are_unroutable_fail(broker, queue):
    async with broker.producer(linger_ms=1000) as producer:
        sends = [producer.send(queue if number % 3 else "nowhere", b"same") for number in range(30)]
        sends.append(producer.flush())
        results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(each) for each in results[:30]] == [
        braidmq.Confirm if number % 3 else braidmq.Unroutable for number in range(30)
    ]


async def test_failures_of_puts_are_raised_by_flush(broker, queue):
    async with broker.producer() as producer:
        for number in range(5):
            await producer.put("nowhere" if number == 3 else queue, b"%d" % number)
        with pytest.raises(braidmq.PublishFailed) as caught:
            await producer.flush()
        (failure,) = caught.value.failures
        assert (failure.routing_key, failure.value) == ("nowhere", b"3")
        assert isinstance(failure.error, braidmq.Unroutable)
        await producer.flush()


async def test_failures_of_puts_go_to_a_callback(broker):
    failures: list[braidmq.Failure] = []
    async with broker.producer(on_error=failures.append) as producer:
        await producer.put("nowhere", b"1")
        await producer.flush()
    assert [failure.value for failure in failures] == [b"1"]


async def test_a_full_queue_refuses(broker, name):
    await broker.declare_queue(name, arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
    async with broker.producer() as producer:
        with pytest.raises(braidmq.PublishFailed) as caught:
            await producer.send_many(name, [b"%d" % number for number in range(5)])
        assert [failure.value for failure in caught.value.failures] == [b"3", b"4"]
        assert {type(failure.error) for failure in caught.value.failures} == {braidmq.Nacked}
    assert await drained(broker, name, 3) == [b"0", b"1", b"2"]


async def test_an_exchange_that_is_not_there_refuses_and_the_producer_lives(broker, queue):
    async with broker.producer(linger_ms=0) as producer:
        with pytest.raises(braidmq.PublishRefused, match="no exchange"):
            await producer.send("key", b"1", exchange="missing")
        await producer.send(queue, b"2")
    assert await drained(broker, queue, 1) == [b"2"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"delay_ms": -1},
        {"delay_ms": 1, "deliver_at": 2},
        {"priority": 256},
        {"message_id": "x" * 256},
        {"headers": {"x": object()}},
        {"ttl_ms": 1.5},
    ],
)
async def test_what_no_message_can_say(broker, queue, metadata):
    async with broker.producer() as producer:
        with pytest.raises(braidmq.BadMetadata):
            producer.put(queue, b"", **metadata)
        assert producer.unconfirmed == 0


async def test_a_cancelled_send_harms_nobody_else(broker, queue):
    async with broker.producer(linger_ms=1000) as producer:
        first = asyncio.create_task(producer.send(queue, b"1"))
        second = asyncio.create_task(producer.send(queue, b"2"))
        await asyncio.sleep(0)
        first.cancel()
        await producer.flush()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
    assert await drained(broker, queue, 2) == [b"1", b"2"]


async def test_a_producer_that_is_not_open_says_so(broker, queue):
    producer = broker.producer()
    with pytest.raises(braidmq.Closed):
        await producer.put(queue, b"early")
    await producer.close()


async def test_a_closed_producer_says_so(broker, queue):
    async with broker.producer() as producer:
        pass
    with pytest.raises(braidmq.Closed):
        await producer.send(queue, b"late")


# --- what a message says ---


async def test_metadata_arrives(broker, queue):
    at = datetime(2026, 11, 16, 12, tzinfo=UTC)
    await broker.publish(
        queue,
        b"{}",
        key="customer-7",
        headers={"trace": "abc", "n": 5},
        priority=3,
        ttl_ms=60_000,
        content_type="application/json",
        content_encoding="identity",
        correlation_id="c1",
        reply_to="answers",
        message_id="m1",
        timestamp=at,
        type="order",
        app_id="tests",
    )
    async with broker.consume(queue, auto_ack=True) as consumer:
        (message,) = await taken(consumer, 1)
    assert message.key == b"customer-7"
    assert {"trace": "abc", "n": 5}.items() <= message.headers.items()
    assert (message.priority, message.ttl_ms) == (3, 60_000)
    assert (message.content_type, message.content_encoding) == ("application/json", "identity")
    assert (message.correlation_id, message.reply_to, message.message_id) == ("c1", "answers", "m1")
    assert (message.timestamp, message.properties.type, message.properties.app_id) == (
        at,
        "order",
        "tests",
    )
    assert (message.topic, message.routing_key, message.exchange) == (queue, queue, "")
    assert (message.redelivered, message.delivery_count) == (False, 1)


async def test_a_key_that_is_no_text(broker, queue):
    await broker.publish(queue, b"", key=b"\xff\x00")
    async with broker.consume(queue, auto_ack=True) as consumer:
        assert (await taken(consumer, 1))[0].key == b"\xff\x00"


@pytest.mark.parametrize("how", ["delay", "time", "milliseconds"])
async def test_a_delayed_message_is_overtaken(broker, queue, how):
    due = datetime.now(UTC) + timedelta(seconds=0.4)
    said = {
        "delay": {"delay_ms": 400},
        "time": {"deliver_at": due},
        "milliseconds": {"deliver_at": int(due.timestamp() * 1000)},
    }[how]
    await broker.publish(queue, b"later", **said)
    await broker.publish(queue, b"now")
    assert await drained(broker, queue, 2) == [b"now", b"later"]
    assert datetime.now(UTC) >= due - timedelta(seconds=0.4)
    assert await nothing_left(broker, queue)


# --- settling, by itself ---


def test_settling_counts_each_message_once():
    batch = _Batch(PublishBatch())
    batch.publishes.extend(b"\0" * 20, b"", [b""] * 10)
    assert list(batch.settle(4, 6)) == [4, 5]
    assert batch.settled == 0
    assert list(batch.settle(0, 5)) == [0, 1, 2, 3]
    assert batch.settled == 6
    assert list(batch.settle(-3, 99)) == [6, 7, 8, 9]
    assert batch.settled == 10
