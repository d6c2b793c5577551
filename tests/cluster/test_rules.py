"""Each rule holds, and each mutant breaks the tests of its own rule."""

from collections.abc import Callable

import pytest
from cluster_mutants import MUTANTS, Mutant
from rules import RULES

EACH = [(number, rule) for number, rules in RULES.items() for rule in rules]


@pytest.mark.parametrize(
    "rule", [each for _, each in EACH], ids=[f"{n}-{r.__name__}" for n, r in EACH]
)
def test_rule(rule: Callable[[], None]) -> None:
    rule()


def test_every_rule_has_a_mutant() -> None:
    assert {each.rule for each in MUTANTS.values()} == set(RULES) == set(range(1, 11))


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=list(MUTANTS))
def test_a_mutant_breaks_its_rule(mutant: Mutant) -> None:
    with mutant.applied():
        assert any(map(breaks, RULES[mutant.rule]))
    assert not any(map(breaks, RULES[mutant.rule]))


def breaks(rule: Callable[[], None]) -> bool:
    try:
        rule()
    except Exception:  # also when the core trips over itself
        return True
    return False
