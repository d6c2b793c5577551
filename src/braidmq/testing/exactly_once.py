"""Consume, transform, produce, while workers and the node are killed: nothing lost, nothing twice.

    python -m braidmq.testing.exactly_once --over client --messages 100000 --kills 50

Workers take messages of one topic, and in one transaction publish what they made of them to another
and acknowledge them. Whoever is killed is started again; now and then that is the node.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx

import braidmq
from braidmq.testing.live import LiveNode, free_ports, live_node

IN, OUT, GROUP = "in", "out", "work"
WORKERS = 2
BATCH = 100
SESSION_MS = 2000
"""A worker that was killed keeps what it had for so long."""

NODE_EVERY = 4
"""Of so many kills one is the node's."""

START_ATTEMPTS = 3
IDLE_S_MAX = 90.0
"""Without any progress for so long something is stuck."""

GUEST = ("guest", "guest")
Over = Literal["http", "client"]


def transformed(value: str) -> str:
    return f"done-{value}"


# --- workers ---


def work_over_http(url: str) -> None:
    with httpx.Client(base_url=url, auth=GUEST, timeout=10) as client:
        while True:
            try:
                _move_over_http(client)
            except (httpx.HTTPError, KeyError):
                # Whatever became of it: what is not committed is delivered again.
                time.sleep(0.05)


def _move_over_http(client: httpx.Client) -> None:
    def post(path: str, body: dict[str, Any], transaction: str = "") -> Any:
        headers = {"Braid-Transaction": transaction} if transaction else {}
        response = client.post(path, json=body, headers=headers)
        response.raise_for_status()
        return response.json()

    wanted = {"limit": BATCH, "wait_ms": 1000, "visibility_ms": SESSION_MS}
    path = f"/v1/topics/{IN}/subscriptions/{GROUP}/receive"
    messages = post(path, wanted)["messages"]
    if not messages:
        return
    name = post("/v1/transactions", {"session_ms": SESSION_MS})["name"]
    made = [{"value": transformed(each["value"])} for each in messages]
    post(f"/v1/topics/{OUT}/messages/batch", {"messages": made}, name)
    post("/v1/receipts/ack", {"receipts": [each["receipt"] for each in messages]}, name)
    post(f"/v1/transactions/{name}/commit", {})


async def work_over_client(url: str) -> None:
    async with (
        braidmq.connect(url) as broker,
        broker.consume(IN, group=GROUP, prefetch=4 * BATCH) as consumer,
    ):
        async for batch in consumer.batches():
            try:
                async with broker.transaction(session_ms=SESSION_MS) as transaction:
                    made = [transformed(value.decode()).encode() for value in batch.values]
                    await transaction.publish_many(OUT, made)
                    transaction.ack(batch)
            except braidmq.BraidError:
                continue  # what it had comes again


# --- the world around them ---


class World:
    def __init__(self, data_dir: Path, over: Over, seed: int) -> None:
        self._data_dir = data_dir
        self._over = over
        self._random = random.Random(seed)
        amqp, http = free_ports(2)
        self._ports = {"amqp_port": amqp, "http_port": http}
        self._amqp_url = f"amqp://guest:guest@127.0.0.1:{amqp}/"
        self._http_url = f"http://127.0.0.1:{http}"
        self._client = httpx.Client(base_url=self._http_url, auth=GUEST, timeout=30)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._life: Any = None
        self._node: LiveNode
        self.killed: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._start_node()
        try:
            yield
        finally:
            for worker in self._workers:
                worker.kill()
                worker.wait()
            self._life.__exit__(None, None, None)
            self._client.close()

    def _start_node(self) -> None:
        for attempt in range(START_ATTEMPTS):
            self._life = live_node(self._data_dir, mqtt_port=0, ws_port=0, **self._ports)
            try:
                self._node = self._life.__enter__()
                return
            except AssertionError:
                # A machine that does much else at a time may need longer than a start may take.
                if attempt == START_ATTEMPTS - 1:
                    raise

    def start_workers(self) -> None:
        self._workers = [self._start_worker() for _ in range(WORKERS)]

    def _start_worker(self) -> "subprocess.Popen[bytes]":
        url = self._http_url if self._over == "http" else self._amqp_url
        command = [sys.executable, "-m", __spec__.name, "--worker", url, "--over", self._over]
        return subprocess.Popen(command)

    def kill(self, turn: int) -> None:
        time.sleep(self._random.uniform(0, 0.05))
        if turn % NODE_EVERY == NODE_EVERY - 1:
            self._node.kill()
            self._life.__exit__(None, None, None)
            self._start_node()
            self.killed["node"] += 1
            return
        index = self._random.randrange(WORKERS)
        self._workers[index].kill()
        self._workers[index].wait()
        self._workers[index] = self._start_worker()
        self.killed["worker"] += 1

    # --- messages ---

    def fill(self, count: int) -> None:
        for topic in (IN, OUT):
            settings = {"settings": {"partitions": 2}}
            self._client.put(f"/v1/topics/{topic}", json=settings).raise_for_status()
        path = f"/v1/topics/{IN}/subscriptions/{GROUP}"
        self._client.put(path, json={}).raise_for_status()
        for first in range(0, count, 10_000):
            numbers = range(first, min(first + 10_000, count))
            body = {"messages": [{"value": str(number)} for number in numbers]}
            path = f"/v1/topics/{IN}/messages/batch"
            self._client.post(path, json=body).raise_for_status()

    def left(self) -> int:
        path = f"/v1/topics/{IN}/subscriptions/{GROUP}"
        return int(self._client.get(path).raise_for_status().json()["lag"])

    def wait_until_decided(self) -> None:
        """What killed workers left open holds back what was committed after it, until it is
        silent for too long."""
        deadline = time.monotonic() + IDLE_S_MAX
        while self._client.get("/v1/transactions").raise_for_status().json():
            assert time.monotonic() < deadline, "transactions of the dead stay open"
            time.sleep(0.05)

    def arrived(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for partition in range(2):
            path, at = f"/v1/topics/{OUT}/partitions/{partition}/messages", 0
            while True:
                query: dict[str, str | int] = {"start": str(at), "limit": 1000}
                page = self._client.get(path, params=query).raise_for_status().json()
                found.update(each["value"] for each in page["messages"])
                if page["next_offset"] >= page["end_offset"]:
                    break
                at = page["next_offset"]
        return found


def run(data_dir: Path, over: Over, messages: int, kills: int, seed: int) -> Counter[str]:
    """Move all messages through all kills. Returns who was killed; raises AssertionError."""
    world = World(data_dir, over, seed)
    with world.running():
        world.fill(messages)
        world.start_workers()
        for turn in range(kills):
            _wait_until_left(world, messages - messages * (turn + 1) // (kills + 1))
            world.kill(turn)
        _wait_until_left(world, 0)
        world.wait_until_decided()
        found = world.arrived()
    wanted = {transformed(str(number)) for number in range(messages)}
    twice = [value for value, times in found.items() if times > 1]
    assert not twice, f"{len(twice)} came twice, such as {twice[:5]}"
    lost = wanted - found.keys()
    assert not lost, f"{len(lost)} were lost, such as {sorted(lost)[:5]}"
    assert found.keys() == wanted
    return world.killed


def _wait_until_left(world: World, goal: int) -> None:
    least, since = world.left(), time.monotonic()
    while least > goal:
        time.sleep(0.01)
        left = world.left()
        if left < least:
            least, since = left, time.monotonic()
        assert time.monotonic() - since < IDLE_S_MAX, f"stuck with {left} to go"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--over", choices=("http", "client"), default="client")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        if given.over == "http":
            work_over_http(given.worker)
        while True:
            try:
                asyncio.run(work_over_client(given.worker))
            except braidmq.BraidError:
                time.sleep(0.05)  # the node is away
    sys.stdout.write(f"over {given.over}, seed {given.seed}\n")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        killed = run(Path(directory), given.over, given.messages, given.kills, given.seed)
    seconds = time.monotonic() - began
    sys.stdout.write(
        f"{given.messages} messages, killed {dict(killed)}, {seconds:.0f} s: each arrived once\n"
    )


if __name__ == "__main__":
    main()
