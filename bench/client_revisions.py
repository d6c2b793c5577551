"""This client beside another one: ``OTHER_PYTHON=… python -m bench.client_revisions``.

``OTHER_PYTHON`` is the Python of another working copy's virtual environment, for instance
``…/.venv/bin/python``. Both clients work on one node, in turns, each run in a process of its own,
with the cases of ``bench.client``.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as numbers
from pathlib import Path

from bench.client import OURS, OURS_MANY, OURS_SYNC, ROUNDS, url_of
from bench.harness import Context, Measure, Seconds, alternate, at_least, main, paired_ratio
from braidmq.testing.live import live_node

NOTHING_MEASURABLE = 0.97
RUN = """
import sys, uvloop
from bench import client
case, url, queue, count = sys.argv[1:]
def run(queue, count):
    work = getattr(client, case)(url, queue, count)
    return work if isinstance(work, float) else uvloop.run(work)
run(queue + "-warm", int(count) // 10)
print(run(queue, int(count)))
"""
CASES = {OURS: "ours", OURS_MANY: "ours_many", OURS_SYNC: "ours_sync"}


def one_run(python: str, case: str, url: str, queues: Iterator[int], count: int) -> Seconds:
    root = Path(python).parents[2]
    ran = subprocess.run(
        [python, "-c", RUN, case, url, f"{case}-{next(queues)}", str(count)],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(ran.stdout)


def clients(context: Context) -> Iterator[Measure]:
    counts = {
        OURS: context.size(200_000, 20_000),
        OURS_MANY: context.size(500_000, 50_000),
        OURS_SYNC: context.size(100_000, 10_000),
    }
    pythons = {"this": sys.executable, "the other": os.environ["OTHER_PYTHON"]}
    queues = numbers()
    with live_node(context.directory()) as node:
        for name, case in CASES.items():
            runs: dict[str, Callable[[], Seconds]] = {
                which: partial(one_run, python, case, url_of(node), queues, counts[name])
                for which, python in pythons.items()
            }
            seconds = alternate(runs, context.rounds(2 * ROUNDS))
            rates = {each: [counts[name] / one for one in seconds[each]] for each in runs}
            yield Measure(
                name,
                statistics.median(rates["this"]),
                "msg/s",
                at_least(NOTHING_MEASURABLE),
                paired_ratio(rates["this"], rates["the other"]),
                statistics.median(rates["the other"]),
                against="the other",
            )


if __name__ == "__main__":
    main("client_revisions", {"clients": clients})
