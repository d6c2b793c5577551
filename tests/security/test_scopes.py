"""Scopes: what they allow, and that what is not understood allows nothing."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.model.errors import BadRequest
from braidmq.security.accounts import Accounts
from braidmq.security.records import SYSTEM_NAMESPACE
from braidmq.security.rights import Verb
from braidmq.security.scopes import SCOPES_MAX, granted, matches, require_scopes

PIECES = st.text("ab*/", max_size=8)


@given(PIECES, st.text("ab/", max_size=12))
def test_a_pattern_matches_as_its_regular_expression_does(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == (re.fullmatch(expression, name) is not None)


@pytest.mark.parametrize(
    ("scope", "verb", "namespace", "name", "wanted"),
    [
        ("read:%2F/orders", Verb.READ, "/", "orders", True),
        ("read:%2F/orders", Verb.READ, "/", "old-orders", False),
        ("read:%2F/orders", Verb.WRITE, "/", "orders", False),
        ("read:*/*", Verb.READ, "tenant", "anything/else", True),
        ("write:tenant/sensors%2F*", Verb.WRITE, "tenant", "sensors/1", True),
        ("write:tenant/sensors%2F*", Verb.WRITE, "/", "sensors/1", False),
        ("read:%2F/orders/*", Verb.READ, "/", "orders", True),
        ("read:%2F/orders/key", Verb.READ, "/", "orders", False),
        ("read:%2F/", Verb.READ, "/", "", False),
        ("read:/x", Verb.READ, "", "x", False),
        ("openid", Verb.READ, "/", "orders", False),
        ("READ:%2F/orders", Verb.READ, "/", "orders", False),
    ],
)
def test_a_scope(scope: str, verb: Verb, namespace: str, name: str, wanted: bool) -> None:
    assert granted([scope]).may(verb, namespace, name) == wanted


def test_scopes_are_read_again_as_they_were_written() -> None:
    found = granted(["read:%2F/a%25b*", "configure:t/x%2Fy", "tag:monitoring"])
    assert granted(found.texts()) == found


def test_only_what_has_our_prefix_counts() -> None:
    found = granted(["braidmq.read:%2F/a", "read:%2F/b"], prefix="braidmq.")
    assert found.may(Verb.READ, "/", "a")
    assert not found.may(Verb.READ, "/", "b")


@pytest.mark.parametrize("bad", [["openid"], ["read:x"], ["read:a/b/c"], ["tag:"], ["x"] * 101])
def test_what_is_no_scope_is_no_scope_of_a_token_of_ours(bad: list[str]) -> None:
    with pytest.raises(BadRequest):
        require_scopes(bad)
    require_scopes(["read:a/b"] * SCOPES_MAX)


def test_scopes_narrow_an_account_and_never_widen_it(accounts: Accounts) -> None:
    accounts.add_user("ann", "secret")
    accounts.set_permission("ann", "/", "", "^a", "^a|^b")
    grants = accounts.grants(
        "ann", "/", granted(["read:%2F/a*", "write:%2F/*", "tag:administrator"])
    )
    assert grants.may_read("a1")
    assert not grants.may_read("b1")
    assert grants.may_write("a1")
    assert not grants.may_write("c1")
    assert not grants.may_some(Verb.CONFIGURE)
    accounts.set_permission("ann", "/", "", "", ".*")
    assert not grants.may_write("a1")  # what the account lost is lost at once
    assert accounts.can_enter("ann", "/", granted(["read:%2F/a"]))
    assert not accounts.can_enter("ann", "/", granted(["read:other/a"]))
    assert not accounts.can_enter("ann", "/", granted(["tag:administrator"]))


def test_without_an_account_scopes_are_all_there_is(accounts: Accounts) -> None:
    scopes = granted(["read:%2F/a*", "read:gone/*"], has_account=False)
    assert accounts.can_enter("nobody", "/", scopes)
    assert not accounts.can_enter("nobody", "gone", scopes)
    assert not accounts.can_enter("nobody", "/", granted([], has_account=False))
    grants = accounts.grants("nobody", "/", scopes)
    assert grants.may_read("a1")
    assert not grants.may_read("b")
    assert not grants.may_write("a1")
    assert accounts.grants("nobody", "/", scopes) is grants
    assert accounts.grants("nobody", "/") is not grants


def test_no_scope_lets_anybody_write_what_only_the_broker_writes(accounts: Accounts) -> None:
    every = [f"{verb}:*/*" for verb in Verb]
    for has_account in (True, False):
        grants = accounts.grants("x", SYSTEM_NAMESPACE, granted(every, has_account=has_account))
        assert not grants.may_write("$audit")
        assert not grants.may_configure("$audit")
        assert grants.may_read("$audit") is not has_account
