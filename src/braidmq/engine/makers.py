"""Who sets what names another object, and whose rights count for it."""

from collections.abc import Callable
from typing import NamedTuple


class Maker(NamedTuple):
    """Somebody with a token, which may give fewer rights than its user has, or all there are."""

    user: str
    """Kept with what is made, which holds while this user has the right; empty: it holds for
    good."""
    may: Callable[[str, str], bool]
    """Whether the token lets it do something to a name, in the namespace it is in."""


SetBy = str | Maker
"""A user, whose own rights count; empty: the broker itself."""


def name_of(maker: SetBy) -> str:
    return maker if isinstance(maker, str) else maker.user


def lets(maker: SetBy, verb: str, name: str) -> bool:
    """As far as the token goes, if there is one."""
    return isinstance(maker, str) or maker.may(verb, name)
