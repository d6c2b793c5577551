"""What a token lets its holder do: permissions and tags, in RabbitMQ's words.

    read:NAMESPACE/NAME     write:NAMESPACE/NAME     configure:NAMESPACE/NAME     tag:NAME

NAMESPACE and NAME may have ``*`` for any characters, and %XX for what would not be understood:
``read:%2F/orders*`` is read on all of ``/`` that begins with "orders". Unlike the patterns of
accounts they have to match the whole name. RabbitMQ's third part, for routing keys, is understood
as ``*`` only: any other would be narrower than we can keep, and grants nothing.
"""

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from braidmq.model.errors import BadRequest
from braidmq.security.rights import Verb

SCOPES_MAX = 100
"""Of a token that we issue: each is looked at for a name that was not asked about before."""

SCOPE_CHARACTERS_MAX = 1024

TAG = "tag"
VERBS = {str(each): each for each in Verb}


class Scope(msgspec.Struct, frozen=True):
    verb: Verb
    namespace: str
    name: str


class Scopes(msgspec.Struct, frozen=True):
    """``has_account``: its user has one, and these narrow it; else they are all there is."""

    permissions: tuple[Scope, ...] = ()
    tags: frozenset[str] = frozenset()
    has_account: bool = True

    def may_enter(self, namespace: str) -> bool:
        return any(matches(each.namespace, namespace) for each in self.permissions)

    def may_some(self, verb: Verb, namespace: str) -> bool:
        return any(
            each.verb is verb and matches(each.namespace, namespace) for each in self.permissions
        )

    def may(self, verb: Verb, namespace: str, name: str) -> bool:
        return any(
            each.verb is verb and matches(each.namespace, namespace) and matches(each.name, name)
            for each in self.permissions
        )

    def texts(self) -> list[str]:
        """As ``granted`` reads them."""
        kept = [
            f"{each.verb}:{_quoted(each.namespace)}/{_quoted(each.name)}"
            for each in self.permissions
        ]
        return kept + [f"{TAG}:{each}" for each in sorted(self.tags)]


def granted(texts: Iterable[str], *, prefix: str = "", has_account: bool = True) -> Scopes:
    """Of a token that somebody else issued: what is not for us, or not understood, grants
    nothing."""
    found = [
        _parsed(each.removeprefix(prefix))
        for each in dict.fromkeys(texts)
        if each.startswith(prefix)
    ]
    return Scopes(
        tuple(each for each in found if isinstance(each, Scope)),
        frozenset(each for each in found if isinstance(each, str)),
        has_account,
    )


def require_scopes(texts: list[str]) -> None:
    """Of a token that is to be issued here. Raises BadRequest."""
    if len(texts) > SCOPES_MAX:
        raise BadRequest(f"a token can't have more than {SCOPES_MAX} scopes")
    for each in texts:
        if len(each) > SCOPE_CHARACTERS_MAX:
            raise BadRequest(f"a scope can't have more than {SCOPE_CHARACTERS_MAX} characters")
        if _parsed(each) is None:
            raise BadRequest(
                f"{each!r} is not a scope",
                remedy="Write read:NAMESPACE/NAME, write:…, configure:… or tag:NAME; %2F is /",
            )


def matches(pattern: str, name: str) -> bool:
    """With ``*`` for any characters; in time that grows with both and not with their product."""
    first, *others = pattern.split("*")
    if not others:
        return name == pattern
    *between, last = others
    if not name.startswith(first) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    if not name.endswith(last):
        return False
    for part in between:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _parsed(text: str) -> Scope | str | None:
    """A permission, a tag, or nothing that we know."""
    word, colon, rest = text.partition(":")
    if not colon:
        return None
    if word == TAG:
        return rest or None
    namespace, slash, place = rest.partition("/")
    name, more, key = place.partition("/")
    if word not in VERBS or not slash or not namespace or not name or (more and key != "*"):
        return None
    return Scope(VERBS[word], unquote(namespace), unquote(name))


def _quoted(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")
