"""Many seeds of the simulator, by hand: on several processes, with a mutant or without."""

import argparse
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from cluster_mutants import MUTANTS
from simulator import replay, run_seed

BATCH = 100
SHOWN = 200  # lines of a history that ends badly


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--seeds", type=int, help="how many, instead of the history of one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument("--all", action="store_true", help="all lines of the history")
    given = parser.parse_args()
    if given.mutant:
        MUTANTS[given.mutant].apply()
    if given.seeds:
        run_many(given.seed, given.seeds, given.jobs)
    else:
        show(given.seed, given.all)


def show(seed: int, whole: bool) -> None:
    world, error = replay(seed)
    assert world.history is not None
    print(world.profile)
    print(*(world.history if whole else world.history[-SHOWN:]), sep="\n")
    print(world.counts)
    print(f"{type(error).__name__}: {error}" if error else "nothing went wrong")


def run_many(first: int, count: int, jobs: int) -> None:
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    starts = range(first, first + count, BATCH)
    with ProcessPoolExecutor(jobs) as pool:
        for counts, failures in pool.map(
            partial(run_batch, last=first + count), starts, chunksize=1
        ):
            totals += counts
            for failure in failures:
                print(failure, flush=True)
    took = time.perf_counter() - began
    print(f"{count} seeds in {took:.0f} s: {dict(totals)}")


def run_batch(first: int, last: int) -> tuple[Counter[str], list[str]]:
    totals: Counter[str] = Counter()
    failures: list[str] = []
    began = time.process_time()
    for seed in range(first, min(first + BATCH, last)):
        try:
            world = run_seed(seed)
        except Exception as error:
            totals["failed"] += 1
            failures.append(f"seed {seed}: {type(error).__name__}: {error}")
        else:
            totals.update(world.counts)
            totals["confirmed"] += world.checker.confirmed
    totals["cpu_ms"] += int(1000 * (time.process_time() - began))
    return totals, failures
