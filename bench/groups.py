"""Members of a group that wait over HTTP: ``python -m bench.groups``.

A hundred members share three hundred partitions and wait for messages. One leaves, and messages are
published to the partitions that it had and to some others: how long the former paused, from the
moment it was asked to leave to the arrival of the first message at another member, and whether any
of the latter changed hands. Then another joins, and so on. Between such rounds as many messages
are published without anybody leaving.

Then two messages a second, to one of the members that wait: how long each takes from its publisher
to its member.
"""

import asyncio
import base64
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.harness import Benchmark, Context, Measure, at_most, main, percentile
from braidmq.testing.live import LiveNode, live_node

MEMBERS = 100
PARTITIONS = 300
ROUNDS = 40
OTHERS = 27
"""Partitions that do not move and get a message in each round."""
MESSAGES = 120
EVERY_S = 0.5
TOPIC, GROUP = "bench", "members"
WAIT_MS = 30_000
ARRIVE_S_MAX = 60.0
SEED = 17

AUTHORIZATION = base64.b64encode(b"guest:guest").decode()


class HttpConnection:
    """One request at a time, with as little as can be between us and the node."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Basic {AUTHORIZATION}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        sizes = [line.partition(":")[2] for line in lines if line.startswith("content-length:")]
        answer = await reader.readexactly(int(sizes[0])) if sizes else b""
        return int(lines[0].split()[1]), json.loads(answer) if answer else None

    async def ok(self, method: str, path: str, body: object = None) -> Any:
        status, answer = await self.call(method, path, body)
        assert status < 300, (method, path, answer)
        return answer

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


@dataclass
class Arrival:
    partition: int
    member: str
    at: float


@dataclass
class Round:
    """Of one leave: how long partitions took to go on."""

    moved_s: list[float] = field(default_factory=list)
    kept_s: list[float] = field(default_factory=list)
    lost: int = 0
    """Partitions that another member has although they need not have moved."""


class Crowd:
    """The members of a group, each with a connection of its own, on which it polls."""

    def __init__(self, node: LiveNode, partitions: int) -> None:
        self._port = node.ports["http_port"]
        self._partitions = partitions
        self._control = HttpConnection(self._port)
        self._polling: dict[str, asyncio.Task[None]] = {}
        self._joined: dict[str, int] = {}
        self._arrivals: dict[str, asyncio.Future[Arrival]] = {}
        self._number = 0
        self.random = random.Random(SEED)

    async def begin(self, members: int) -> None:
        body = {"settings": {"partitions": self._partitions}}
        await self._control.ok("PUT", f"/v1/topics/{TOPIC}", body)
        for _ in range(members):
            await self.join()
        await self.settled()

    async def join(self) -> None:
        connection = HttpConnection(self._port)
        body = {"topics": [TOPIC], "auto_commit": True}
        told = await connection.ok("POST", f"/v1/groups/{GROUP}/members", body)
        member = told["member_id"]
        self._joined[member] = told["generation"]
        self._polling[member] = asyncio.create_task(self._poll(connection, told))

    async def _poll(self, connection: HttpConnection, told: Any) -> None:
        try:
            await self._poll_on(connection, told)
        finally:
            await connection.close()

    async def _poll_on(self, connection: HttpConnection, told: Any) -> None:
        member, path = told["member_id"], f"/v1/groups/{GROUP}/members/{told['member_id']}/poll"
        while True:
            body = {"generation": told["generation"], "wait_ms": WAIT_MS}
            status, answer = await connection.call("POST", path, body)
            if status == 404:
                return  # it has left
            assert status == 200, answer
            now, told = time.perf_counter(), answer["member"]
            for each in answer["messages"]:
                self._arrivals[each["value"]].set_result(Arrival(each["partition"], member, now))

    async def owners(self) -> dict[int, str]:
        found = await self._control.ok("GET", f"/v1/groups/{GROUP}")
        return {
            partition: each["member_id"]
            for each in found["members"]
            for partition in each["assigned"].get(TOPIC, ())
        }

    async def settled(self) -> None:
        """Everything has an owner, and all members wait."""
        while True:
            found = await self._control.ok("GET", f"/v1/groups/{GROUP}")
            waiting = found["subscriptions"][0]["waiting"]
            held = sum(len(each["assigned"].get(TOPIC, ())) for each in found["members"])
            if (held, waiting) == (self._partitions, len(self._polling)):
                return
            await asyncio.sleep(0.01)

    async def publish(self, partitions: list[int]) -> list[Arrival]:
        """A message for each, and where it came out."""
        messages, arriving = [], []
        for partition in partitions:
            self._number += 1
            value = str(self._number)
            arriving.append(asyncio.get_running_loop().create_future())
            self._arrivals[value] = arriving[-1]
            messages.append({"value": value, "partition": partition})
        path = f"/v1/topics/{TOPIC}/messages/batch"
        await self._control.ok("POST", path, {"messages": messages})
        async with asyncio.timeout(ARRIVE_S_MAX):
            return list(await asyncio.gather(*arriving))

    async def one_leaves(self, others: int) -> Round:
        await self.settled()
        before = await self.owners()
        member = self.random.choice(sorted(self._polling))
        moving = sorted(each for each, owner in before.items() if owner == member)
        kept = self.random.sample(sorted(before.keys() - set(moving)), others)
        path = f"/v1/groups/{GROUP}/members/{member}?generation={self._joined.pop(member)}"
        began = time.perf_counter()
        await self._control.ok("DELETE", path)
        left = time.perf_counter()
        found = Round()
        for each in await self.publish(moving + kept):
            if each.partition in moving:
                found.moved_s.append(each.at - began)
            else:
                found.kept_s.append(each.at - left)
                found.lost += each.member != before[each.partition]
        await self._polling.pop(member)
        await self.join()
        return found

    async def nobody_leaves(self, count: int) -> list[float]:
        await self.settled()
        chosen = self.random.sample(range(self._partitions), count)
        began = time.perf_counter()
        return [each.at - began for each in await self.publish(chosen)]

    async def one_message(self) -> float:
        began = time.perf_counter()
        (arrival,) = await self.publish([self.random.randrange(self._partitions)])
        return arrival.at - began

    async def end(self) -> None:
        for each in self._polling.values():
            each.cancel()
        await asyncio.gather(*self._polling.values(), return_exceptions=True)
        await self._control.close()


async def rebalanced(
    node: LiveNode, members: int, partitions: int, rounds: int, others: int
) -> tuple[list[Round], list[float]]:
    crowd = Crowd(node, partitions)
    await crowd.begin(members)
    found, quiet = [], []
    for _ in range(rounds):
        found.append(await crowd.one_leaves(others))
        quiet += await crowd.nobody_leaves(others + partitions // members)
    await crowd.end()
    return found, quiet


async def trickled(
    node: LiveNode, members: int, partitions: int, messages: int, every_s: float
) -> list[float]:
    crowd = Crowd(node, partitions)
    await crowd.begin(members)
    took = []
    for _ in range(messages):
        took.append(await crowd.one_message())
        await asyncio.sleep(every_s)
    await crowd.end()
    return took


def rebalance(context: Context) -> Iterator[Measure]:
    members, partitions = context.size(MEMBERS, 10), context.size(PARTITIONS, 30)
    others = context.size(OTHERS, 9)
    with live_node(context.directory(), mqtt_port=0, ws_port=0) as node:
        rounds, quiet = asyncio.run(
            rebalanced(node, members, partitions, context.rounds(ROUNDS), others)
        )
    moved = [each * 1000 for found in rounds for each in found.moved_s]
    kept = [each * 1000 for found in rounds for each in found.kept_s]
    note = f"{len(moved)} partitions, {min(moved):.1f} to {max(moved):.1f}"
    yield Measure(
        "moved partitions, pause, p99", percentile(moved, 99), "ms", at_most(1000), note=note
    )
    yield Measure("moved partitions, pause, p50", statistics.median(moved), "ms")
    lost = sum(found.lost for found in rounds)
    yield Measure("other partitions that changed hands", lost, "partitions", at_most(0))
    yield Measure("messages of others meanwhile, p99", percentile(kept, 99), "ms")
    yield Measure(
        "messages of others while nobody leaves, p99",
        percentile([each * 1000 for each in quiet], 99),
        "ms",
    )


def trickle(context: Context) -> Iterator[Measure]:
    members, partitions = context.size(MEMBERS, 10), context.size(PARTITIONS, 30)
    messages, every_s = context.size(MESSAGES, 10), 0.1 if context.quick else EVERY_S
    with live_node(context.directory(), mqtt_port=0, ws_port=0) as node:
        took = asyncio.run(trickled(node, members, partitions, messages, every_s))
    took = [each * 1000 for each in took]
    note = f"{len(took)} messages, {min(took):.1f} to {max(took):.1f}"
    yield Measure("to a waiting member, p99", percentile(took, 99), "ms", at_most(50), note=note)
    yield Measure("to a waiting member, p50", statistics.median(took), "ms")


BENCHMARKS: dict[str, Benchmark] = {"rebalance": rebalance, "trickle": trickle}

if __name__ == "__main__":
    main("groups", BENCHMARKS)
