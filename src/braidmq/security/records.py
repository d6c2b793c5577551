"""What is kept of users, namespaces and permissions, and the rules for their names."""

from typing import Final, Literal

import msgspec

from braidmq.model.errors import BadRequest
from braidmq.security.scopes import Scopes

USERS: Final = "users"
"""Catalogue table: user name → UserRecord."""

NAMESPACES: Final = "namespaces"
"""Catalogue table: namespace name → NamespaceRecord."""

PERMISSIONS: Final = "permissions"
"""Catalogue table: namespace, NUL, user name → PermissionRecord."""

ROOT_NAMESPACE: Final = "/"
"""Always there: what AMQP clients open unless told otherwise."""

SYSTEM_NAMESPACE: Final = "$system"
"""Where a node publishes for itself: nobody else configures or writes anything there."""

ADMINISTRATOR: Final = "administrator"
"""The tag of those who may change users, permissions and namespaces."""

MONITORING: Final = "monitoring"
"""The tag of those who may see the figures of the whole node."""

MANAGEMENT: Final = "management"
"""The tag of those who may see what administrators have set in the namespaces they enter."""

IMPERSONATOR: Final = "impersonator"
"""The tag of those who may publish in bulk what others have published: an archive, say."""

NAME_BYTES_MAX = 255
"""An AMQP short string, which is how a client names itself and its virtual host."""

TAGS_MAX = 32
"""A user has a few roles; this only bounds the record."""

LIMIT_MAX = 2**31 - 1
"""More connections or queues than a node can have, and still an integer to every client."""

BYTES_MAX = 2**53
"""What a float holds exactly, as does whatever reads JSON."""


class UserRecord(msgspec.Struct, frozen=True):
    password: str
    """An Argon2 hash in its usual text form, with its parameters and salt."""
    tags: list[str] = []


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    max_connections: int | None = None
    max_queues: int | None = None
    max_topics: int | None = None
    max_channels: int | None = None
    max_consumers: int | None = None
    max_storage_bytes: int | None = None
    max_messages_in_per_s: int | None = None
    max_messages_out_per_s: int | None = None
    max_retained_messages: int | None = None
    max_transactions: int | None = None


class PermissionRecord(msgspec.Struct, frozen=True):
    configure: str
    write: str
    read: str


class User(msgspec.Struct, frozen=True):
    name: str
    tags: frozenset[str] = frozenset()

    @property
    def is_administrator(self) -> bool:
        return ADMINISTRATOR in self.tags

    @property
    def may_monitor(self) -> bool:
        return self.is_administrator or MONITORING in self.tags

    @property
    def may_manage(self) -> bool:
        return self.may_monitor or MANAGEMENT in self.tags


NOBODY = User("")


class TokenUser(User, frozen=True, kw_only=True):
    """Who logged in with a token, and what that lets it do."""

    scopes: Scopes | None = None
    """None: whatever its user may."""
    expires_ms: int | None = None
    """By the wall clock."""
    token_id: str = ""
    """Of a token that we issued, and may revoke."""

    @property
    def has_account(self) -> bool:
        return self.scopes is None or self.scopes.has_account


def scopes_of(user: User) -> Scopes | None:
    """What narrows the rights of who logged in; None: nothing does."""
    return user.scopes if isinstance(user, TokenUser) else None


def kept_name(user: User) -> str:
    """With whose name that is kept which names other objects, and by whose rights it holds later.
    Empty for who has no account: there is nobody whose rights could be asked then."""
    has_account = not isinstance(user, TokenUser) or user.has_account
    return user.name if has_account else ""


NamespaceStorage = Literal["disk", "memory"]


class Namespace(msgspec.Struct, frozen=True):
    """``None`` is no limit; 0 allows none at all. ``storage`` is where all its records are."""

    name: str
    max_connections: int | None = None
    max_queues: int | None = None
    max_topics: int | None = None
    max_channels: int | None = None
    max_consumers: int | None = None
    max_storage_bytes: int | None = None
    max_messages_in_per_s: int | None = None
    max_messages_out_per_s: int | None = None
    max_retained_messages: int | None = None
    max_transactions: int | None = None
    storage: NamespaceStorage = "disk"


class Permission(msgspec.Struct, frozen=True):
    namespace: str
    user: str
    configure: str
    write: str
    read: str


def check_user_name(name: str) -> None:
    check_name(name, "user name")
    if ":" in name:
        # RFC 7617, 2: it ends the user-id in HTTP Basic credentials.
        raise BadRequest(f"a user name can't hold a colon: {name!r}")


def check_namespace_name(name: str) -> None:
    check_name(name, "namespace")


def check_tags(tags: frozenset[str]) -> None:
    if len(tags) > TAGS_MAX:
        raise BadRequest(f"a user can't have more than {TAGS_MAX} tags")
    for tag in tags:
        check_name(tag, "tag")
        if "," in tag or " " in tag:
            raise BadRequest(f"a tag can't hold a comma or a space: {tag!r}")


def check_limit(what: str, value: int | None) -> None:
    most = BYTES_MAX if what.endswith("_bytes") else LIMIT_MAX
    least = 1 if what.endswith("_per_s") else 0  # of a rate of 0 nothing would ever be over
    if value is not None and not least <= value <= most:
        raise BadRequest(f"{what} must be from {least} to {most}, or nothing for no limit")


def check_name(name: str, what: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise BadRequest(f"a {what} must be valid Unicode: {name!r}") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise BadRequest(f"a {what} must have 1 to {NAME_BYTES_MAX} bytes, not {size}")
    # NUL parts namespace and user in the catalogue; the others would break up lines of logs.
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in name):
        raise BadRequest(f"a {what} can't hold control characters: {name!r}")
