"""Users, permissions and namespaces, for administrators; tokens, for their owners too.

``If-None-Match: *`` makes a PUT create or fail. A change is answered once it is durable, without a
body: what was made is what was asked for, and a password is not given back.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import NUMBER_MAX
from braidmq.api.endpoints import (
    Answer,
    Body,
    Call,
    operation,
    refuse_if_only_new,
)
from braidmq.api.paging import ListQuery, Page, page_of
from braidmq.api.problems import PreconditionFailed
from braidmq.api.requests import note
from braidmq.engine.errors import StorageIsFixed
from braidmq.engine.policy import Milliseconds
from braidmq.engine.quotas import Quotas
from braidmq.model.clock import Clock
from braidmq.model.errors import AccessRefused, BadRequest, Conflict, NotFound
from braidmq.model.ids import Lsn
from braidmq.security.accounts import LIMITS, Accounts
from braidmq.security.logins import Logins
from braidmq.security.records import Namespace, NamespaceStorage, Permission, User, scopes_of
from braidmq.security.rights import ADMINISTRATOR, MANAGEMENT, MONITORING, USER, owner
from braidmq.security.token_logins import require_account, require_own_login
from braidmq.security.tokens import Token, Tokens

Commit = Callable[[Lsn], Awaitable[None]]
"""Returns once an entry of the journal is durable, or raises StorageFailed."""


ENTERED = "those the caller may enter; with `monitoring` all"
OWN_TOKENS = "one's own tokens; an administrator anybody's"


class UserBody(Body, frozen=True):
    password: Annotated[str, Meta(description="A new user needs one")] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET


class PasswordBody(Body, frozen=True):
    password: str


class TagsBody(Body, frozen=True):
    tags: list[str]


class PermissionBody(Body, frozen=True):
    """Patterns of names, as in RabbitMQ; the empty one grants nothing."""

    configure: str
    write: str
    read: str


Limit = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


class LimitsBody(Body, frozen=True):
    """Null lifts a limit; one not given stays."""

    max_connections: Limit | UnsetType | None = UNSET
    max_queues: Limit | UnsetType | None = UNSET
    max_topics: Limit | UnsetType | None = UNSET
    max_channels: Limit | UnsetType | None = UNSET
    max_consumers: Limit | UnsetType | None = UNSET
    max_storage_bytes: Limit | UnsetType | None = UNSET
    max_messages_in_per_s: Limit | UnsetType | None = UNSET
    max_messages_out_per_s: Limit | UnsetType | None = UNSET
    max_retained_messages: Limit | UnsetType | None = UNSET
    max_transactions: Limit | UnsetType | None = UNSET

    def given(self) -> dict[str, int | None]:
        limits = {name: getattr(self, name) for name in LIMITS}
        return {name: value for name, value in limits.items() if not isinstance(value, UnsetType)}


class QuotaUsage(msgspec.Struct, frozen=True):
    quota: str
    limit: int
    used: int
    near: Annotated[bool, Meta(description="Whether 80 % of it or more is used")]


class NamespaceBody(LimitsBody, frozen=True):
    storage: (
        Annotated[
            NamespaceStorage,
            Meta(
                description="Where all records of the namespace are; `memory`: a restart leaves its"
                " topics, queues, bindings and subscriptions, and none of their messages. For good"
            ),
        ]
        | UnsetType
    ) = UNSET


class NewToken(Body, frozen=True):
    user: (
        Annotated[str, Meta(description="Whose; for another than oneself by administrators only")]
        | UnsetType
    ) = UNSET
    expires_in_ms: (
        Annotated[Milliseconds, Meta(description="Else it lives until it is revoked")] | UnsetType
    ) = UNSET
    description: str = ""
    name: Annotated[
        str, Meta(description="By which people know it; no two of a user have the same")
    ] = ""
    scopes: (
        Annotated[
            list[str],
            Meta(
                description="What it may of what its user may: `read:NAMESPACE/NAME`, `write:…`,"
                " `configure:…`, `tag:NAME`, with `*` for any characters and %2F for /. Without"
                " them all of it"
            ),
        ]
        | UnsetType
    ) = UNSET


class IssuedToken(msgspec.Struct, frozen=True):
    token: Annotated[str, Meta(description="The token itself: shown here and never again")]
    info: Token


class TokensQuery(ListQuery, frozen=True):
    user: Annotated[str, Meta(description="Only this user's")] | UnsetType = UNSET


class Admin:
    def __init__(
        self,
        accounts: Accounts,
        logins: Logins,
        tokens: Tokens,
        commit: Commit,
        clock: Clock,
        quotas: Quotas,
    ) -> None:
        self._accounts = accounts
        self._logins = logins
        self._tokens = tokens
        self._commit = commit
        self._clock = clock
        self._quotas = quotas

    # --- users ---

    @operation("GET", "/v1/users", right=ADMINISTRATOR, tag="users")
    async def list_users(self, call: Call, query: ListQuery) -> list[User] | Page:
        """List users, by name."""
        users = self._accounts.users()
        return Page(*await page_of(users, query, lambda each: (each.name,), tuple[str]))

    @operation("GET", "/v1/users/{name}", right=ADMINISTRATOR, tag="users", errors=(NotFound,))
    async def describe_user(self, call: Call, name: str) -> User:
        """Describe a user."""
        return self._accounts.user(name)

    @operation(
        "PUT",
        "/v1/users/{name}",
        right=ADMINISTRATOR,
        tag="users",
        statuses=(200, 201),
        errors=(BadRequest, PreconditionFailed),
        examples=({"password": "secret", "tags": ["administrator"]},),
    )
    async def put_user(self, call: Call, name: str, body: UserBody) -> Answer:
        """Make a user, or change one; what is not given stays."""
        given = body.password
        password = None if isinstance(given, UnsetType) else await self._logins.hash(given)
        tags = None if isinstance(body.tags, UnsetType) else body.tags
        note(tags=tags, password=None if password is None else "changed")
        # Nothing is awaited between the question and the change: the answer still holds.
        if self._accounts.has_user(name):
            refuse_if_only_new(call.request, f"user {name!r}")
            return await self._kept(self._accounts.update_user(name, password, tags), 200)
        if password is None:
            raise BadRequest(f"there is no user {name!r}, and a new one needs a password")
        return await self._kept(self._accounts.add_user(name, password, tags or ()), 201)

    @operation("PUT", "/v1/users/{name}/tags", right=ADMINISTRATOR, tag="users", errors=(NotFound,))
    async def put_tags(self, call: Call, name: str, body: TagsBody) -> None:
        """Set a user's tags; `administrator` may do everything here."""
        note(tags=body.tags)
        await self._commit(self._accounts.set_tags(name, body.tags))

    @operation(
        "PUT", "/v1/users/{name}/password", right=ADMINISTRATOR, tag="users", errors=(NotFound,)
    )
    async def put_password(self, call: Call, name: str, body: PasswordBody) -> None:
        """Set a user's password."""
        password = await self._logins.hash(body.password)
        await self._commit(self._accounts.change_password(name, password))

    @operation(
        "DELETE",
        "/v1/users/{name}",
        right=ADMINISTRATOR,
        tag="users",
        statuses=(204,),
        errors=(NotFound,),
    )
    async def delete_user(self, call: Call, name: str) -> None:
        """Delete a user, with its permissions and tokens; its connections are closed."""
        await self._commit(self._accounts.delete_user(name))

    # --- permissions ---

    @operation("GET", "/v1/permissions", right=ADMINISTRATOR, tag="users")
    async def list_permissions(self, call: Call, query: ListQuery) -> list[Permission] | Page:
        """List permissions on all namespaces, by namespace and user."""
        return await _permissions(self._accounts.permissions(), query)

    @operation(
        "GET",
        "/v1/permissions/{namespace}",
        right=ADMINISTRATOR,
        tag="users",
        errors=(NotFound,),
    )
    async def list_permissions_on_namespace(
        self, call: Call, namespace: str, query: ListQuery
    ) -> list[Permission] | Page:
        """List permissions on a namespace, by user."""
        return await _permissions(self._accounts.permissions(namespace), query)

    @operation(
        "GET",
        "/v1/permissions/{namespace}/{user}",
        right=ADMINISTRATOR,
        tag="users",
        errors=(NotFound,),
    )
    async def describe_permission(self, call: Call, namespace: str, user: str) -> Permission:
        """Describe what a user may do in a namespace."""
        return self._accounts.permission(user, namespace)

    @operation(
        "PUT",
        "/v1/permissions/{namespace}/{user}",
        right=ADMINISTRATOR,
        tag="users",
        statuses=(200, 201),
        errors=(NotFound, BadRequest),
        examples=({"configure": "", "write": "^orders$", "read": ".*"},),
    )
    async def put_permission(
        self, call: Call, namespace: str, user: str, body: PermissionBody
    ) -> Answer:
        """Say what a user may do in a namespace."""
        status = 200 if self._accounts.has_permission(user, namespace) else 201
        note(namespace=namespace, configure=body.configure, write=body.write, read=body.read)
        lsn = self._accounts.set_permission(user, namespace, body.configure, body.write, body.read)
        return await self._kept(lsn, status)

    @operation(
        "DELETE",
        "/v1/permissions/{namespace}/{user}",
        right=ADMINISTRATOR,
        tag="users",
        statuses=(204,),
        errors=(NotFound,),
    )
    async def delete_permission(self, call: Call, namespace: str, user: str) -> None:
        """Withdraw a user's permission on a namespace."""
        await self._commit(self._accounts.clear_permission(user, namespace))

    # --- namespaces ---

    @operation("GET", "/v1/namespaces", right=MANAGEMENT.noting(ENTERED), tag="namespaces")
    async def list_namespaces(self, call: Call, query: ListQuery) -> list[Namespace] | Page:
        """List namespaces, by name."""
        namespaces = [each for each in self._accounts.namespaces() if self._sees(call, each.name)]
        return Page(*await page_of(namespaces, query, lambda each: (each.name,), tuple[str]))

    @operation(
        "GET",
        "/v1/namespaces/{name}",
        right=MANAGEMENT.noting(ENTERED),
        tag="namespaces",
        errors=(NotFound,),
    )
    async def describe_namespace(self, call: Call, name: str) -> Namespace:
        """Describe a namespace."""
        if not self._sees(call, name):
            raise AccessRefused(f"user {call.user.name!r} has no permission on namespace {name!r}")
        return self._accounts.namespace(name)

    @operation(
        "PUT",
        "/v1/namespaces/{name}",
        right=ADMINISTRATOR,
        tag="namespaces",
        statuses=(200, 201),
        errors=(BadRequest, PreconditionFailed, StorageIsFixed),
        examples=({}, {"max_connections": 100}, {"storage": "memory"}),
    )
    async def put_namespace(self, call: Call, name: str, body: NamespaceBody) -> Answer:
        """Make a namespace, or change its limits. Its storage is for good."""
        limits = body.given()
        note(**{name: str(value) for name, value in limits.items()})
        if self._accounts.has_namespace(name):
            refuse_if_only_new(call.request, f"namespace {name!r}")
            if body.storage is not UNSET:
                self._accounts.require_storage(name, body.storage)
            return await self._kept(self._accounts.set_limits(name, limits), 200)
        storage = "disk" if body.storage is UNSET else body.storage
        return await self._kept(self._accounts.add_namespace(name, storage=storage, **limits), 201)

    @operation(
        "PUT",
        "/v1/namespaces/{name}/limits",
        right=ADMINISTRATOR,
        tag="namespaces",
        errors=(NotFound,),
    )
    async def put_limits(self, call: Call, name: str, body: LimitsBody) -> None:
        """Change the limits of a namespace."""
        note(**{name: str(value) for name, value in body.given().items()})
        await self._commit(self._accounts.set_limits(name, body.given()))

    @operation(
        "GET",
        "/v1/namespaces/{name}/quotas",
        right=MONITORING,
        tag="namespaces",
        errors=(NotFound,),
    )
    async def list_quotas(self, call: Call, name: str, query: ListQuery) -> list[QuotaUsage] | Page:
        """List the quotas that a namespace has, by name, with what is used of each."""
        self._accounts.namespace(name)
        found = [
            QuotaUsage(each.quota, each.limit, each.used, each.is_near)
            for each in self._quotas.usage(name)
        ]
        return Page(*await page_of(found, query, lambda each: (each.quota,), tuple[str]))

    @operation(
        "DELETE",
        "/v1/namespaces/{name}",
        right=ADMINISTRATOR,
        tag="namespaces",
        statuses=(204,),
        errors=(NotFound, Conflict),
    )
    async def delete_namespace(self, call: Call, name: str) -> None:
        """Delete a namespace, with all that is in it."""
        await self._commit(self._accounts.delete_namespace(name))

    # --- tokens ---

    @operation("GET", "/v1/tokens", right=USER.noting(OWN_TOKENS), tag="users")
    async def list_tokens(self, call: Call, query: TokensQuery) -> list[Token] | Page:
        """List tokens, by id: one's own, or for administrators anybody's."""
        user = None if call.user.is_administrator else call.user.name
        if query.user is not UNSET:
            self._require_own(call, query.user)
            user = query.user
        tokens = self._tokens.tokens(user)
        return Page(*await page_of(tokens, query, lambda each: (each.id,), tuple[str]))

    @operation(
        "POST",
        "/v1/tokens",
        right=USER.noting(OWN_TOKENS),
        tag="users",
        statuses=(201,),
        errors=(NotFound, BadRequest, Conflict),
        examples=(
            {"name": "build server", "expires_in_ms": 2_592_000_000},
            {"name": "thermometer", "scopes": ["write:%2F/sensors*"]},
        ),
    )
    async def issue_token(self, call: Call, body: NewToken) -> IssuedToken:
        """Issue a token, for `Authorization: Bearer`, and as password in AMQP and MQTT.

        It may do what its user may do and its scopes allow, and ends with its user.
        """
        require_own_login(call.user)
        if body.user is UNSET:
            require_account(call.user, "whose token it could be")
        user = call.user.name if body.user is UNSET else body.user
        self._require_own(call, user)
        now_ms = self._clock.wall_ms()
        expires_ms = None if body.expires_in_ms is UNSET else now_ms + body.expires_in_ms
        scopes = None if isinstance(body.scopes, UnsetType) else body.scopes
        info, token, lsn = self._tokens.issue(
            user, now_ms, expires_ms, body.description, name=body.name, scopes=scopes
        )
        note(token=info.id, token_of=user)
        await self._commit(lsn)
        return IssuedToken(token, info)

    @operation(
        "DELETE",
        "/v1/tokens/{token_id}",
        right=owner("token", namespace=""),
        tag="users",
        statuses=(204,),
        errors=(NotFound,),
    )
    async def revoke_token(self, call: Call, token_id: str) -> None:
        """Revoke a token: what was opened with it is closed."""
        await self._commit(self._tokens.revoke(token_id))

    def _sees(self, call: Call, namespace: str) -> bool:
        may_enter = self._accounts.can_enter(call.user.name, namespace, scopes_of(call.user))
        return call.user.may_monitor or may_enter

    def _require_own(self, call: Call, user: str) -> None:
        if user != call.user.name and not call.user.is_administrator:
            raise AccessRefused(f"user {call.user.name!r} may manage only its own tokens")

    async def _kept(self, lsn: Lsn, status: int) -> Answer:
        await self._commit(lsn)
        return Answer(None, status)


async def _permissions(found: list[Permission], query: ListQuery) -> Page:
    return Page(
        *await page_of(found, query, lambda each: (each.namespace, each.user), tuple[str, str])
    )
