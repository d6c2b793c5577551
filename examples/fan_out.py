"""Fan-out: a service has a queue of the events for good, a screen one while it looks."""

import asyncio
import sys

import braidmq

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1"
SALES = ("tea", "coffee", "cake")


async def follow(broker: braidmq.Broker, queue: str, name: str) -> None:
    async with broker.consume(queue) as events:
        for _ in SALES:
            event = await anext(events)
            async with event.process():
                print(name, "saw", event.value.decode())


async def main() -> None:
    async with braidmq.connect(ADDRESS) as broker:
        await broker.declare_exchange("sales", "fanout")
        queues = {"stock": await broker.declare_queue("stock")}  # fills while nobody is there
        for screen in ("screen 1", "screen 2"):
            queues[screen] = await broker.declare_queue(exclusive=True, auto_delete=True)
        for queue in queues.values():
            await broker.bind("sales", queue.name)

        for sale in SALES:
            confirm = await broker.publish("", sale, exchange="sales")
            print(sale, "went to", len(confirm.places), "queues")
        for name, queue in queues.items():
            await follow(broker, queue.name, name)


asyncio.run(main())
