"""A short slice of ``make churn``, and one attack of ``make hostile``."""

from pathlib import Path

from bench.churn import FILES_MORE, MEMORY_MORE, churn, open_files, settled
from bench.connections import resident_bytes

from braidmq.testing.live import live_node

CONNECTS = 1500


def test_clients_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        churn(node.ports, 300, processes=2)
        assert settled(node, 60, 1 << 40)
        files, memory = open_files(node), resident_bytes(node)
        counts = churn(node.ports, CONNECTS, processes=2)
        assert not [each for each in counts if each.startswith("FAILED")]
        assert sum(counts.values()) == CONNECTS
        assert settled(node, files + FILES_MORE, MEMORY_MORE * memory)
        assert node.stop() == 0
        assert not node.complaints
