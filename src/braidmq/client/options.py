"""Options that are one of a few words."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from braidmq.model.errors import BadRequest


def one_of(name: str, value: object, allowed: Any, *others: str) -> None:
    """Raises BadRequest for what is not a word of the Literal ``allowed``; ``others`` says what it
    may be besides."""
    words = get_args(allowed)
    if value not in words:
        said = ", ".join([*(repr(each) for each in words), *others])
        raise BadRequest(f"{name} is {value!r}, which is none of: {said}")


def check_words(said: Mapping[str, Any], shape: type) -> None:
    """``one_of`` for all that are Literals in a TypedDict."""
    for name, hint in get_type_hints(shape).items():
        if name in said and get_origin(hint) is Literal:
            one_of(name, said[name], hint)
