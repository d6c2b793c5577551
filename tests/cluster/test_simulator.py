"""Histories in which everything goes wrong: nothing confirmed is lost, and all ends well.

``python tests/cluster/simulator.py SEED`` prints the history of a seed that fails here.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_mutants import MUTANTS
from simulator import SHOWN_WITH_ERRORS, replay, run_seed

SEEDS = 2_000
CHUNK = 250
ONLY_BY_ITS_TEST = {
    # What else keeps them: the set is never that small (rule 3), and a leader has everything that
    # the whole set has, with or without an entry of its own term.
    "confirmed below the minimum",
    "committed without the entry of the term",
}
FOUND_AT = {
    "confirmed before the smaller set is decided": 12,
    "a majority instead of the whole set": 7,
    "acknowledged before the sync": 61,
    "an unanswered swap is settled by a read": 697,
    "the set shrinks below its minimum": 1,
    "any replica may be elected": 1,
    "an election takes all replicas into the set": 7,
    "who is being added does not count yet": 160,
    "joins without the entry that began the term": 403,
    "joins before it has what is committed": 1012,
    "lets join before its own disk has the entry that began the term": 1_011_636,
    "members are names": 6,
    "a restarted leader resumes its term": 1,
    "cut to the commit": 2,
    "cut to the leader's length": 3,
    "terms on links are not looked at": 102,
    "members without a lease do not count": 3,
}
"""The first of the seeds from 1 on, but for one that a long run found. After a change of the core
it is another; it is looked for here first, and then among all others."""


@pytest.mark.parametrize("first", range(1, SEEDS, CHUNK))
def test_nothing_is_lost_and_nothing_gets_stuck(first: int) -> None:
    confirmed = elections = 0
    for seed in range(first, first + CHUNK):
        world = run_seed(seed)
        confirmed += world.checker.confirmed
        elections += world.counts["elections"]
    assert confirmed > 100 * CHUNK  # so that there was something to lose
    assert elections > 2 * CHUNK


@pytest.mark.parametrize("name", FOUND_AT)
def test_a_mutant_is_found(name: str) -> None:
    likely = FOUND_AT[name]
    with MUTANTS[name].applied():
        assert any(map(goes_wrong, (likely, *range(1, SEEDS + 1))))


def goes_wrong(seed: int) -> bool:
    try:
        run_seed(seed)
    except Exception:  # also when the core trips over itself
        return True
    return False


def test_every_mutant_is_looked_for() -> None:
    assert FOUND_AT.keys() | ONLY_BY_ITS_TEST == MUTANTS.keys()
    assert not FOUND_AT.keys() & ONLY_BY_ITS_TEST


def test_a_seed_is_one_history_whatever_python_hashes() -> None:
    shown = [printed(hashes) for hashes in ("1", "2")]
    assert shown[0] == shown[1]
    assert "nothing went wrong" in shown[0]
    assert shown[0].count("\n") > 200


def printed(hashes: str) -> str:
    script = Path(__file__).with_name("simulator.py")
    return subprocess.run(
        [sys.executable, str(script), "17", "--all"],
        env={**os.environ, "PYTHONHASHSEED": hashes},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_history_that_goes_wrong_says_how_it_came_to_that() -> None:
    name = "cut to the commit"
    with MUTANTS[name].applied():
        seed = next(each for each in range(1, SEEDS) if goes_wrong(each))
        world, error = replay(seed)
        with pytest.raises(type(error)) as raised:
            run_seed(seed)
    assert str(raised.value) == str(error)
    assert world.history is not None
    told, command = raised.value.__notes__
    assert told.splitlines() == world.history[-SHOWN_WITH_ERRORS:]
    assert "Truncate" in world.history[-1] or "Halt" in world.history[-1]
    assert f"python tests/cluster/simulator.py {seed}" in command
