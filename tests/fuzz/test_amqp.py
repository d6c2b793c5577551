"""A bounded number of hostile conversations; ``python -m tests.fuzz.amqp`` goes on for hours."""

from pathlib import Path

from tests.fuzz.amqp import session

from braidmq.testing.live import live_node


def test_hostile_peers_disturb_nobody(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        with session(node) as talks:
            talks.run(seed=1, first=0, count=200)
            talks.check_growth()
            talks.run(seed=2, first=0, count=200)
            talks.check_growth()
        assert node.stop() == 0
        assert node.lines[-1] == "stopped"
