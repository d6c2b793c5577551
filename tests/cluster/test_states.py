"""The table of roles and the page that is drawn from it."""

from pathlib import Path

from braidmq.cluster.states import FINAL, TRANSITIONS, Role, document

PAGE = Path(__file__).parents[2] / "docs/replica-states.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == document(), "run python -m braidmq.cluster.states"


def test_every_role_is_in_the_table_and_can_be_come_to() -> None:
    assert TRANSITIONS.keys() == set(Role)
    reached = {each for row in TRANSITIONS.values() for each in row.values()}
    assert reached == set(Role)
    assert {each for each, row in TRANSITIONS.items() if not row} == FINAL


def test_nothing_leads_back_from_leading_to_following() -> None:
    after = {Role.LEADING}
    while more := {each for role in after for each in TRANSITIONS[role].values()} - after:
        after |= more
    assert after == {Role.LEADING, Role.QUIET, Role.DEPOSED}
