"""When the client asks for a token, and when it renews one."""

import base64
import json
import time

import pytest

from braidmq.client.address import BadAddress, parse_address
from braidmq.client.tokens import MARGIN_S_MAX, TokenSource, renew_s


def jwt(ends_s: object) -> str:
    said = base64.urlsafe_b64encode(json.dumps({"exp": ends_s}).encode()).rstrip(b"=").decode()
    return f"eyJ.{said}.sig"


def test_when_a_token_is_renewed() -> None:
    assert renew_s(jwt(1100), 1000) == 1090
    assert renew_s(jwt(100_000), 0) == 100_000 - MARGIN_S_MAX
    for text in ("braid_ab_cd", "a.b.c", "a..c", jwt("soon"), jwt(None), "", "a.W10.c"):
        assert renew_s(text, 0) is None


async def test_one_for_good() -> None:
    source = TokenSource("text")
    assert not source.renews
    assert await source.get() == await source.get(fresh=True) == "text"
    assert source.left_s() is None


async def test_a_jwt_is_kept_while_it_lasts() -> None:
    given: list[str] = []

    def give() -> str:
        given.append(jwt(time.time() + (1000 if given else -1)))
        return given[-1]

    source = TokenSource(give)
    assert await source.get() == given[0]
    assert source.left_s() == 0
    assert await source.get() == given[1]  # the first is over
    assert await source.get(fresh=True) == given[1]
    assert len(given) == 2
    assert 890 < (source.left_s() or 0) < 1000


async def test_one_whose_end_nobody_knows_is_asked_for_with_each_log_in() -> None:
    given: list[str] = []

    async def give() -> str:
        given.append(f"token-{len(given)}")
        return given[-1]

    source = TokenSource(give)
    assert source.renews
    assert await source.get(fresh=True) == "token-0"
    assert await source.get() == "token-0"
    assert await source.get(fresh=True) == "token-1"


def test_in_a_url() -> None:
    address = parse_address("amqp://host/?token=abc")
    assert (address.token, address.user, address.password) == ("abc", "", "")
    assert "abc" not in str(address)
    assert parse_address("amqp://ann@host/", token="x").user == "ann"
    with pytest.raises(BadAddress):
        parse_address("amqp://ann:secret@host/?token=abc")
