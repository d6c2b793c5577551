"""A short slice of ``make qos2-kills``."""

from pathlib import Path

import pytest

from braidmq.testing.qos2 import Lab


@pytest.mark.crash
def test_none_is_lost_and_none_comes_twice(tmp_path: Path) -> None:
    lab = Lab(tmp_path, seed=15)
    while lab.outcome.kills < 6 or sum(each.completed for each in lab.publishers) < 300:
        lab.kill_after(150)
    outcome = lab.finish()
    assert outcome.is_right, outcome
