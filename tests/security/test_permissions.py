import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.model.errors import AccessRefused, BadRequest
from braidmq.model.patterns import CHARACTERS_MAX
from braidmq.security import permissions
from braidmq.security.permissions import (
    EVERYTHING,
    NOTHING,
    Grants,
    check_pattern,
)
from braidmq.security.records import PermissionRecord
from braidmq.security.rights import Verb
from braidmq.security.scopes import Scopes

NAMES = st.text(alphabet="ab.-/q1\n", max_size=8)
LITERALS = st.text(alphabet="ab.-/q1", min_size=1, max_size=4)


class Source:
    """Where grants look: what an administrator may change under their hands."""

    def __init__(self, record: PermissionRecord) -> None:
        self.record = record
        self.generation = 0
        self.asked = 0

    def look_up(self, user: str, namespace: str, scopes: Scopes | None) -> PermissionRecord:
        assert (user, namespace, scopes) == ("ann", "/", None)
        self.asked += 1
        return self.record

    def grants(self) -> Grants:
        return Grants("ann", "/", lambda: self.generation, self.look_up, lambda user: False)


def writing(pattern: str) -> Grants:
    return Source(PermissionRecord("", pattern, "")).grants()


@pytest.mark.parametrize(
    ("pattern", "name", "granted"),
    [
        (".*", "orders", True),
        ("", "orders", False),
        ("^$", "orders", False),
        ("orders", "orders", True),
        ("orders", "old-orders-2", True),  # searched for, as RabbitMQ does
        ("^orders", "old-orders", False),
        ("^orders$", "orders-2", False),
        ("^(orders|bills)$", "bills", True),
        ("Orders", "orders", False),
        ("^(?i:Orders)$", "orders", True),
        ("^amq\\.default$", "", True),
        ("amq.default", "amq.default", True),
        ("^$", "", False),  # the default exchange has a name here
        ("", "", False),
        ("^é", "école", True),
    ],
)
def test_patterns(pattern: str, name: str, granted: bool) -> None:
    assert writing(pattern).may_write(name) is granted
    assert Source(PermissionRecord(pattern, "", "")).grants().may_configure(name) is granted
    assert Source(PermissionRecord("", "", pattern)).grants().may_read(name) is granted


@given(NAMES)
def test_the_empty_pattern_grants_nothing_and_the_full_one_everything(name: str) -> None:
    nothing, everything = Source(NOTHING).grants(), Source(EVERYTHING).grants()
    for grants, granted in ((nothing, False), (everything, True)):
        assert grants.may_configure(name) is granted
        assert grants.may_write(name) is granted
        assert grants.may_read(name) is granted


@given(LITERALS, NAMES)
def test_an_unanchored_literal_grants_every_name_that_holds_it(literal: str, name: str) -> None:
    expected = literal in (name or "amq.default")
    assert writing(re.escape(literal)).may_write(name) is expected


@given(LITERALS, NAMES.filter(lambda name: not name.endswith("\n")))
def test_anchors_mean_what_they_say(literal: str, name: str) -> None:
    seen, escaped = name or "amq.default", re.escape(literal)
    assert writing(f"^{escaped}").may_write(name) is seen.startswith(literal)
    assert writing(f"{escaped}$").may_write(name) is seen.endswith(literal)
    assert writing(f"^{escaped}$").may_write(name) is (seen == literal)


@given(st.lists(NAMES, max_size=30), LITERALS)
def test_a_remembered_answer_is_the_first_one(names: list[str], literal: str) -> None:
    grants = writing(re.escape(literal))
    first = [grants.may_write(name) for name in names]
    assert [grants.may_write(name) for name in names] == first


def test_the_three_are_kept_apart() -> None:
    grants = Source(PermissionRecord("^c", "^w", "^r")).grants()
    for name, answers in [("c", (1, 0, 0)), ("w", (0, 1, 0)), ("r", (0, 0, 1))]:
        got = (grants.may_configure(name), grants.may_write(name), grants.may_read(name))
        assert got == answers


def test_a_change_is_seen_at_the_next_question_and_looked_up_once() -> None:
    source = Source(EVERYTHING)
    grants = source.grants()
    assert all(grants.may_write("orders") for _ in range(10))
    assert source.asked == 1
    source.record = NOTHING
    assert grants.may_write("orders")  # nobody said so yet
    source.generation += 1
    assert not any(grants.may_write("orders") for _ in range(10))
    assert source.asked == 2


def test_a_client_that_asks_for_many_names_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permissions, "NAMES_MAX", 10)
    grants = writing("7$")
    for number in range(100):
        assert grants.may_write(f"q{number}") is (number % 10 == 7)
    assert len(grants._write) <= 10


def test_a_refusal_says_who_what_and_where() -> None:
    grants = Source(NOTHING).grants()
    with pytest.raises(AccessRefused, match=r"'ann' may not write to 'amq\.default' in .*'/'"):
        grants.need_write("")
    with pytest.raises(AccessRefused, match="configure 'q'"):
        grants.need_configure("q")
    with pytest.raises(AccessRefused, match="read from 'q'"):
        grants.need_read("q")
    allowed = Source(EVERYTHING).grants()
    allowed.need_configure("q")
    allowed.need_write("q")
    allowed.need_read("q")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "*",
        "[a",
        "a{2,1}",
        "[[:alpha:]]+",  # Python would read a set of brackets, colons and letters
        "\ud800",
        "a" * (CHARACTERS_MAX + 1),
        "a{99999999999999999999}",
    ],
)
def test_what_is_not_a_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadRequest):
        check_pattern(pattern)


@given(st.text(max_size=20))
def test_any_text_is_a_pattern_or_a_bad_request(pattern: str) -> None:
    try:
        check_pattern(pattern)
    except BadRequest:
        return
    assert writing(pattern).may_write("orders") in (True, False)


def test_a_refusal_names_everything_that_would_do() -> None:
    grants = Source(PermissionRecord("", "", "")).grants()
    said = [
        str(grants.refusal_of_all(verbs, name))
        for verbs, name in (([Verb.READ], "a"), (list(Verb), "a"), (list(Verb), None))
    ]
    user = f"user {grants.user!r}"
    namespace = f"in namespace {grants.namespace!r}"
    assert said == [
        f"{user} may not read from 'a' {namespace}",
        f"{user} may not configure, write to or read from 'a' {namespace}",
        f"{user} has no permission {namespace}",
    ]
