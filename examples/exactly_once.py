"""Consume, transform, produce: each payment makes one invoice, whatever is killed meanwhile."""

import asyncio
import sys

import braidmq

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1"


async def fill(broker: braidmq.Broker) -> None:
    async with broker.producer(idempotent=True) as producer:  # sent again is written once
        for cents in range(100, 1100, 100):
            await producer.put("payments", b"%d" % cents)


async def main() -> None:
    async with braidmq.connect(ADDRESS) as broker:
        await broker.declare_queue("payments")
        await broker.declare_queue("invoices")
        await fill(broker)

        async with broker.consume("payments", prefetch=100) as payments:
            while batch := await payments.next_batch(timeout_s=1):
                async with broker.transaction() as tx:  # all of the block counts, or nothing
                    for payment in batch:
                        euros = int(payment.value) / 100
                        await tx.publish("invoices", f"{euros:.2f} €")
                    tx.ack(batch)

        async with broker.consume("invoices", auto_ack=True) as invoices:
            while invoice := await invoices.get(timeout_s=1):
                print(invoice.value.decode())


asyncio.run(main())
