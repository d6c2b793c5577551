"""An aio-pika worker that a restart of the broker must not stop: ``python surviving_worker.py PORT
QUEUE FILE``. It writes down what it did, and only then acknowledges."""

import asyncio
import sys
from pathlib import Path

import aio_pika
from aio_pika.abc import AbstractIncomingMessage


async def main(port: str, queue: str, path: str) -> None:
    with Path(path).open("a") as done:

        async def work(message: AbstractIncomingMessage) -> None:
            async with message.process(ignore_processed=True):
                done.write(message.body.decode() + "\n")
                done.flush()

        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        connection = await aio_pika.connect_robust(url, reconnect_interval=0.1)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=20)
        found = await channel.declare_queue(queue, durable=True)
        await found.consume(work)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Future()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
