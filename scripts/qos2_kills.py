"""QoS 2 through ``kill -9``: several publishers and subscribers of both versions, none lost, none
twice, in order.

    python scripts/qos2_kills.py --kills 200 --exchanges 100000 --seed 1

The moments of the kills and what clients do are drawn from the seed; how far the node is by then is
not. A run that found something says so, and leaves the data directory.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from braidmq.testing.qos2 import Lab


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--exchanges", type=int, default=100_000)
    parser.add_argument("--publishers", type=int, default=4)
    parser.add_argument("--subscribers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--python", default=sys.executable, help="of the installation to test")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="qos2-", dir="."))
    lab = Lab(directory, given.seed, given.publishers, given.subscribers, given.python)
    began = time.monotonic()
    for number in range(given.kills):
        done = sum(each.completed for each in lab.publishers)
        left = max(given.exchanges - done, 0) / (given.kills - number) / given.publishers
        lab.kill_after(max(int(left * 1.8), 50))
    outcome = lab.finish()
    aims = " ".join(f"{aim}:{count}" for aim, count in sorted(outcome.aims.items()))
    print(
        f"seed {given.seed}: {outcome.kills} kills ({aims}), {outcome.exchanges} exchanges to "
        f"{given.subscribers} subscribers in {time.monotonic() - began:.0f} s: "
        f"lost {outcome.lost}, twice {outcome.twice}, reordered {outcome.reordered}, "
        f"faults {len(outcome.faults)}"
    )
    for fault in outcome.faults[:20]:
        print(" ", fault)
    if outcome.is_right:
        for path in sorted(directory.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        directory.rmdir()
    else:
        print(f"the data directory is {directory}")
    return not outcome.is_right


if __name__ == "__main__":
    sys.exit(main())
