"""Deleting a namespace deletes what it holds, with or without a gateway."""

import asyncio

from braidmq.engine.engine import Engine
from braidmq.model.clock import SystemClock
from braidmq.runtime.namespaces import NamespaceContents
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.storage.disk import MemoryDisk

NS = "shop"


async def test_its_topics_are_gone_at_once_and_their_records_soon() -> None:
    clock = SystemClock()
    engine = Engine.open(MemoryDisk(), clock.now_ms())
    accounts = Accounts(engine.store)
    node_loop = NodeLoop(engine, clock, asyncio.get_running_loop())
    NamespaceContents(node_loop, accounts)
    accounts.add_namespace(NS)
    for number in range(3):
        engine.topics.create(NS, f"t{number}", now_ms=clock.now_ms())
    kept = engine.topics.create("/", "kept", now_ms=clock.now_ms())
    accounts.delete_namespace(NS)
    assert engine.state.topics_of() == [kept]
    while len(engine.state.topics_by_id) > 1:
        await asyncio.sleep(0)  # a turn takes a slice
    assert list(engine.store.logs) == [each.log.id for each in kept.partitions]
    node_loop.stop()
    engine.close()
