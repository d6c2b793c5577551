"""Calls and who serves them."""

import asyncio

import pytest
from talking import WAIT_S, drained, taken, url_of

import braidmq
from braidmq.testing.live import LiveNode

pytestmark = pytest.mark.timeout(60)


async def upper(message: braidmq.Message) -> bytes:
    if message.value == b"bad":
        raise ValueError("no such word")
    return message.value.upper()


@pytest.fixture
async def served(broker, queue):
    serving = asyncio.create_task(broker.serve(queue, upper))
    yield queue
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving


async def test_a_call_and_its_answer(broker, served):
    answer = await broker.call(served, b"hello")
    assert answer.value == b"HELLO"
    await answer.ack()  # needs no answer, and takes one


async def test_many_calls_at_once(broker, served, node: LiveNode):
    async with braidmq.connect(url_of(node)) as other:
        calls = [
            (broker if number % 2 else other).call(served, b"x%d" % number) for number in range(200)
        ]
        answers = await asyncio.gather(*calls)
    assert [answer.value for answer in answers] == [b"X%d" % number for number in range(200)]


async def test_a_handler_that_fails(broker, name):
    await broker.declare_queue(f"{name}-dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    await broker.declare_queue(name, arguments=arguments)
    serving = asyncio.create_task(broker.serve(name, upper))
    with pytest.raises(braidmq.CallFailed, match="no such word"):
        await broker.call(name, b"bad")
    assert (await broker.call(name, b"good")).value == b"GOOD"
    async with broker.consume(f"{name}-dead") as dead:
        (letter,) = await taken(dead, 1)
        assert letter.death.error == "ValueError: no such word"
    serving.cancel()


async def test_nobody_answers(broker, queue):
    with pytest.raises(braidmq.CallTimedOut, match=queue):
        await broker.call(queue, b"x", timeout_s=0.05)
    with pytest.raises(braidmq.Unroutable):
        await broker.call("nobody", b"x")
    with pytest.raises(braidmq.BadRequest):
        await broker.call(queue, b"x", reply_to="me")


async def test_a_request_expires_with_its_caller(broker, queue):
    with pytest.raises(braidmq.CallTimedOut):
        await broker.call(queue, b"old", timeout_s=0.05)
    await broker.publish(queue, b"new")
    assert await drained(broker, queue, 1) == [b"new"]


async def test_answering_by_hand(broker, queue, name):
    call = asyncio.create_task(broker.call(queue, b"?"))
    async with broker.consume(queue) as consumer:
        (message,) = await taken(consumer, 1)
        await broker.reply(message, b"!", content_type="text/plain", headers={"a": "b"})
        await message.ack()
    answer = await call
    assert (answer.value, answer.content_type, answer.headers) == (b"!", "text/plain", {"a": "b"})
    with pytest.raises(braidmq.BadRequest, match="reply_to"):
        await broker.reply(answer, b"")


async def test_answers_to_a_queue(broker, queue, name):
    """Callers of other libraries name a queue of theirs."""
    mine = await broker.declare_queue(exclusive=True)
    serving = asyncio.create_task(broker.serve(queue, upper))
    await broker.publish(queue, b"x", reply_to=mine.name, correlation_id="17")
    async with broker.consume(mine.name) as consumer:
        (answer,) = await taken(consumer, 1)
        assert (answer.value, answer.correlation_id) == (b"X", "17")
    serving.cancel()


@pytest.mark.parametrize("address", ["nobody", "amq.rabbitmq.reply-to.gone", "x" * 255])
async def test_an_address_that_is_none_harms_nobody(broker, served, address):
    await broker.publish(served, b"x", reply_to=address)
    assert (await broker.call(served, b"y")).value == b"Y"


async def test_a_lost_connection_ends_the_calls_that_wait(broker, queue, node: LiveNode):
    call = asyncio.create_task(broker.call(queue, b"x"))
    async with braidmq.connect(url_of(node)) as other, other.consume(queue) as consumer:
        (message,) = await taken(consumer, 1)
        broker._link._connection._transport.abort()
        with pytest.raises(braidmq.ConnectionLost, match="may have been"):
            await call
        await other.reply(message, b"to nobody")
        await message.ack()
        async with asyncio.timeout(WAIT_S):
            again = asyncio.create_task(broker.call(queue, b"again"))
            (message,) = await taken(consumer, 1)
            await other.reply(message, b"now")
            assert (await again).value == b"now"


async def test_a_cancelled_call_leaves_nothing_behind(broker, queue):
    call = asyncio.create_task(broker.call(queue, b"x"))
    async with broker.consume(queue) as consumer:
        await taken(consumer, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert not broker._calls._calls
