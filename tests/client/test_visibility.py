"""Visibility timeouts in the client, against a live node."""

import asyncio
import time

import pytest
from talking import WAIT_S, nothing_left, taken

import braidmq

pytestmark = pytest.mark.timeout(60)


async def test_a_late_answer_is_an_error_and_settles_nothing(broker, queue):
    await broker.publish(queue, b"x")
    async with broker.consume(queue, visibility_ms=300) as consumer:
        (first,) = await taken(consumer, 1)
        (again,) = await taken(consumer, 1)
        for late in (first.ack, first.nack, first.reject):
            with pytest.raises(braidmq.DeliveryTimedOut):
                await late()
        with pytest.raises(braidmq.DeliveryTimedOut):
            await first.extend(1000)
        assert again.redelivered
        await again.ack()
        with pytest.raises(braidmq.AlreadySettled):
            await again.ack()
    assert await nothing_left(broker, queue)


async def test_an_extended_message_is_kept(broker, queue):
    await broker.publish(queue, b"x")
    began = time.monotonic()
    async with broker.consume(queue, visibility_ms=400) as consumer:
        (message,) = await taken(consumer, 1)
        await message.extend(1500)
        (again,) = await taken(consumer, 1)
        assert time.monotonic() - began >= 1.5
        await again.ack()
    assert await nothing_left(broker, queue)


async def test_others_get_what_waited_too_long_in_the_client(broker, queue):
    for body in (b"a", b"b"):
        await broker.publish(queue, body)
    async with broker.consume(queue, visibility_ms=300) as slow:
        (first,) = await taken(slow, 1)
        async with broker.consume(queue) as quick:
            got = await taken(quick, 2)
            assert sorted(each.value for each in got) == [b"a", b"b"]
            assert await slow.get(timeout_s=0.2) is None
            for each in got:
                await each.ack()
            with pytest.raises(braidmq.DeliveryTimedOut):
                await first.ack()
    assert await nothing_left(broker, queue)


@pytest.mark.parametrize("which", [0, 1])
async def test_an_answer_that_crosses_the_timeout_does_no_harm(broker, queue, which):
    """Acknowledged before the client could hear that its time is over: the channel goes on."""
    for body in (b"a", b"b"):
        await broker.publish(queue, body)
    async with broker.consume(queue, visibility_ms=1500) as consumer:
        first = await taken(consumer, 2)
        async with asyncio.timeout(WAIT_S):
            # The loop hears nothing meanwhile; what is delivered again has most of its time left.
            time.sleep(1.8)
            await first[which].ack()
            for again in await taken(consumer, 2):
                await again.ack()
    assert await nothing_left(broker, queue)


async def test_only_with_a_timeout_there_is_one_to_extend(broker, queue):
    await broker.publish(queue, b"x")
    async with broker.consume(queue) as consumer:
        (message,) = await taken(consumer, 1)
        with pytest.raises(braidmq.BraidError, match="visibility_ms"):
            await message.extend(1000)
        await message.ack()
    async with broker.consume(queue, visibility_ms=1000) as consumer:
        await broker.publish(queue, b"y")
        (message,) = await taken(consumer, 1)
        for bad in (0, -1, True, 1 << 50):
            with pytest.raises(braidmq.BraidError, match="visibility_ms"):
                await message.extend(bad)
        await message.ack()
