from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from braidmq.model.errors import (
    AccessRefused,
    BadRequest,
    BraidError,
    Conflict,
    Kind,
    NotAuthenticated,
    NotFound,
)
from braidmq.security import accounts as accounts_module
from braidmq.security.accounts import (
    AccountChange,
    Accounts,
    LimitsChanged,
    NamespaceDeleted,
    UserDeleted,
    is_loopback,
)
from braidmq.security.passwords import REMEMBERED_MS, Password, PasswordHash, verify_password
from braidmq.security.records import Namespace, Permission, User
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.testing.faulty_disk import FaultyDisk, LoseAll

SMALL = StorageSettings(journal_file_bytes=1 << 20)
HASH = PasswordHash("a hash nobody verifies in this test")
NOW = 1_700_000_000_000


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every password that costs an Argon2."""
    seen: list[bytes] = []

    def counted(encoded: str, secret: bytes) -> bool:
        seen.append(secret)
        return verify_password(encoded, secret)

    monkeypatch.setattr(accounts_module, "verify_password", counted)
    return seen


def authenticate(
    accounts: Accounts, name: str, password: Password, now_ms: int, loopback: bool
) -> User:
    attempt = accounts.begin(name, password, now_ms, loopback)
    if attempt.outcome is None:
        attempt.outcome = attempt.verify()
    return accounts.finish(attempt, now_ms)


def refusal(call: Callable[[], object]) -> AccessRefused:
    with pytest.raises(AccessRefused) as caught:
        call()
    return caught.value


# --- the first start ---


def test_a_new_node_has_guest_and_the_root_namespace(accounts: Accounts) -> None:
    assert accounts.users() == [User("guest", frozenset({"administrator"}))]
    assert accounts.namespaces() == [Namespace("/")]
    assert accounts.permissions() == [Permission("/", "guest", ".*", ".*", ".*")]
    assert accounts.can_enter("guest", "/")
    assert accounts.grants("guest", "/").may_write("")


def test_guest_comes_from_this_machine_only(accounts: Accounts) -> None:
    assert authenticate(accounts, "guest", "guest", NOW, loopback=True).is_administrator
    error = refusal(lambda: authenticate(accounts, "guest", "guest", NOW, loopback=False))
    assert error.kind is Kind.FORBIDDEN
    # With a wrong password a stranger does not even learn that.
    error = refusal(lambda: authenticate(accounts, "guest", "wrong", NOW, loopback=False))
    assert error.kind is Kind.UNAUTHENTICATED


def test_a_deleted_guest_stays_deleted() -> None:
    disk = FaultyDisk()
    store = Store.open(disk, SMALL)
    Accounts(store).delete_user("guest")
    store.commit()
    again = Accounts(Store.open(disk.crash(LoseAll()), SMALL))
    assert again.users() == []
    assert not again.can_enter("guest", "/")


def test_who_is_held_to_this_machine_can_be_chosen(store: Store) -> None:
    accounts = Accounts(store, loopback_only=frozenset())
    assert authenticate(accounts, "guest", "guest", NOW, loopback=False).name == "guest"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("localhost", False),
        ("", False),
    ],
)
def test_loopback_addresses(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# --- logging in ---


def test_a_fleet_costs_one_argon2(accounts: Accounts, verifications: list[bytes]) -> None:
    accounts.add_user("ann", "secret", ["monitoring"])
    for each in range(1000):
        user = authenticate(accounts, "ann", "secret", NOW + each, loopback=False)
        assert user == User("ann", frozenset({"monitoring"}))
    assert verifications == [b"secret"]
    authenticate(accounts, "ann", b"secret", NOW + REMEMBERED_MS, loopback=False)
    assert len(verifications) == 2


def test_a_wrong_password_repeated_costs_one_too(
    accounts: Accounts, verifications: list[bytes]
) -> None:
    for _ in range(100):
        with pytest.raises(NotAuthenticated):
            authenticate(accounts, "guest", "wrong", NOW, loopback=True)
    assert len(verifications) == 1


def test_an_unknown_user_costs_as_much_and_hears_the_same(
    accounts: Accounts, verifications: list[bytes]
) -> None:
    unknown = refusal(lambda: authenticate(accounts, "nobody", "wrong", NOW, loopback=True))
    known = refusal(lambda: authenticate(accounts, "guest", "wrong", NOW, loopback=True))
    assert str(unknown) == str(known)
    assert len(verifications) == 2


@pytest.mark.parametrize("password", ["", b"", "x" * 100_000, "\ud800", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["guest", "nobody", "", "\ud800", "a\0b"])
def test_strange_credentials_are_wrong_ones(
    accounts: Accounts, name: str, password: str | bytes
) -> None:
    with pytest.raises(NotAuthenticated):
        authenticate(accounts, name, password, NOW, loopback=True)


def test_a_changed_password_counts_at_once(accounts: Accounts) -> None:
    accounts.add_user("ann", "old")
    authenticate(accounts, "ann", "old", NOW, loopback=False)
    refusal(lambda: authenticate(accounts, "ann", "new", NOW, loopback=False))
    accounts.change_password("ann", "new")
    refusal(lambda: authenticate(accounts, "ann", "old", NOW, loopback=False))
    authenticate(accounts, "ann", "new", NOW, loopback=False)


def test_a_deleted_user_is_out_at_once_and_its_successor_needs_the_new_password(
    accounts: Accounts,
) -> None:
    accounts.add_user("ann", "old")
    authenticate(accounts, "ann", "old", NOW, loopback=False)
    accounts.delete_user("ann")
    refusal(lambda: authenticate(accounts, "ann", "old", NOW, loopback=False))
    accounts.add_user("ann", "new")
    refusal(lambda: authenticate(accounts, "ann", "old", NOW, loopback=False))


@pytest.mark.parametrize("change", ["change_password", "delete_user"])
def test_a_login_that_a_change_overtakes_is_refused(accounts: Accounts, change: str) -> None:
    accounts.add_user("ann", "old")
    attempt = accounts.begin("ann", "old", NOW, loopback=True)
    attempt.outcome = attempt.verify()
    assert attempt.outcome
    getattr(accounts, change)(*(("ann", "new") if change == "change_password" else ("ann",)))
    with pytest.raises(NotAuthenticated):
        accounts.finish(attempt, NOW)


def test_dev_lets_anyone_in(store: Store, verifications: list[bytes]) -> None:
    accounts = Accounts(store, dev=True)
    user = authenticate(accounts, "whoever", "", NOW, loopback=False)
    assert user == User("whoever", frozenset({"administrator"}))
    assert accounts.can_enter("whoever", "/")
    assert not accounts.can_enter("whoever", "no-such")
    assert accounts.grants("whoever", "/").may_configure("anything")
    assert not accounts.grants("whoever", "no-such").may_configure("anything")
    assert verifications == []
    assert not Accounts(store).has_user("whoever")


# --- changing ---


def test_nothing_is_granted_by_default(accounts: Accounts) -> None:
    accounts.add_user("ann", HASH, ["administrator"])
    assert not accounts.can_enter("ann", "/")
    grants = accounts.grants("ann", "/")
    assert not grants.may_configure("q")
    assert not grants.may_write("")
    assert not grants.may_read("q")
    assert not accounts.grants("nobody", "nowhere").may_read("q")


def test_held_grants_follow_every_change(accounts: Accounts) -> None:
    accounts.add_user("ann", HASH)
    accounts.add_namespace("shop")
    grants = accounts.grants("ann", "shop")
    assert not grants.may_read("orders")
    accounts.set_permission("ann", "shop", "", "", "^orders$")
    assert grants.may_read("orders")
    assert not grants.may_write("orders")
    accounts.set_permission("ann", "shop", "", ".*", "")
    assert not grants.may_read("orders")
    assert grants.may_write("orders")
    accounts.clear_permission("ann", "shop")
    assert not grants.may_write("orders")
    accounts.set_permission("ann", "shop", "", ".*", "")
    accounts.delete_namespace("shop")
    assert not grants.may_write("orders")
    accounts.add_namespace("shop")
    assert not grants.may_write("orders")
    accounts.set_permission("ann", "shop", "", ".*", "")
    accounts.delete_user("ann")
    assert not grants.may_write("orders")
    accounts.add_user("ann", HASH)
    assert not grants.may_write("orders")


def test_connections_of_a_user_share_their_answers(accounts: Accounts) -> None:
    held = accounts.grants("guest", "/")
    assert accounts.grants("guest", "/") is held
    del held
    assert not accounts._grants


def test_clearing_a_pattern_still_lets_one_enter(accounts: Accounts) -> None:
    accounts.set_permission("guest", "/", "", "", "")
    assert accounts.can_enter("guest", "/")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda a: a.add_user("guest", HASH), Conflict),
        (lambda a: a.add_user("", HASH), BadRequest),
        (lambda a: a.add_user("a:b", HASH), BadRequest),
        (lambda a: a.add_user("a\0b", HASH), BadRequest),
        (lambda a: a.add_user("é" * 128, HASH), BadRequest),
        (lambda a: a.add_user("\ud800", HASH), BadRequest),
        (lambda a: a.add_user("ann", ""), BadRequest),
        (lambda a: a.add_user("ann", HASH, ["a,b"]), BadRequest),
        (lambda a: a.add_user("ann", HASH, map(str, range(33))), BadRequest),
        (lambda a: a.change_password("ann", HASH), NotFound),
        (lambda a: a.change_password("guest", ""), BadRequest),
        (lambda a: a.set_tags("ann", []), NotFound),
        (lambda a: a.set_tags("guest", [""]), BadRequest),
        (lambda a: a.delete_user("ann"), NotFound),
        (lambda a: a.user("ann"), NotFound),
        (lambda a: a.set_permission("ann", "/", "", "", ""), NotFound),
        (lambda a: a.set_permission("guest", "shop", "", "", ""), NotFound),
        (lambda a: a.set_permission("guest", "/", "(", "", ""), BadRequest),
        (lambda a: a.clear_permission("ann", "/"), NotFound),
        (lambda a: a.permission("ann", "/"), NotFound),
        (lambda a: a.permissions("shop"), NotFound),
        (lambda a: a.add_namespace("/"), Conflict),
        (lambda a: a.add_namespace("a\nb"), BadRequest),
        (lambda a: a.add_namespace("shop", max_queues=-1), BadRequest),
        (lambda a: a.set_limits("/", {"max_queues": 2**31}), BadRequest),
        (lambda a: a.set_limits("shop", {"max_queues": 1}), NotFound),
        (lambda a: a.delete_namespace("/"), Conflict),
        (lambda a: a.delete_namespace("shop"), NotFound),
        (lambda a: a.namespace("shop"), NotFound),
    ],
)
def test_a_mistake_is_named_and_changes_nothing(
    accounts: Accounts,
    store: Store,
    change: Callable[[Accounts], object],
    error: type[BraidError],
) -> None:
    before = (accounts.generation, store.catalogue.dump(), store.journal.next_lsn)
    with pytest.raises(error):
        change(accounts)
    assert (accounts.generation, store.catalogue.dump(), store.journal.next_lsn) == before


def test_watchers_hear_of_what_was_deleted(accounts: Accounts) -> None:
    heard: list[AccountChange] = []
    accounts.watch(heard.append)
    accounts.add_user("ann", HASH)
    accounts.add_namespace("shop")
    accounts.delete_namespace("shop")
    accounts.delete_user("ann")
    assert heard == [LimitsChanged("shop"), NamespaceDeleted("shop"), UserDeleted("ann")]


def test_limits(accounts: Accounts) -> None:
    accounts.add_namespace("shop", max_connections=10)
    accounts.set_limits("shop", {"max_queues": 0})
    assert accounts.namespace("shop") == Namespace("shop", 10, 0)
    accounts.set_limits("shop", {"max_connections": None})
    assert accounts.namespace("shop") == Namespace("shop", None, 0)


# --- against a model, through power losses ---

USERS = st.sampled_from(["ann", "bob", "guest", "a/b"])
NAMESPACES = st.sampled_from(["/", "shop", "a/b"])
PATTERNS = st.sampled_from(["", ".*", "^q", "("])


class AccountsMachine(RuleBasedStateMachine):
    """Every change is committed before the next; a power loss may come between any two."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultyDisk()
        self.users: dict[str, frozenset[str]] = {"guest": frozenset({"administrator"})}
        self.namespaces: dict[str, int | None] = {"/": None}
        self.permissions: dict[tuple[str, str], tuple[str, str, str]] = {
            ("/", "guest"): (".*", ".*", ".*")
        }
        self.open()
        self.store.commit()

    def open(self) -> None:
        self.store = Store.open(self.disk, SMALL)
        self.accounts = Accounts(self.store)

    def attempt(self, possible: bool, change: Callable[[], object]) -> bool:
        if possible:
            change()
            self.store.commit()
        else:
            with pytest.raises((BadRequest, Conflict, NotFound)):
                change()
        return possible

    @rule(name=USERS, tags=st.frozensets(st.sampled_from(["administrator", "monitoring"])))
    def add_user(self, name: str, tags: frozenset[str]) -> None:
        absent = name not in self.users
        if self.attempt(absent, lambda: self.accounts.add_user(name, HASH, tags)):
            self.users[name] = tags

    @rule(name=USERS, tags=st.frozensets(st.sampled_from(["administrator", "x"])))
    def set_tags(self, name: str, tags: frozenset[str]) -> None:
        if self.attempt(name in self.users, lambda: self.accounts.set_tags(name, tags)):
            self.users[name] = tags

    @rule(name=USERS)
    def delete_user(self, name: str) -> None:
        if self.attempt(name in self.users, lambda: self.accounts.delete_user(name)):
            del self.users[name]
            self.permissions = {k: v for k, v in self.permissions.items() if k[1] != name}

    @rule(name=NAMESPACES, limit=st.none() | st.integers(0, 9))
    def add_namespace(self, name: str, limit: int | None) -> None:
        absent = name not in self.namespaces
        if self.attempt(absent, lambda: self.accounts.add_namespace(name, max_queues=limit)):
            self.namespaces[name] = limit

    @rule(name=NAMESPACES)
    def delete_namespace(self, name: str) -> None:
        possible = name in self.namespaces and name != "/"
        if self.attempt(possible, lambda: self.accounts.delete_namespace(name)):
            del self.namespaces[name]
            self.permissions = {k: v for k, v in self.permissions.items() if k[0] != name}

    @rule(user=USERS, namespace=NAMESPACES, patterns=st.tuples(PATTERNS, PATTERNS, PATTERNS))
    def set_permission(self, user: str, namespace: str, patterns: tuple[str, str, str]) -> None:
        there = user in self.users and namespace in self.namespaces
        possible = there and "(" not in patterns
        change = lambda: self.accounts.set_permission(user, namespace, *patterns)  # noqa: E731
        if self.attempt(possible, change):
            self.permissions[namespace, user] = patterns

    @rule(user=USERS, namespace=NAMESPACES)
    def clear_permission(self, user: str, namespace: str) -> None:
        granted = (namespace, user) in self.permissions
        if self.attempt(granted, lambda: self.accounts.clear_permission(user, namespace)):
            del self.permissions[namespace, user]

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule()
    def lose_power(self) -> None:
        self.disk = self.disk.crash(LoseAll())
        self.open()

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        accounts = self.accounts
        assert {user.name: user.tags for user in accounts.users()} == self.users
        assert {n.name: n.max_queues for n in accounts.namespaces()} == self.namespaces
        listed = {(p.namespace, p.user): p for p in accounts.permissions()}
        assert listed.keys() == self.permissions.keys()
        for user in ("ann", "bob", "guest", "a/b", "nobody"):
            for namespace in ("/", "shop", "a/b"):
                patterns = self.permissions.get((namespace, user))
                assert accounts.can_enter(user, namespace) is (patterns is not None)
                grants = accounts.grants(user, namespace)
                got = (grants.may_configure("q"), grants.may_write("q"), grants.may_read("q"))
                assert got == tuple(map(bool, patterns or ("", "", "")))


TestAccountsMachine = AccountsMachine.TestCase
TestAccountsMachine.settings = settings(
    max_examples=30,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_whoever_remembers_what_it_derived_is_told_of_every_change() -> None:
    accounts = Accounts(Store.open(FaultyDisk()))
    told: list[int] = []
    accounts.when_stale(lambda: told.append(accounts.generation))
    accounts.add_namespace("shop")
    accounts.set_limits("shop", {"max_queues": 5})
    accounts.delete_namespace("shop")
    assert told == [accounts.generation - 2, accounts.generation - 1, accounts.generation]
