"""What publishing once costs: ``python -m bench.transactions``.

The same client publishes the same 128-byte messages to one queue with ``put``, all confirmed:
plainly, as an idempotent producer, and in transactions of 1000 messages, ``AT_ONCE`` of them under
way, as plain publishing too has thousands of messages under way. Nobody consumes; each run has a
queue of its own, which is deleted afterwards, so that none pays for what another left.
"""

import asyncio
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import uvloop

import braidmq
from bench.harness import Context, Measure, Seconds, alternate, at_least, main, paired_ratio
from braidmq.testing.live import LiveNode, live_node

BODY = b"b" * 128
WINDOW = 10_000
ROUNDS = 11
IN_TRANSACTION = 1000
AT_ONCE = WINDOW // IN_TRANSACTION

PLAIN, IDEMPOTENT = "plain, confirmed", "idempotent"
TRANSACTIONS = f"transactions of {IN_TRANSACTION}"


@asynccontextmanager
async def broker_with_queue(node: LiveNode) -> AsyncIterator[tuple[braidmq.Broker, str]]:
    url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
    async with braidmq.connect(url, http_url=node.http_url) as broker:
        queue = uuid.uuid4().hex
        await broker.declare_queue(queue)
        yield broker, queue
        await broker.admin.delete_topic(queue)


async def published(node: LiveNode, count: int, idempotent: bool) -> Seconds:
    async with (
        broker_with_queue(node) as (broker, queue),
        broker.producer(window=WINDOW, idempotent=idempotent) as producer,
    ):
        began = time.perf_counter()
        for _ in range(count):
            await producer.put(queue, BODY)
        await producer.flush()
        return time.perf_counter() - began


async def in_transactions(node: LiveNode, count: int) -> Seconds:
    async with broker_with_queue(node) as (broker, queue):
        left = count // IN_TRANSACTION

        async def work() -> None:
            nonlocal left
            while left:
                left -= 1
                async with broker.transaction() as transaction:
                    for _ in range(IN_TRANSACTION):
                        await transaction.publish(queue, BODY)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
        return time.perf_counter() - began


def transactions(context: Context) -> Iterator[Measure]:
    count = context.size(500_000, 20_000)
    with live_node(context.directory()) as node:
        cases: dict[str, Callable[[], Seconds]] = {
            PLAIN: lambda: uvloop.run(published(node, count, False)),
            IDEMPOTENT: lambda: uvloop.run(published(node, count, True)),
            TRANSACTIONS: lambda: uvloop.run(in_transactions(node, count)),
        }
        for case in cases.values():
            case()  # warm: imports, the journal's first files
        seconds = alternate(cases, context.rounds(ROUNDS))
    rates = {name: [count / each for each in seconds[name]] for name in cases}
    for name in cases:
        bar = BARS.get(name)
        yield Measure(
            name,
            statistics.median(rates[name]),
            "msg/s",
            bar,
            paired_ratio(rates[name], rates[PLAIN]) if bar is not None else None,
            statistics.median(rates[PLAIN]) if bar is not None else None,
            against=PLAIN if bar is not None else "",
            note=f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}",
        )


BARS = {IDEMPOTENT: at_least(0.9), TRANSACTIONS: at_least(0.8)}

if __name__ == "__main__":
    main("transactions", {"transactions": transactions})
