"""The benchmark of groups, small: who waits is served, and only what must moves."""

from pathlib import Path

import pytest
from bench.groups import rebalanced, trickled

from braidmq.testing.live import live_node

pytestmark = pytest.mark.timeout(120)


async def test_one_of_many_leaves(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node:
        rounds, quiet = await rebalanced(node, members=8, partitions=24, rounds=2, others=5)
    assert [len(each.moved_s) for each in rounds] == [3, 3]
    assert [len(each.kept_s) for each in rounds] == [5, 5]
    assert sum(each.lost for each in rounds) == 0
    assert len(quiet) == 2 * 8


async def test_each_waiting_member_gets_its_message(tmp_path: Path) -> None:
    with live_node(tmp_path, mqtt_port=0, ws_port=0) as node:
        assert len(await trickled(node, members=5, partitions=10, messages=10, every_s=0)) == 10
