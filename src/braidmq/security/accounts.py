"""Users, namespaces and permissions: every change to them and every question about them.

One thread owns it, the one that owns the store. Changes are visible at once and durable when the
LSN they return is. A login is three steps, so that the slow one in the middle can run elsewhere:
``begin``, ``Attempt.verify``, ``finish``. ``Logins`` takes them in an event loop.
"""

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakValueDictionary

import msgspec

from braidmq.engine.errors import StorageIsFixed
from braidmq.engine.state import NAMESPACE_STORAGE
from braidmq.model.errors import AccessRefused, BadRequest, Conflict, NotAuthenticated, NotFound
from braidmq.model.ids import Lsn
from braidmq.security.failed_logins import FailedLogins
from braidmq.security.passwords import (
    PASSWORD_BYTES_MAX,
    Password,
    PasswordHash,
    Verified,
    hash_password,
    password_bytes,
    unmatchable_hash,
    verify_password,
)
from braidmq.security.permissions import EVERYTHING, NOTHING, Grants, check_pattern
from braidmq.security.placeholders import CLIENT, has_placeholder
from braidmq.security.records import (
    ADMINISTRATOR,
    NAMESPACES,
    PERMISSIONS,
    ROOT_NAMESPACE,
    SYSTEM_NAMESPACE,
    USERS,
    Namespace,
    NamespaceRecord,
    NamespaceStorage,
    Permission,
    PermissionRecord,
    TokenUser,
    User,
    UserRecord,
    check_limit,
    check_namespace_name,
    check_tags,
    check_user_name,
    scopes_of,
)
from braidmq.security.rights import Verb
from braidmq.security.scopes import Scopes
from braidmq.storage.catalogue import Change
from braidmq.storage.store import Store

GUEST = "guest"
"""Name and password of the user a new node has."""

LOOPBACK_ONLY = frozenset({GUEST})
"""Users whose password everybody knows: they log in from this machine or not at all."""

LIMITS = (
    "max_connections",
    "max_queues",
    "max_topics",
    "max_channels",
    "max_consumers",
    "max_storage_bytes",
    "max_messages_in_per_s",
    "max_messages_out_per_s",
    "max_retained_messages",
    "max_transactions",
)

_encode = msgspec.msgpack.Encoder().encode
_user_record = msgspec.msgpack.Decoder(UserRecord).decode
_namespace_record = msgspec.msgpack.Decoder(NamespaceRecord).decode
_permission_record = msgspec.msgpack.Decoder(PermissionRecord).decode


@dataclass(frozen=True, slots=True)
class UserDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class NamespaceDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class LoginChanged:
    """A user has another password: who logged in with the old one is not let in any more."""

    name: str


@dataclass(frozen=True, slots=True)
class TagsChanged:
    name: str


@dataclass(frozen=True, slots=True)
class PermissionChanged:
    """Given, changed or withdrawn."""

    user: str
    namespace: str


@dataclass(frozen=True, slots=True)
class TokenRevoked:
    id: str


@dataclass(frozen=True, slots=True)
class LimitsChanged:
    """A namespace has other quotas, or is new."""

    namespace: str


AccountChange = (
    UserDeleted
    | NamespaceDeleted
    | LoginChanged
    | TagsChanged
    | PermissionChanged
    | TokenRevoked
    | LimitsChanged
)


@dataclass(slots=True)
class Attempt:
    """A login under way. ``outcome`` is ``None`` until it is known."""

    name: str
    loopback: bool
    encoded: str
    secret: bytes
    digest: bytes
    outcome: bool | None

    def verify(self) -> bool:
        """Slow, and touches nothing shared: may run in any thread."""
        return verify_password(self.encoded, self.secret)


class Accounts:
    def __init__(
        self,
        store: Store,
        dev: bool = False,
        loopback_only: frozenset[str] = LOOPBACK_ONLY,
        *,
        with_guest: bool = True,
    ) -> None:
        """``dev`` lets anyone in as an administrator, whatever the password. Without ``with_guest``
        a new node has no user whose password everybody knows."""
        self.dev = dev
        self.loopback_only = loopback_only
        self.generation = 0
        """Goes up with every change: what was derived from an earlier one is stale."""
        self.failed_logins = FailedLogins()
        """Of all protocols."""
        self._store = store
        self._verified = Verified()
        self._unmatchable = unmatchable_hash()
        self._grants: WeakValueDictionary[tuple[str, str, Scopes | None, str], Grants] = (
            WeakValueDictionary()
        )
        self._watchers: list[Callable[[AccountChange], None]] = []
        self._derived: list[Callable[[], None]] = []
        self._stamps: dict[str, int] = {}
        self._users: dict[str, UserRecord] = {}
        self._namespaces: dict[str, NamespaceRecord] = {}
        self._permissions: dict[tuple[str, str], PermissionRecord] = {}
        self._restore()
        if ROOT_NAMESPACE not in self._namespaces:
            self._begin_anew(with_guest=with_guest)

    def _restore(self) -> None:
        catalogue = self._store.catalogue
        for name, value in catalogue.items(USERS):
            self._users[name] = _user_record(value)
        for name, value in catalogue.items(NAMESPACES):
            self._namespaces[name] = _namespace_record(value)
        for key, value in catalogue.items(PERMISSIONS):
            namespace, _, user = key.partition("\0")
            self._permissions[namespace, user] = _permission_record(value)

    def _begin_anew(self, *, with_guest: bool) -> None:
        """The root namespace is never deleted: without it, this is a node's first start. One
        entry, so that a crash leaves all of it or none."""
        self._namespaces[ROOT_NAMESPACE] = NamespaceRecord()
        changes: list[Change] = [
            (NAMESPACES, ROOT_NAMESPACE, _encode(self._namespaces[ROOT_NAMESPACE]))
        ]
        if with_guest:
            self._users[GUEST] = UserRecord(hash_password(GUEST).encoded, [ADMINISTRATOR])
            self._permissions[ROOT_NAMESPACE, GUEST] = EVERYTHING
            changes += [
                (USERS, GUEST, _encode(self._users[GUEST])),
                (PERMISSIONS, _key(ROOT_NAMESPACE, GUEST), _encode(EVERYTHING)),
            ]
        self._store.change(changes)

    # --- logging in ---

    def begin(self, name: str, password: Password, now_ms: int, loopback: bool) -> Attempt:
        if self.dev:
            return Attempt(name, loopback, "", b"", b"", True)
        secret = password_bytes(password)
        record = self._users.get(name)
        encoded = record.password if record is not None else self._unmatchable
        digest = self._verified.digest(name, secret, encoded)
        outcome = self._verified.outcome(digest, now_ms)
        if not secret or len(secret) > PASSWORD_BYTES_MAX:
            outcome = False
        return Attempt(name, loopback, encoded, secret, digest, outcome)

    def finish(self, attempt: Attempt, now_ms: int) -> User:
        """Who this is. Raises AccessRefused; NotAuthenticated if the name or password is wrong."""
        assert attempt.outcome is not None
        if self.dev:
            return User(attempt.name, frozenset({ADMINISTRATOR}))
        if self._verified.outcome(attempt.digest, now_ms) is None:
            self._verified.remember(attempt.digest, attempt.outcome, now_ms)
        record = self._users.get(attempt.name)
        # The password may have been changed, or the user deleted, while this one was verified.
        if not attempt.outcome or record is None or record.password != attempt.encoded:
            raise NotAuthenticated("the user name or the password is wrong")
        # Only after the password: before, it would tell a stranger which users exist.
        self._require_place(attempt.name, attempt.loopback)
        return _user(attempt.name, record)

    def certified(self, name: str, loopback: bool) -> User:
        """Who showed a certificate that stands for ``name``. Raises as ``finish`` does."""
        if self.dev:
            return User(name, frozenset({ADMINISTRATOR}))
        record = self._users.get(name)
        if record is None:
            raise NotAuthenticated(
                f"the certificate stands for user {name!r}, who does not exist",
                remedy="Add that user with `braid users add`, or see tls.user_from",
            )
        self._require_place(name, loopback)
        return _user(name, record)

    def by_token(
        self,
        name: str,
        loopback: bool,
        *,
        scopes: Scopes | None = None,
        expires_ms: int | None = None,
        token_id: str = "",
    ) -> TokenUser:
        """Who showed a token of ``name``. Raises as ``finish`` does, and NotFound."""
        record = self._user_record(name)
        self._require_place(name, loopback)
        tags = frozenset(record.tags)
        return TokenUser(
            name,
            tags if scopes is None else tags & scopes.tags,
            scopes=scopes,
            expires_ms=expires_ms,
            token_id=token_id,
        )

    def _require_place(self, name: str, loopback: bool) -> None:
        if name in self.loopback_only and not loopback:
            raise AccessRefused(
                f"user {name!r} may log in from the node's own machine only",
                remedy="Add another user with `braid users add`",
            )

    # --- what one may do ---

    def can_enter(self, user: str, namespace: str, scopes: Scopes | None = None) -> bool:
        """Whether the user has any permission there, if only to nothing, as in RabbitMQ; with a
        token, as far as its scopes go."""
        if self.dev:
            return namespace in self._namespaces
        if scopes is None:
            return (namespace, user) in self._permissions
        known = self._permissions if scopes.has_account else self._namespaces
        key = (namespace, user) if scopes.has_account else namespace
        return key in known and scopes.may_enter(namespace)

    def require_entry(self, user: User, namespace: str) -> None:
        """Raises AccessRefused."""
        if not self.can_enter(user.name, namespace, scopes_of(user)):
            raise AccessRefused(f"user {user.name!r} has no permission on namespace {namespace!r}")

    def refresh(self) -> None:
        """Somebody who is connected has other rights from now on: a renewed token gave them."""
        self.generation += 1
        for forget in self._derived:
            forget()

    def grants(
        self, user: str, namespace: str, scopes: Scopes | None = None, client_id: str = ""
    ) -> Grants:
        """What ``user`` may do in ``namespace``, with a token that says no more than ``scopes``.
        All who ask while one is held share it; MQTT clients of a user have their own if its
        patterns name them, and ask again when they change."""
        if client_id and not self._names_clients(user, namespace):
            client_id = ""
        key = (user, namespace, scopes, client_id)
        grants = self._grants.get(key)
        if grants is None:
            grants = Grants(
                user,
                namespace,
                lambda: self.generation,
                self._patterns,
                self._is_administrator,
                scopes,
                client_id,
            )
            self._grants[key] = grants
        return grants

    def _names_clients(self, user: str, namespace: str) -> bool:
        found = self._patterns(user, namespace)
        return any(
            has_placeholder(each, CLIENT) for each in (found.configure, found.write, found.read)
        )

    def _is_administrator(self, user: str) -> bool:
        record = self._users.get(user)
        return self.dev or (record is not None and ADMINISTRATOR in record.tags)

    def _patterns(
        self, user: str, namespace: str, scopes: Scopes | None = None
    ) -> PermissionRecord:
        """``scopes`` of a user without an account are all there is: nothing else narrows them."""
        has_account = scopes is None or scopes.has_account
        if has_account and not self.can_enter(user, namespace):
            return NOTHING
        is_free = self.dev or not has_account
        found = EVERYTHING if is_free else self._permissions[namespace, user]
        if namespace == SYSTEM_NAMESPACE:
            return PermissionRecord("", "", found.read)
        return found

    def allows(self, user: str, namespace: str, verb: str, name: str) -> bool:
        """Whether a user, as of now, may do something to a name. Nobody deleted may."""
        return self.grants(user, namespace).may(Verb(verb), name)

    def watch(self, watcher: Callable[[AccountChange], None]) -> None:
        """Have ``watcher`` told of every change: what somebody has no right to any more ends."""
        self._watchers.append(watcher)

    def when_stale(self, forget: Callable[[], None]) -> None:
        """Have it called when the generation goes up, for who does not look at that each time."""
        self._derived.append(forget)

    def login_stamp(self, name: str) -> int:
        """Another one once the password changed, or the user was deleted: what was let in with the
        former is to go."""
        return self._stamps.get(name, 0)

    # --- users ---

    def users(self) -> list[User]:
        return [_user(name, record) for name, record in sorted(self._users.items())]

    def user(self, name: str) -> User:
        return _user(name, self._user_record(name))

    def has_known_password(self) -> bool:
        """Whether ``guest`` is there, with the password that everybody knows. Slow."""
        record = self._users.get(GUEST)
        return record is not None and verify_password(record.password, password_bytes(GUEST))

    def has_user(self, name: str) -> bool:
        return name in self._users

    def add_user(
        self, name: str, password: Password | PasswordHash, tags: Iterable[str] = ()
    ) -> Lsn:
        check_user_name(name)
        if name in self._users:
            raise Conflict(f"user {name!r} already exists")
        return self._keep_user(name, UserRecord(_hashed(password), _tag_list(tags)))

    def update_user(
        self,
        name: str,
        password: Password | PasswordHash | None = None,
        tags: Iterable[str] | None = None,
    ) -> Lsn:
        """What is not given stays."""
        record = self._user_record(name)
        encoded = record.password if password is None else _hashed(password)
        kept = record.tags if tags is None else _tag_list(tags)
        lsn = self._keep_user(name, UserRecord(encoded, kept))
        if encoded != record.password:
            self._end_logins(name)
            self.tell(LoginChanged(name))
        if kept != record.tags:
            self.tell(TagsChanged(name))
        return lsn

    def _end_logins(self, name: str) -> None:
        self._stamps[name] = self.login_stamp(name) + 1

    def change_password(self, name: str, password: Password | PasswordHash) -> Lsn:
        return self.update_user(name, password=password)

    def set_tags(self, name: str, tags: Iterable[str]) -> Lsn:
        return self.update_user(name, tags=tags)

    def delete_user(self, name: str) -> Lsn:
        """With its permissions, in one step."""
        self._user_record(name)
        granted = [key for key in self._permissions if key[1] == name]
        lsn = self._change([(USERS, name, None), *_withdrawn(granted)])
        del self._users[name]
        self._end_logins(name)
        self._forget(granted)
        self.tell(UserDeleted(name))
        return lsn

    def _user_record(self, name: str) -> UserRecord:
        record = self._users.get(name)
        if record is None:
            raise NotFound(f"there is no user {name!r}")
        return record

    def _keep_user(self, name: str, record: UserRecord) -> Lsn:
        lsn = self._change([(USERS, name, _encode(record))])
        self._users[name] = record
        return lsn

    # --- permissions ---

    def permissions(self, namespace: str | None = None) -> list[Permission]:
        if namespace is not None:
            self._namespace_record(namespace)
        return [
            _permission(*key, record)
            for key, record in sorted(self._permissions.items())
            if namespace in (None, key[0])
        ]

    def permission(self, user: str, namespace: str) -> Permission:
        record = self._permissions.get((namespace, user))
        if record is None:
            raise _no_permission(user, namespace)
        return _permission(namespace, user, record)

    def has_permission(self, user: str, namespace: str) -> bool:
        return (namespace, user) in self._permissions

    def set_permission(
        self, user: str, namespace: str, configure: str, write: str, read: str
    ) -> Lsn:
        self._user_record(user)
        self._namespace_record(namespace)
        for pattern in (configure, write, read):
            check_pattern(pattern)
        if namespace == SYSTEM_NAMESPACE and (configure or write):
            raise BadRequest(
                f"in namespace {SYSTEM_NAMESPACE!r} nobody may configure or write anything",
                remedy="Leave these two patterns empty",
            )
        record = PermissionRecord(configure, write, read)
        lsn = self._change([(PERMISSIONS, _key(namespace, user), _encode(record))])
        self._permissions[namespace, user] = record
        self.tell(PermissionChanged(user, namespace))
        return lsn

    def clear_permission(self, user: str, namespace: str) -> Lsn:
        if (namespace, user) not in self._permissions:
            raise _no_permission(user, namespace)
        lsn = self._change(_withdrawn([(namespace, user)]))
        self._forget([(namespace, user)])
        self.tell(PermissionChanged(user, namespace))
        return lsn

    def _forget(self, granted: Iterable[tuple[str, str]]) -> None:
        for key in granted:
            del self._permissions[key]

    # --- namespaces ---

    def namespaces(self) -> list[Namespace]:
        return [self.namespace(name) for name in sorted(self._namespaces)]

    def namespace(self, name: str) -> Namespace:
        record = self._namespace_record(name)
        limits = {limit: getattr(record, limit) for limit in LIMITS}
        return Namespace(name, **limits, storage=self._storage(name))

    def limits(self, name: str) -> dict[str, int]:
        """The quotas that a namespace has."""
        record = self._namespace_record(name)
        found = ((limit, getattr(record, limit)) for limit in LIMITS)
        return {limit: value for limit, value in found if value is not None}

    def _storage(self, name: str) -> NamespaceStorage:
        kept = self._store.catalogue.get(NAMESPACE_STORAGE, name)
        return "disk" if kept is None else "memory"

    def has_namespace(self, name: str) -> bool:
        return name in self._namespaces

    def add_namespace(
        self,
        name: str,
        *,
        storage: NamespaceStorage = "disk",
        **limits: int | None,
    ) -> Lsn:
        """``storage`` is for good: no record moves between memory and disk."""
        check_namespace_name(name)
        if name == SYSTEM_NAMESPACE:
            raise Conflict(
                f"namespace {name!r} is the node's own", remedy="Set audit.topic = true to have it"
            )
        if name in self._namespaces:
            raise Conflict(f"namespace {name!r} already exists")
        in_memory: list[Change] = [(NAMESPACE_STORAGE, name, storage.encode())]
        record = NamespaceRecord(**limits)
        return self._keep_namespace(name, record, in_memory if storage == "memory" else [])

    def open_system_namespace(self) -> None:
        if not self.has_namespace(SYSTEM_NAMESPACE):
            self._keep_namespace(SYSTEM_NAMESPACE, NamespaceRecord())

    def require_storage(self, name: str, storage: NamespaceStorage) -> None:
        if self._storage(name) != storage:
            raise StorageIsFixed(
                f"namespace {name!r} keeps its records"
                f" {'in memory' if storage == 'disk' else 'on disk'}: that can't be changed"
            )

    def set_limits(self, name: str, limits: dict[str, int | None]) -> Lsn:
        """Those not named stay; ``None`` lifts one."""
        assert limits.keys() <= set(LIMITS)
        record = self._namespace_record(name)
        return self._keep_namespace(name, msgspec.structs.replace(record, **limits))

    def delete_namespace(self, name: str) -> Lsn:
        """With all permissions on it, in one step. What it holds is its watchers' to delete."""
        self._namespace_record(name)
        if name in (ROOT_NAMESPACE, SYSTEM_NAMESPACE):
            raise Conflict(f"the namespace {ROOT_NAMESPACE!r} can't be deleted")
        granted = [key for key in self._permissions if key[0] == name]
        gone = [(NAMESPACES, name, None), (NAMESPACE_STORAGE, name, None)]
        lsn = self._change([*gone, *_withdrawn(granted)])
        del self._namespaces[name]
        self._forget(granted)
        self.tell(NamespaceDeleted(name))
        return lsn

    def _namespace_record(self, name: str) -> NamespaceRecord:
        record = self._namespaces.get(name)
        if record is None:
            raise NotFound(f"there is no namespace {name!r}")
        return record

    def _keep_namespace(
        self, name: str, record: NamespaceRecord, with_it: Sequence[Change] = ()
    ) -> Lsn:
        for limit in LIMITS:
            check_limit(limit, getattr(record, limit))
        lsn = self._change([(NAMESPACES, name, _encode(record)), *with_it])
        self._namespaces[name] = record
        self.tell(LimitsChanged(name))
        return lsn

    # --- both ---

    def _change(self, changes: list[Change]) -> Lsn:
        lsn = self._store.change(changes)
        self.refresh()
        return lsn

    def tell(self, change: AccountChange) -> None:
        for watcher in self._watchers:
            watcher(change)


# Asked at each login, mostly of the same few.
@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether a peer's address is this machine's own; what is not an address is not."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    # A dual-stack socket shows IPv4 peers as ::ffff:127.0.0.1.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _hashed(password: Password | PasswordHash) -> str:
    return (password if isinstance(password, PasswordHash) else hash_password(password)).encoded


def _tag_list(tags: Iterable[str]) -> list[str]:
    unique = frozenset(tags)
    check_tags(unique)
    return sorted(unique)


def _key(namespace: str, user: str) -> str:
    return f"{namespace}\0{user}"


def _withdrawn(granted: Iterable[tuple[str, str]]) -> list[Change]:
    return [(PERMISSIONS, _key(*key), None) for key in granted]


def _no_permission(user: str, namespace: str) -> NotFound:
    return NotFound(f"user {user!r} has no permission on namespace {namespace!r}")


def _user(name: str, record: UserRecord) -> User:
    return User(name, frozenset(record.tags))


def _permission(namespace: str, user: str, record: PermissionRecord) -> Permission:
    return Permission(namespace, user, record.configure, record.write, record.read)
