"""Patterns: they say what ``re`` says, and no name makes one take long."""

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.model import patterns
from braidmq.model.patterns import BadPattern, Pattern, _Name, compiled

ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\w", r"\d", r"\s", "-", "^", "$", r"\b", r"\A", r"\Z"]


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeats = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?", "+?"])
    heads = st.sampled_from(["(?:", "(", "(?=", "(?!", "(?i:"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("(?:{})".format),
        st.tuples(inner, repeats).map(lambda each: f"(?:{each[0]}){each[1]}"),
        st.tuples(heads, inner).map(lambda each: f"{each[0]}{each[1]})"),
        st.sampled_from(ATOMS).map("(?<={})".format),
        st.sampled_from(ATOMS).map("(?<!{})".format),
    )


texts = st.recursive(st.sampled_from(ATOMS), grown, max_leaves=6)
names = st.text(alphabet="aAb-1 \n", max_size=8)


def found_here(pattern: Pattern, name: str) -> bool:
    """By our own way, also where ``re`` would be quicker."""
    searched = _Name(name)
    return pattern._node.ends(searched.every, searched) & searched.every != 0


@given(texts, names)
def test_what_re_finds_is_found(text: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = re.search(text, name) is not None
        except re.error:
            with pytest.raises(BadPattern):
                Pattern(text)
            return
        try:
            pattern = Pattern(text)
        except BadPattern as error:
            assert "forever" in str(error)  # noqa: PT017
            return
    assert found_here(pattern, name) is expected, (text, name)
    assert pattern.search(name) is expected


USUAL = [".*", "^amq", "^(?!secret)", r"^(orders|shop)\..*", "^[a-z]+$", "(?i)^dev-", r"x\.y$", ""]


@pytest.mark.parametrize("text", USUAL)
@pytest.mark.parametrize(
    "name", ["", "amq.topic", "secret/x", "orders.new", "dev-1", "DEV-2", "x.y"]
)
def test_usual_patterns_are_read_as_before(text: str, name: str) -> None:
    assert compiled(text).search(name) is (re.search(text, name) is not None)
    assert found_here(compiled(text), name) is (re.search(text, name) is not None)


SLOW = [
    "^(a+)+$",
    "(a|a)*b",
    "(a|aa)+$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(.*)*x",
    ".*.*.*.*.*.*=",
    "(a|a)" * 30 + "b",
    "(a?){30}a{30}b",
    "^(?=(a+)+$)b",
    "(.*a){12}b",
]


@pytest.mark.parametrize("text", SLOW)
@pytest.mark.parametrize("length", [30, 255, 4000])
def test_no_name_makes_a_pattern_take_long(text: str, length: int) -> None:
    """Counted in operations on sets: what the pattern was reckoned to cost holds for any name."""
    pattern = Pattern(text)
    assert pattern._quick is None, "left to re, which goes all the ways"
    assert pattern._node.cost <= patterns.COST_MAX
    searched = _Name("a" * length + "!")
    try:
        found = pattern._node.ends(searched.every, searched)
    except patterns._TooLong:
        assert length > patterns.NAME_CHARACTERS
        return
    assert found & searched.every == 0
    assert searched._steps >= 0


@pytest.mark.parametrize(
    "text",
    [
        r"(a)\1",
        "(?>a+)b",
        "a++b",
        "(a)?(?(1)b|c)",
        "(((a+b)+c)+d)+",
        "(",
        "[",
        "a" * 1025,
        "\udc80",
    ],
)
def test_what_could_take_for_ever_is_refused_when_it_is_given(text: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(text)


def test_groups_within_groups_have_an_end() -> None:
    with pytest.raises(BadPattern):
        Pattern("(" * 400 + "a" + ")" * 400)
