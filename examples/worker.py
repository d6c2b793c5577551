"""A worker: jobs are tried again with a pause, and given up with the reason kept."""

import asyncio
import sys

import braidmq

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "amqp://127.0.0.1"
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "print-jobs.dead"}


async def work(job: braidmq.Message) -> None:
    if job.value == b"broken":
        raise ValueError("this can never work")
    if job.delivery_count < 3:
        raise ConnectionError("the printer is not ready yet")
    print("printed", job.value.decode(), "at try", job.delivery_count)


async def main() -> None:
    async with braidmq.connect(ADDRESS) as broker:
        await broker.declare_queue("print-jobs.dead")
        await broker.declare_queue("print-jobs", arguments=DEAD)
        for kind in ("letter", "broken"):
            await broker.publish("print-jobs", kind)
        async with broker.consume("print-jobs") as jobs:
            while job := await jobs.get(timeout_s=1):
                try:
                    async with job.process(delay_ms=100, reject=ValueError):
                        await work(job)
                except (ConnectionError, ValueError) as error:
                    print(job.value.decode(), "failed:", error)
        async with broker.consume("print-jobs.dead", auto_ack=True) as dead:
            letter = await anext(dead)
            print("given up:", letter.value.decode(), letter.death and letter.death.error)


asyncio.run(main())
