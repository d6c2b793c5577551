"""The loop of ``braidmq.testing.exactly_once``, a short one: the long one runs by hand."""

import random
from pathlib import Path

import pytest

from braidmq.testing import exactly_once


@pytest.mark.crash
@pytest.mark.timeout(240)
@pytest.mark.parametrize("over", ["http", "client"])
def test_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path, over: exactly_once.Over):
    seed = random.randrange(1 << 30)
    print("seed", seed)  # noqa: T201 (shown when it fails)
    killed = exactly_once.run(tmp_path, over, messages=1500, kills=4, seed=seed)
    assert killed == {"worker": 3, "node": 1}
