"""What %c and %u stand for: no client widens a rule by the id it chooses."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.model.errors import BadRequest
from braidmq.security import permissions, placeholders
from braidmq.security.permissions import Grants, check_pattern
from braidmq.security.records import PermissionRecord

HOSTILE = (
    *("+", "#", "+/#", "*", ".", ".*", ".+", "a|b", "a|", "|", "()", "(", "[", "]", "\\", "\\w"),
    *("^", "$", "$SYS", "$queue", "?", "a?", "{0}", "", "/", "a/b", "..", "%c", "%u", "a\n", "\0"),
    *("a", "ab", "A", "ä", "a b", "a-b", "s1", "s12", "a" * 128, "a" * 129, "(?i)a", "(?!)"),
)
LEVELS = (*HOSTILE, "b", "public", "SYS")


def grants(pattern: str, client_id: str = "", user: str = "ann") -> Grants:
    record = PermissionRecord("", "", pattern)
    return Grants(user, "/", lambda: 1, lambda *_: record, lambda _: False, client_id=client_id)


def may_stand(name: str) -> bool:
    """The rule, said otherwise: one level that means itself, wherever it is written."""
    return (
        0 < len(name) <= 128
        and name.isprintable()
        and not name.startswith("$")
        and set(name).isdisjoint("+#*/")
    )


def below(topic: str, *, first: str, name: str) -> bool:
    levels = topic.split("/")
    return may_stand(name) and len(levels) > 2 and levels[:2] == [first, name]


def violations() -> Iterator[tuple[str, str]]:
    """Of all pairs, an id and a topic where the answer is not that of the rule."""
    for client_id in HOSTILE:
        asked = grants("^dev/%c/", client_id)
        for level in LEVELS:
            for topic in (f"dev/{level}/x", f"dev/{level}", f"x/dev/{level}/x", f"{level}/dev/x"):
                if asked.may_read(topic) != below(topic, first="dev", name=client_id):
                    yield client_id, topic


def test_no_hostile_id_gets_another_topic() -> None:
    assert list(violations()) == []


@pytest.mark.parametrize(
    "mutant",
    [
        ("_UNSAFE", re.compile("(?!)")),
        ("_letters", lambda name: name or placeholders.NOTHING),
        ("_letters", re.escape),
        ("ID_CHARACTERS_MAX", 1 << 30),
    ],
    ids=["any character", "not escaped", "whatever it is", "any length"],
)
def test_a_rule_that_is_left_out_is_found(
    monkeypatch: pytest.MonkeyPatch, mutant: tuple[str, object]
) -> None:
    monkeypatch.setattr(placeholders, *mutant)
    try:
        assert list(violations())
    finally:
        placeholders.compiled_for_one.cache_clear()


IDS = st.one_of(
    st.sampled_from(HOSTILE), st.text(max_size=6), st.text("ab.+#/*$\\|()[]", max_size=5)
)


@given(IDS, st.lists(IDS, min_size=1, max_size=4))
@settings(deadline=None, max_examples=400)
def test_a_placeholder_is_one_level_letter_by_letter(name: str, levels: list[str]) -> None:
    for topic in ("/".join(levels), "/".join(["dev", *levels]), f"dev/{name}/x", f"dev/{name}"):
        wanted = below(topic, first="dev", name=name)
        assert grants("^dev/%c/", name).may_read(topic) == wanted
        assert grants("^dev/%u/", "", name).may_read(topic) == wanted
        whole = may_stand(name) and topic == f"dev/{name}"
        # `$` matches before an end of line, too, as everywhere in patterns.
        assert grants("^dev/%c$", name).may_read(topic) == (
            whole or (may_stand(name) and topic == f"dev/{name}\n")
        )


def test_the_rest_of_a_pattern_holds_without_an_id() -> None:
    asked = grants("^public/|^dev/%c/")
    assert asked.may_read("public/x")
    assert not asked.may_read("dev//x")
    assert not asked.may_read("dev/a/x")
    assert not grants("^%c$").may_read("")


def test_both_at_once() -> None:
    asked = grants("^%u/%c/", "meter", "ann")
    assert asked.may_read("ann/meter/x")
    assert not asked.may_read("meter/ann/x")


def test_an_escaped_sign_is_itself() -> None:
    assert grants("^\\%c/", "a").may_read("%c/x")
    assert not grants("^\\%c/", "a").may_read("a/x")
    assert grants("^[%c]$", "a").may_read("c")
    assert grants("^100%$", "a").may_read("100%")


@pytest.mark.parametrize(
    "pattern", ["^a/%c/", "^%u$", "^dev-%c$", "^x\\.%u/", "^%c$|^all/", "a/%c/"]
)
def test_whole_levels_are_taken(pattern: str) -> None:
    check_pattern(pattern)


REFUSED = (
    *("^a/%c", "%c/", "^a/%c*/", "(a|%c)/", "^a/(%c|b)/", "^a/\\w%c/", "^a+%c/", ".%c/", "a?%c/"),
    *("^a/%c/?", "^a/%c/*", "^a/%c/{0,1}x", "^a/%c$?", "^%c.", "^%c\\w", "^%c%u/", "^%u-%c"),
    *("(?i)^%c/", "^(?i:dev/%c/)", "^(?!dev/%c/)", "(?<!x)^%c/", "(?x)^ %c/", "[a]%c/", "^a{3}%c/"),
)


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_an_id_could_widen_is_refused(pattern: str) -> None:
    with pytest.raises(BadRequest):
        check_pattern(pattern)


def test_a_pattern_must_be_one_with_the_longest_id_too() -> None:
    check_pattern("^" + "a" * 500 + "/%c/")
    with pytest.raises(BadRequest, match="characters"):
        check_pattern("^" + "a" * 900 + "/%c/")


def test_devices_do_not_push_out_what_all_users_share() -> None:
    permissions.compiled.cache_clear()
    grants("^shared/").may_read("shared/x")
    for number in range(2000):
        assert grants("^dev/%c/", f"d{number}").may_read(f"dev/d{number}/x")
    assert permissions.compiled.cache_info().currsize == 1
