"""Running scenarios, whichever protocol they are of, and recording what they saw."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.differential import expectations
from tests.differential.expectations import Observation, plain

JOBS = 8
"""Scenarios run at a time: mostly they wait for what should not come."""

Observe = Callable[[str], Observation]
"""Runs the scenario of a name; what the client saw, without what differs from run to run."""


def observe_all(
    names: list[str], observe: Observe, jobs: int = JOBS
) -> tuple[dict[str, Observation], dict[str, float]]:
    """Observations and seconds taken, by name. Scenarios share nothing, so they may overlap.

    One that could not go on, as a step it takes for granted failed, has ``{"failed": why}``.
    """

    def timed(name: str) -> tuple[Observation, float]:
        began = time.monotonic()
        try:
            seen = observe(name)
        except Exception as error:
            seen = {"failed": f"{type(error).__name__}: {error}"}
        return plain(seen), time.monotonic() - began

    with ThreadPoolExecutor(jobs) as pool:
        results = dict(zip(names, pool.map(timed, names), strict=True))
    return (
        {name: seen for name, (seen, _) in results.items()},
        {name: took for name, (_, took) in results.items()},
    )


def wanted(session: pytest.Session, test: str) -> list[str]:
    """Scenarios of the tests selected: ``-k`` runs no others."""
    return [
        item.callspec.params["name"]
        for item in session.items
        if isinstance(item, pytest.Function) and item.originalname == test
    ]


# --- recording ---


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def record(path: Path, known: list[str], only: str, observe: Observe, jobs: int) -> int:
    """Write what the scenarios whose name contains ``only`` see; the others stay as they are."""
    names = [name for name in known if only in name]
    seen, took = observe_all(names, observe, jobs)
    failed = {name: found for name, found in seen.items() if "failed" in str(found)[:10]}
    if failed:
        say("nothing is recorded, these failed:")
        for name, found in failed.items():
            say(f"  {name}: {found['failed']}")
        return 1
    kept = expectations.read(path) if only and path.exists() else {}
    expectations.write(path, {**{n: value for n, value in kept.items() if n in known}, **seen})
    say(f"recorded {len(seen)} scenarios, {sum(took.values()):.0f} s of waiting; the slowest:")
    for name in sorted(took, key=lambda name: -took[name])[:8]:
        say(f"  {took[name]:5.2f} s  {name}")
    return 0


def check(path: Path, names: list[str], times: int, observe: Observe, jobs: int) -> int:
    """Whether the record still holds; nothing is written."""
    for turn in range(1, times + 1):
        seen, _ = observe_all(names, observe, jobs)
        differing = list(_differences(expectations.read(path), seen))
        for line in differing:
            say(line)
        say(f"run {turn}: {len(seen)} scenarios, {len(differing)} differ")
        if differing:
            return 1
    return 0


def _differences(recorded: dict[str, Observation], seen: dict[str, Observation]) -> Iterator[str]:
    for name, found in seen.items():
        if found != recorded.get(name):
            yield f"{name}\n  recorded {recorded.get(name)}\n  now      {found}"
