"""``python -m braidmq.testing.crash --rounds 300 --seed 7``: kills, power cuts, and the checker.

Runs in episodes of some lives each. The seed of an episode alone repeats it, as far as processes
and disks can be made to do the same again: what is sent, how each life ends and where. Exits with 1
when a promise was broken.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from braidmq.testing.crash.lab import Episode, Lab
from braidmq.testing.crash.report import lines, summary
from braidmq.testing.crash.traffic import PROTOCOLS


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="braidmq.testing.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="lives of the node in all")
    parser.add_argument("--lives", type=int, default=25, help="lives in one episode")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--traffic-s", type=float, default=1.5, help="of one life, about")
    parser.add_argument("--only", choices=tuple(PROTOCOLS), action="append")
    parser.add_argument("--dir", type=Path, help="where data goes; never tmpfs")
    parser.add_argument("--json", type=Path, help="the report")
    parser.add_argument("--keep", action="store_true", help="leave directories of failed episodes")
    given = parser.parse_args()
    # So that node and clients end with the lab.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    episodes: list[Episode] = []
    rounds_left, seed = given.rounds, given.seed
    while rounds_left > 0:
        count = min(rounds_left, given.lives)
        _say(f"episode with seed {seed}: {count} lives")
        directory = Path(tempfile.mkdtemp(prefix=f"crash-{seed}-", dir=given.dir))
        lab = Lab(
            directory,
            seed,
            count,
            given.traffic_s,
            tuple(given.only or PROTOCOLS),
            _say,
        )
        episodes.append(lab.run())
        for line in lines(summary(episodes[-1:])):
            _say(line)
        if given.keep and episodes[-1].findings:
            _say(f"kept {directory}")
        else:
            shutil.rmtree(directory)
        rounds_left, seed = rounds_left - count, seed + 1
        told = summary(episodes)
        if given.json is not None:
            given.json.write_text(json.dumps(told, indent=1))
    if len(episodes) > 1:
        _say("all episodes:")
        for line in lines(told):
            _say(line)
    return 1 if told["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
