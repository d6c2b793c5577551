import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.model.errors import BadRequest
from braidmq.security import passwords
from braidmq.security.passwords import (
    PASSWORD_BYTES_MAX,
    REMEMBERED_MAX,
    REMEMBERED_MS,
    Verified,
    hash_password,
    unmatchable_hash,
    verify_password,
)


def test_a_hash_knows_its_password_and_no_other() -> None:
    encoded = hash_password("geheim").encoded
    assert encoded.startswith("$argon2id$")
    assert "geheim" not in encoded
    assert verify_password(encoded, b"geheim")
    assert not verify_password(encoded, b"Geheim")


def test_equal_passwords_have_different_hashes() -> None:
    assert hash_password("same") != hash_password(b"same")


@pytest.mark.parametrize("password", ["", b"", "x" * (PASSWORD_BYTES_MAX + 1)])
def test_passwords_nobody_should_have(password: str | bytes) -> None:
    with pytest.raises(BadRequest):
        hash_password(password)


def test_the_stand_in_for_an_unknown_user_costs_the_same_and_never_matches() -> None:
    stand_in, real = unmatchable_hash(), hash_password("x").encoded
    assert stand_in.split("$")[:4] == real.split("$")[:4]
    assert len(stand_in) == len(real)
    assert not verify_password(stand_in, b"x")


def test_an_outcome_is_remembered_for_a_while() -> None:
    verified = Verified()
    digest = verified.digest("u", b"p", "h")
    assert verified.outcome(digest, 0) is None
    verified.remember(digest, True, 1000)
    assert verified.outcome(digest, 1000 + REMEMBERED_MS - 1) is True
    assert verified.outcome(digest, 1000 + REMEMBERED_MS) is None


def test_refusals_do_not_push_out_successes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "REMEMBERED_MAX", 4)
    verified = Verified()
    good = verified.digest("u", b"right", "h")
    verified.remember(good, True, 0)
    for number in range(20):
        verified.remember(verified.digest("u", b"%d" % number, "h"), False, 0)
    assert verified.outcome(good, 1) is True
    assert len(verified) == 1 + 4


def test_what_is_over_is_dropped_when_something_is_added() -> None:
    verified = Verified()
    for number in range(100):
        verified.remember(b"%d" % number, True, 0)
    verified.remember(b"new", True, REMEMBERED_MS)
    assert len(verified) == 1
    assert REMEMBERED_MAX > 100


@given(
    st.tuples(st.text(), st.binary(), st.text(alphabet="$abc")),
    st.tuples(st.text(), st.binary(), st.text(alphabet="$abc")),
)
def test_a_digest_depends_on_all_of_it(
    one: tuple[str, bytes, str], other: tuple[str, bytes, str]
) -> None:
    verified = Verified()
    assert (verified.digest(*one) == verified.digest(*other)) == (one == other)


def test_digests_of_two_nodes_differ() -> None:
    assert Verified().digest("u", b"p", "h") != Verified().digest("u", b"p", "h")
