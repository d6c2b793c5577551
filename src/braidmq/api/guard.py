"""Whether a request may be carried out: its operation's right, and nothing else, decides.

Path and query are checked before a byte of the body is read, names in the body before the operation
is called. There is no other way to an operation, and every operation has a right
(``endpoints.operation`` has no default for it).
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from starlette.requests import HTTPConnection

from braidmq.api.access import Access, Caller
from braidmq.api.context import ApiContext
from braidmq.api.endpoints import Call
from braidmq.api.problems import NotAdministrator
from braidmq.api.resources.node import UnknownConnection
from braidmq.engine import receipts
from braidmq.engine.transactions.errors import NotYourTransaction, UnknownTransaction
from braidmq.gateways.mqtt.lists import MqttLists
from braidmq.model.errors import AccessRefused, BraidError, NotFound
from braidmq.runtime.exclusive_queues import require_shared
from braidmq.security.permissions import Grants
from braidmq.security.records import MANAGEMENT, MONITORING
from braidmq.security.rights import Need, Right, Verb, Who
from braidmq.security.token_logins import require_own_login
from braidmq.security.tokens import Tokens

Arguments = dict[str, Any]
IN_BODY = "body."


class Owned(NamedTuple):
    find: Callable[[str, Arguments], str | None]
    """Whose it is, by namespace and what the request says; None for what is not there."""
    refused: Callable[[str], BraidError] = AccessRefused


class MetricsAccess(Protocol):
    """Who may read /metrics without a log-in."""

    public: bool
    local: bool


class Guard:
    def __init__(
        self,
        context: ApiContext,
        tokens: Tokens,
        metrics: MetricsAccess,
        mqtt: MqttLists | None = None,
    ) -> None:
        self._context = context
        self._access: Access = context.access
        self._tokens = tokens
        self._mqtt = mqtt
        self._metrics = metrics
        self.owners: dict[str, Owned] = {
            "lease": Owned(self._lease),
            "pipeline": Owned(self._pipeline),
            "member": Owned(self._member),
            "transaction": Owned(self._transaction, NotYourTransaction),
            "application": Owned(self._application, NotYourTransaction),
            "token": Owned(self._token),
            "session": Owned(self._session),
            # Others' connections are not there, as far as one is told.
            "connection": Owned(self._connection, UnknownConnection),
        }

    async def caller(self, request: HTTPConnection, right: Right) -> Caller:
        """Raises NotAuthenticated, or AccessRefused for who may not ask at all."""
        who = right.who
        open_to_all = who is Who.LOCAL and (
            self._metrics.public or (self._metrics.local and self._access.is_local(request))
        )
        if who is Who.ANYONE or open_to_all:
            return self._access.nobody()
        caller = await self._access.authenticate(request)
        user = caller.user
        if who is Who.ADMINISTRATOR and not user.is_administrator:
            raise NotAdministrator(f"user {user.name!r} is not an administrator")
        if who is Who.MANAGEMENT and not user.may_manage:
            raise AccessRefused(f"user {user.name!r} does not have the tag {MANAGEMENT}")
        if who in (Who.LOCAL, Who.MONITORING) and not user.may_monitor:
            raise AccessRefused(f"user {user.name!r} does not have the tag {MONITORING}")
        return caller

    def admit(self, right: Right, caller: Caller, arguments: Arguments) -> Grants | None:
        """What the path and the query name. The grants are those of the namespace, if it has to
        be entered."""
        grants, namespace = None, ""
        if right.namespace:
            (namespace,) = _names(right.namespace, arguments)
            grants = self._access.enter(caller.user, namespace)
        self._require(right, grants, arguments, in_body=False)
        if right.owner:
            self._require_owner(right, caller, namespace, arguments)
        return grants

    def admit_body(self, right: Right, call: Call, arguments: Arguments) -> None:
        self._require(right, call.known_grants, arguments, in_body=True)

    def _require(
        self, right: Right, grants: Grants | None, arguments: Arguments, *, in_body: bool
    ) -> None:
        needs = [each for each in right.needs if each.of.startswith(IN_BODY) == in_body]
        if not needs:
            return
        assert grants is not None, "patterns are a namespace's"
        if right.any_of:
            if not any(_is_met(each, grants, arguments) for each in needs):
                named = needs[0].of
                name = _names(named, arguments)[0] if named else None
                raise grants.refusal_of_all([each.verb for each in needs], name)
            return
        for each in needs:
            _meet(each, grants, arguments)
            if each.verb is not Verb.WRITE and each.of:
                for name in _names(each.of, arguments):
                    topic = self._context.engine().state.topics.get((grants.namespace, name))
                    require_shared(topic)

    def _require_owner(
        self, right: Right, caller: Caller, namespace: str, arguments: Arguments
    ) -> None:
        owned = self.owners[right.owner]
        found = owned.find(namespace, arguments)
        user = caller.user
        if right.owner == "token":
            require_own_login(user)
        if found is not None and found != user.name and not user.is_administrator:
            name = arguments.get(right.owner) or arguments.get("token_id", "")
            raise owned.refused(
                f"{right.owner} {name!r} belongs to another user"
                if owned.refused is not UnknownConnection
                else f"there is no connection {name!r}"
            )

    # --- whose things are ---

    def _lease(self, namespace: str, arguments: Arguments) -> str | None:
        return self._context.engine().leases.owner_of(namespace, arguments["lease"])

    def _pipeline(self, namespace: str, arguments: Arguments) -> str | None:
        return self._context.node_loop.pipelines.owner_of(namespace, arguments["pipeline"])

    def _member(self, namespace: str, arguments: Arguments) -> str | None:
        groups = self._context.engine().groups
        return groups.owner_of(namespace, arguments["group"], arguments["member"])

    def _transaction(self, namespace: str, arguments: Arguments) -> str | None:
        try:
            return self._context.engine().transactions.owner_of(namespace, arguments["transaction"])
        except UnknownTransaction:
            return None

    def _application(self, namespace: str, arguments: Arguments) -> str | None:
        transactions = self._context.engine().transactions
        return transactions.application_owner(namespace, arguments["application"])

    def _session(self, namespace: str, arguments: Arguments) -> str | None:
        found = None if self._mqtt is None else self._mqtt.find(namespace, arguments["session"])
        return None if found is None else found.user

    def _token(self, namespace: str, arguments: Arguments) -> str | None:
        try:
            return self._tokens.token(arguments["token_id"]).user
        except NotFound:
            return None

    def _connection(self, namespace: str, arguments: Arguments) -> str | None:
        session = self._context.node_loop.sessions.get(arguments["connection"])
        return None if session is None else session.describe().user


def _is_met(need: Need, grants: Grants, arguments: Arguments) -> bool:
    if not need.of:
        return grants.may_some(need.verb)
    return all(grants.may(need.verb, name) for name in _names(need.of, arguments))


def _meet(need: Need, grants: Grants, arguments: Arguments) -> None:
    """Raises AccessRefused."""
    if not need.of:
        grants.need_some(need.verb)
        return
    for name in _names(need.of, arguments):
        grants.need(need.verb, name)


def _names(place: str, arguments: Arguments) -> list[str]:
    """What a request says at a place such as ``body.positions.topic``."""
    first, *rest = place.split(".")
    found: Iterable[Any] = [arguments[first]]
    for step in rest:
        found = [_at(each, step) for each in found]
        found = [one for each in found for one in (each if isinstance(each, list) else [each])]
    return list(dict.fromkeys(found))


def _at(value: Any, step: str) -> Any:
    if isinstance(value, str):
        # A receipt is a text with the name of its topic in it.
        return getattr(receipts.parse(value), step)
    return getattr(value, step)
