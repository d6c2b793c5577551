"""Nodes that stop, die and come back under a client."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from talking import WAIT_S, taken, url_of

import braidmq
from braidmq.testing.live import LiveNode, free_ports, live_node

pytestmark = pytest.mark.timeout(120)


class Restartable:
    """A node on one port and directory, life after life."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = free_ports(1)[0]

    def start(self):
        return live_node(self.data_dir, amqp_port=self.port)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"


KILLS = int(os.environ.get("BRAIDMQ_CLIENT_KILLS", "3"))
"""Ten in ``make foreign``."""


@pytest.mark.crash
@pytest.mark.timeout(60 + 30 * KILLS)
async def test_kills_under_load(data_dir):
    """Killed in the midst of it all: what was confirmed comes, to the same objects; and the queue
    that went with each connection is there again."""
    node, confirmed, found, total = Restartable(data_dir), set[int](), set[int](), 0
    over = asyncio.Event()

    async def publish(producer: braidmq.Producer) -> None:
        nonlocal total
        while not over.is_set():
            number, total = total, total + 1
            await producer.send("", b"%d" % number, exchange="all", message_id=str(number))
            confirmed.add(number)

    async def consume(broker: braidmq.Broker) -> None:
        async with broker.consume("work", prefetch=500) as consumer:
            async for message in consumer:
                assert message.message_id == message.value.decode()
                found.add(int(message.value))
                await message.ack()

    async def listen(consumer: braidmq.Consumer) -> None:
        async for message in consumer:
            heard.add(int(message.value))
            await message.ack()

    async def until(is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                assert not any(task.done() for task in tasks)
                await asyncio.sleep(0.001)

    heard, tasks = set[int](), list[asyncio.Task[None]]()
    with node.start() as life:
        async with braidmq.connect(node.url) as broker:
            await broker.declare_queue("work")
            await broker.declare_exchange("all", "fanout", durable=False)
            await broker.bind("all", "work")
            mine = await broker.declare_queue(exclusive=True)
            await broker.bind("all", mine.name)
            async with broker.producer(window=2000) as producer, broker.consume(mine.name) as own:
                tasks += [asyncio.create_task(publish(producer)) for _ in range(100)]
                tasks += [asyncio.create_task(consume(broker)), asyncio.create_task(listen(own))]
                for _ in range(KILLS):
                    goal = len(confirmed) + 1000
                    await until(lambda goal=goal: len(confirmed) >= goal)
                    await asyncio.to_thread(life.kill)
                    heard.clear()
                    starting = node.start()
                    life = await asyncio.to_thread(starting.__enter__)
                    before = len(found)
                    await until(lambda before=before: len(heard) > 100 and len(found) > before)
                over.set()
                async with asyncio.timeout(WAIT_S):
                    await asyncio.gather(*tasks[:100])
                tasks = tasks[100:]
                await until(lambda: found >= confirmed)
            assert confirmed == set(range(total))
            for task in tasks:
                task.cancel()
        assert life.stop() == 0


async def test_a_consumer_goes_on_after_a_restart(data_dir):
    node = Restartable(data_dir)
    with node.start() as life:
        broker = braidmq.connect(node.url)
        await broker.open()
        await broker.declare_queue("q")
        async with broker.producer() as producer:
            await producer.send_many("q", [b"%d" % number for number in range(10)])
        consumer = await broker.consume("q", prefetch=6).__aenter__()
        messages = await taken(consumer, 4)
        await messages[0].ack()
        await messages[1].ack()
        # A confirm behind them says that the broker has seen the acknowledgements.
        await broker.publish("q", b"10")
        assert await asyncio.to_thread(life.stop) == 0
    with node.start():
        again = await taken(consumer, 6)
        assert [message.value for message in again] == [b"%d" % number for number in range(2, 8)]
        await messages[2].ack()  # of a delivery that is over: nothing happens
        for message in again:
            await message.ack()
        rest = await taken(consumer, 3)
        assert [message.value for message in rest] == [b"8", b"9", b"10"]
        await broker.close()


async def test_puts_wait_for_the_node_to_come_back(data_dir):
    node = Restartable(data_dir)
    with node.start() as life:
        broker = braidmq.connect(node.url)
        await broker.open()
        await broker.declare_queue("q")
        producer = await broker.producer().__aenter__()
        await asyncio.to_thread(life.kill)
    for number in range(1000):
        await producer.put("q", b"%d" % number)
    with node.start():
        await producer.flush()
        assert broker.connected
        async with broker.consume("q", auto_ack=True) as consumer:
            found = [int(message.value) for message in await taken(consumer, 1000)]
        assert found == list(range(1000))
        await broker.close()


async def test_closing_while_the_node_is_away(data_dir):
    node = Restartable(data_dir)
    with node.start() as life:
        broker = braidmq.connect(node.url)
        await broker.open()
        producer = await broker.producer().__aenter__()
        await asyncio.to_thread(life.kill)
    waiting = asyncio.create_task(producer.send("q", b"x"))
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await broker.close()
    with pytest.raises(braidmq.Closed):
        await waiting


async def test_without_reconnect_everybody_learns_the_end(data_dir):
    with live_node(data_dir) as life:
        broker = braidmq.connect(url_of(life), reconnect=False)
        await broker.open()
        await broker.declare_queue("q")
        producer = await broker.producer().__aenter__()
        consumer = await broker.consume("q").__aenter__()
        await asyncio.to_thread(life.kill)
        with pytest.raises(braidmq.ConnectionLost):
            await anext(consumer)
        with pytest.raises(braidmq.ConnectionLost):
            await producer.send("q", b"x")
        with pytest.raises(braidmq.ConnectionLost):
            await broker.publish("q", b"x")
        await broker.close()


async def test_a_consumer_that_ended_stays_ended(data_dir):
    """Its queue was deleted, then the node restarted: nobody consumes for it behind its back."""
    node = Restartable(data_dir)
    with node.start() as life:
        broker = braidmq.connect(node.url)
        await broker.open()
        await broker.declare_queue("q")
        consumer = await broker.consume("q").__aenter__()
        await asyncio.to_thread(delete_queue, node.url, "q")
        with pytest.raises(braidmq.ConsumerCancelled):
            await anext(consumer)
        await broker.declare_queue("q")
        await asyncio.to_thread(life.kill)
    with node.start():
        await broker.publish("q", b"x")
        async with broker.consume("q", auto_ack=True) as another:
            assert [message.value for message in await taken(another, 1)] == [b"x"]
        with pytest.raises(braidmq.ConsumerCancelled):
            await anext(consumer)
        await consumer.close()
        await broker.close()


def delete_queue(url: str, queue: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_delete(queue)
    connection.close()


# --- connecting ---


async def test_nobody_listens():
    port = free_ports(1)[0]
    with pytest.raises(braidmq.ConnectFailed, match=str(port)):
        async with braidmq.connect(f"amqp://127.0.0.1:{port}"):
            pass


async def test_somebody_else_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def say_something() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"SSH-2.0-OpenSSH_9.7\r\n")
                while peer.recv(100):
                    pass

        talking = asyncio.create_task(asyncio.to_thread(say_something))
        url = f"amqp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(braidmq.ConnectFailed):
            async with braidmq.connect(url, connect_timeout_s=WAIT_S):
                pass
        await talking


async def test_a_listener_that_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(braidmq.ConnectFailed, match="within"):
            async with braidmq.connect(f"amqp://127.0.0.1:{port}", connect_timeout_s=0.2):
                pass


async def test_a_wrong_password(node: LiveNode):
    with pytest.raises(braidmq.NotAuthenticated) as caught:
        async with braidmq.connect(url_of(node, "guest:wrong")):
            pass
    assert "wrong" not in str(caught.value)


async def test_a_namespace_that_is_not_there(node: LiveNode):
    with pytest.raises(braidmq.AccessRefused, match="nowhere"):
        async with braidmq.connect(url_of(node) + "nowhere"):
            pass


async def test_heartbeats_keep_an_idle_connection(node: LiveNode):
    async with braidmq.connect(url_of(node), heartbeat_s=1) as broker:
        await asyncio.sleep(3.5)  # the node hangs up on a peer that is silent for three
        assert broker.connected


@pytest.mark.parametrize(
    ("url", "http"),
    [
        ("amqp://h", "http://h:8080"),
        ("braid://h:1/?http=9000", "http://h:9000"),
        ("amqp://h/?http=http://other:1", "http://other:1"),
        ("amqp://[::1]:5", "http://[::1]:8080"),
    ],
)
def test_where_http_is(url, http):
    from braidmq.client.address import parse_address

    assert parse_address(url).http_url == http
    assert parse_address(url, "http://said:2/").http_url == "http://said:2"


@pytest.mark.parametrize("url", ["http://h", "amqp://", "amqp://h:port", "amqp://h/?http=ftp://x"])
def test_what_is_no_address(url):
    with pytest.raises(braidmq.BadAddress):
        braidmq.connect(url)
