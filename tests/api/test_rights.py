"""Every operation, as every kind of user: what the table of rights says is what happens.

What is expected is worked out here from each operation's ``Right`` and from what a kind of user
has, not by the code that enforces it. A request that is denied must have changed nothing: not an
entry was written to the journal.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from braidmq.api.assembly import RESOURCES, make_api
from braidmq.api.endpoints import Operation, names_in, operations_of
from braidmq.api.resources.health import Health
from braidmq.engine.engine import Engine
from braidmq.gateways.mqtt.lists import MqttFilter, MqttLists, MqttSessionInfo
from braidmq.metrics.collector import Metrics
from braidmq.model.clock import SystemClock
from braidmq.net.web_origins import WebCallers
from braidmq.record.batch import Record, RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.sessions import ChannelInfo, SessionInfo
from braidmq.security.accounts import Accounts
from braidmq.security.jwt_keys import keys_from
from braidmq.security.jwt_settings import JwtSettings
from braidmq.security.logins import Logins
from braidmq.security.passwords import hash_password
from braidmq.security.rights import Right, Verb, Who
from braidmq.security.token_logins import TokenLogins
from braidmq.security.tokens import Tokens
from braidmq.storage.disk import MemoryDisk
from braidmq.testing.issuer import AUDIENCE, ISSUER, Issuer

PASSWORD = "secret"
HASH = hash_password(PASSWORD)
EVERY = frozenset(Verb)
OPERATIONS = {each.name: each for resource in RESOURCES for each in operations_of(resource)}


@dataclass(frozen=True)
class Kind:
    """A kind of user. All requests name things that begin with `target`."""

    name: str
    verbs: frozenset[Verb] = frozenset()
    """What it may do to what is named so."""
    elsewhere: frozenset[Verb] = frozenset()
    """What it may do to other names."""
    enters: bool = True
    tags: tuple[str, ...] = ()
    owns: bool = False
    known: bool = True
    token: str = ""
    """Logs in with one: `jwt`, or `own` of an account that may do everything."""
    lasts_s: int = 600

    @property
    def is_narrowed(self) -> bool:
        """It logged in with a token that has scopes, and may not make others."""
        return bool(self.token) and "administrator" not in self.tags

    def scopes(self) -> list[str]:
        namespace = "%2F" if self.enters else "elsewhere"
        found = [f"{verb}:{namespace}/target*" for verb in sorted(self.verbs)]
        found += [
            f"{verb}:{namespace}/{name}*"
            for verb in sorted(self.elsewhere)
            for name in ("unrelated", "amq")
        ]
        return found + [f"tag:{each}" for each in self.tags]


KINDS = (
    Kind("anonymous", known=False),
    Kind("with-a-wrong-password", EVERY, EVERY, known=False),
    Kind("of-another-namespace", enters=False),
    Kind("without-patterns"),
    Kind("with-other-names", elsewhere=EVERY),
    Kind("reader", frozenset({Verb.READ})),
    Kind("writer", frozenset({Verb.WRITE})),
    Kind("configurer", frozenset({Verb.CONFIGURE})),
    Kind("with-every-pattern", EVERY, EVERY),
    Kind("management", tags=("management",)),
    Kind("management-elsewhere", tags=("management",), enters=False),
    Kind("with-a-tag-of-its-own", EVERY, EVERY, tags=("sales",)),
    Kind("monitoring", tags=("monitoring",), enters=False),
    Kind("administrator", EVERY, EVERY, tags=("administrator",)),
    Kind("owner", EVERY, EVERY, owns=True),
)
OWNER = KINDS[-1]
TOKEN_KINDS = tuple(
    Kind(f"{token}-{name}", token=token, **fields)
    for token in ("jwt", "own")
    for name, fields in dict[str, dict[str, Any]](
        reader={"verbs": frozenset({Verb.READ})},
        writer={"verbs": frozenset({Verb.WRITE})},
        configurer={"verbs": frozenset({Verb.CONFIGURE})},
        with_other_names={"elsewhere": EVERY},
        with_every_name={"verbs": EVERY, "elsewhere": EVERY},
        monitoring={"tags": ("monitoring",), "enters": False},
        administrator={"verbs": EVERY, "elsewhere": EVERY, "tags": ("administrator",)},
        of_another_namespace={"verbs": EVERY, "enters": False},
        that_is_over={"verbs": EVERY, "elsewhere": EVERY, "known": False, "lasts_s": -60},
    ).items()
)
READS_NAMED = {"describe_group", "delete_group", "heartbeat", "sync", "poll", "commit"}
"""What they read is known only once the group is found."""
NEEDS_AN_ACCOUNT = {"put_schedule", "issue_token"}
"""What goes on in its maker's name once the token is over."""
OF_NOBODY = {"describe_namespace"}
"""Of a namespace that nobody may enter: those who see all are left. tests/rights/test_roles.py has
the others."""
NOT_EVEN_ADMINISTRATORS = {"keep_transaction"}


def expected(operation: Operation, kind: Kind) -> bool:
    right = operation.right
    if right.who in (Who.ANYONE, Who.LOCAL):  # requests come from this machine
        return True
    if not kind.known or not is_who(right.who, kind):
        return False
    if right.namespace and not kind.enters:
        return False
    if kind.is_narrowed and operation.name == "issue_token":
        return False
    if kind.token == "jwt" and operation.name in NEEDS_AN_ACCOUNT:
        return False
    if operation.name in READS_NAMED and Verb.READ not in kind.verbs:
        return False
    if operation.name in OF_NOBODY and {"monitoring", "administrator"}.isdisjoint(kind.tags):
        return False
    if right.owner and not kind.owns:
        administrator = "administrator" in kind.tags
        return administrator and operation.name not in NOT_EVEN_ADMINISTRATORS
    return has_patterns(right, kind)


def is_who(who: Who, kind: Kind) -> bool:
    if who is Who.ADMINISTRATOR:
        return "administrator" in kind.tags
    if who is Who.MONITORING:
        return not {"monitoring", "administrator"}.isdisjoint(kind.tags)
    if who is Who.MANAGEMENT:
        return not {"management", "monitoring", "administrator"}.isdisjoint(kind.tags)
    return True


def has_patterns(right: Right, kind: Kind) -> bool:
    met = [
        each.verb in (kind.verbs if each.of else kind.verbs | kind.elsewhere)
        for each in right.needs
    ]
    return any(met) if right.any_of else all(met)


# --- the world they act in ---


class Connection:
    """Stands for somebody's AMQP connection."""

    is_traced = False

    def __init__(self, session_id: str) -> None:
        self.id = session_id

    def describe(self) -> SessionInfo:
        return SessionInfo(self.id, "amqp", OWNER.name, "/", "peer", 0, "", 1, False)

    def describe_channels(self) -> list[ChannelInfo]:
        return []

    def end(self, reason: str) -> None: ...

    def end_channel(self, number: int, reason: str) -> bool:
        return True

    def trace(self, wanted: bool) -> None: ...


class MqttSession(NamedTuple):
    namespace: str
    client_id: str
    user: str


class Mqtt(MqttLists):
    """Stands for a gateway with one session, and a retained message for every topic."""

    def __init__(self) -> None:
        self.session = MqttSession("/", "theirs", OWNER.name)

    def sessions(self, namespace: str) -> Any:
        return [self.session]

    def find(self, namespace: str, client_id: str) -> Any:
        return self.session

    def describe(self, session: Any) -> MqttSessionInfo:
        return MqttSessionInfo(*session, True, "", 0, 0, 0, 0, 0)

    def filters(self, session: Any) -> list[MqttFilter]:
        return []

    def retained_topics(self, namespace: str, pattern: str, after: str) -> Iterator[str | None]:
        yield "target-retained"

    def retained(self, namespace: str, topic: str, now_ms: int) -> Record | None:
        return Record(0, 1, None, b"x")


@dataclass
class Request:
    segments: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class World:
    engine: Engine
    broker: NodeLoop
    client: httpx.AsyncClient
    tokens: dict[str, str]
    """By kind of user."""
    numbers: Any = field(default_factory=count)

    def name(self) -> str:
        return f"target-{next(self.numbers)}"

    async def send(
        self, kind: Kind, method: str, path: str, request: Request | None = None
    ) -> httpx.Response:
        given = request or Request()
        content: dict[str, Any] = {}
        if isinstance(given.body, bytes):
            content["content"] = given.body
        elif given.body is not None:
            content["json"] = given.body
        password = PASSWORD if kind.known else "wrong"
        headers, auth = dict(given.headers), (kind.name, password)
        if kind.token:
            headers["authorization"] = f"Bearer {self.tokens[kind.name]}"
        return await self.client.request(
            method,
            path,
            auth=None if kind.name == "anonymous" or kind.token else auth,
            params=given.query or None,
            headers=headers,
            **content,
        )

    async def ok(self, method: str, path: str, body: Any = None, kind: Kind = OWNER) -> Any:
        response = await self.send(kind, method, path, Request(body=body))
        assert response.is_success, (method, path, response.text)
        return response.json() if response.content else None

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        return await self.ok(method, path, body, KINDS[-2])

    async def topic(self, **settings: Any) -> str:
        name = self.name()
        await self.ok("PUT", f"/v1/topics/{name}", {"settings": {"partitions": 1, **settings}})
        return name

    async def filled(self, **settings: Any) -> str:
        topic = await self.topic(**settings)
        await self.ok("PUT", f"/v1/topics/{topic}/subscriptions/own", {})
        body = {"messages": [{"value": "a"}, {"value": "b"}]}
        await self.ok("POST", f"/v1/topics/{topic}/messages/batch", body)
        return topic

    async def receipt(self) -> str:
        topic = await self.filled()
        path = f"/v1/topics/{topic}/subscriptions/own/receive"
        received = await self.ok("POST", path, {})
        receipt: str = received["messages"][0]["receipt"]
        return receipt

    async def dead(self) -> str:
        topic = await self.filled()
        path = f"/v1/topics/{topic}/subscriptions/own/receive"
        received = await self.ok("POST", path, {})
        receipt = quote(received["messages"][0]["receipt"], safe="")
        await self.ok("POST", f"/v1/receipts/{receipt}/reject", {})
        return topic

    async def exchange(self) -> str:
        name = self.name()
        await self.ok("PUT", f"/v1/exchanges/{name}", {"kind": "topic"})
        return name

    async def member(self) -> tuple[str, dict[str, Any]]:
        group, topic = self.name(), await self.topic()
        body = {"topics": [topic], "member_id": "mia"}
        told = await self.ok("POST", f"/v1/groups/{group}/members", body)
        return topic, told

    async def lease(self) -> str:
        name, topic = self.name(), await self.topic()
        positions = [{"topic": topic, "partition": 0, "offset": 0}]
        await self.ok("PUT", f"/v1/leases/{name}", {"positions": positions})
        return name

    async def pipeline(self) -> str:
        name = self.name()
        report = {"run": "1", "state": "running", "started_ms": 1}
        await self.ok("PUT", f"/v1/pipelines/{name}", report)
        return name

    async def transaction(self) -> str:
        name = self.name()
        await self.ok("POST", "/v1/transactions", {"name": name})
        return name

    async def application(self) -> str:
        name, step = self.name(), {"epoch": 1, "sequence": 1}
        body = {"name": f"{name}-1", "application": {"name": name, **step}}
        await self.ok("POST", "/v1/transactions", body)
        await self.ok("POST", f"/v1/transactions/{name}-1/commit", {})
        return name

    async def user(self) -> str:
        name = self.name()
        await self.admin("PUT", f"/v1/users/{name}", {"password": "x"})
        return name

    async def namespace(self) -> str:
        name = self.name()
        await self.admin("PUT", f"/v1/namespaces/{name}", {})
        return name

    async def permission(self) -> tuple[str, str]:
        namespace, user = await self.namespace(), await self.user()
        patterns = {"configure": "", "write": "", "read": ""}
        await self.admin("PUT", f"/v1/permissions/{namespace}/{user}", patterns)
        return namespace, user

    async def template(self) -> str:
        name = self.name()
        body = {"pattern": "^unused", "settings": {}}
        await self.admin("PUT", f"/v1/templates/{name}", body)
        return name

    async def policy(self) -> str:
        name = self.name()
        body = {"pattern": "^unused", "definition": {"max-length": 5}}
        await self.admin("PUT", f"/v1/policies/%2F/{name}", body)
        return name

    def connection(self) -> str:
        session = Connection(self.broker.sessions.new_id("amqp"))
        self.broker.sessions.add(session.id, session)
        return session.id

    async def token(self) -> str:
        issued = await self.ok("POST", "/v1/tokens", {})
        token_id: str = issued["info"]["id"]
        return token_id


Make = Callable[[World], Any]
MAKE: dict[str, Make] = {}


def request_for(*names: str) -> Callable[[Make], Make]:
    def mark(make: Make) -> Make:
        for name in names:
            assert name not in MAKE
            MAKE[name] = make
        return make

    return mark


@request_for(
    *("health", "ready", "metrics", "overview", "get_log_level", "list_connections"),
    *("list_topics", "list_transactions", "list_leases", "list_subscriptions", "list_groups"),
    *("list_exchanges", "list_bindings", "list_templates", "list_policies", "list_pipelines"),
    *("list_users", "list_permissions", "list_namespaces", "list_tokens", "list_quarantined"),
    *("list_sessions", "list_retained", "list_past_connections"),
    *("list_listeners", "reliability_stats", "delay_stats", "priority_stats", "transaction_stats"),
    *("list_usage", "export_usage", "list_all_dead_letters"),
    *("list_schedules", "list_all_consumers", "reload_configuration", "list_audit"),
)
async def plain(w: World) -> Request:
    return Request()


@request_for(
    *("describe_topic", "delete_topic", "purge_topic", "describe_log", "list_delayed"),
    *("list_consumers", "list_subscriptions_of_topic", "list_dead_letters", "purge_dead_letters"),
    "retry_dead_letters",
)
async def of_topic(w: World) -> Request:
    return Request({"topic": await w.filled()})


@request_for("create_topic")
async def new_topic(w: World) -> Request:
    return Request({"topic": w.name()}, body={})


@request_for("alter_topic")
async def altered(w: World) -> Request:
    return Request({"topic": await w.topic()}, body={"settings": {"ttl_ms": 5}})


@request_for("publish")
async def one_message(w: World) -> Request:
    return Request({"topic": await w.topic()}, body={"value": "x"})


@request_for("publish_batch")
async def batch(w: World) -> Request:
    return Request({"topic": await w.topic()}, body={"messages": [{"value": "x"}]})


@request_for("publish_raw")
async def raw(w: World) -> Request:
    return Request({"topic": await w.topic()}, body=b"x")


@request_for("publish_records")
async def records(w: World) -> Request:
    batch = RecordBatch()
    batch.append(b"x", timestamp_ms=1)
    return Request({"topic": await w.topic()}, body=bytes(batch))


@request_for("open_producer")
async def producer(w: World) -> Request:
    return Request(body={"name": w.name()})


@request_for("begin_transaction")
async def begun(w: World) -> Request:
    return Request(body={"name": w.name()})


@request_for("describe_transaction", "keep_transaction")
async def of_transaction(w: World) -> Request:
    return Request({"transaction": await w.transaction()})


@request_for("commit_transaction", "abort_transaction")
async def ended(w: World) -> Request:
    return Request({"transaction": await w.transaction()}, body={})


@request_for("describe_application")
async def of_application(w: World) -> Request:
    return Request({"application": await w.application()})


@request_for("read_messages")
async def read_partition(w: World) -> Request:
    return Request({"topic": await w.filled(), "partition": 0})


@request_for("retry_quarantined", "skip_quarantined")
async def not_quarantined(w: World) -> Request:
    return Request({"topic": await w.filled(), "partition": 0})


@request_for("read_message", "read_raw")
async def read_offset(w: World) -> Request:
    return Request({"topic": await w.filled(), "partition": 0, "offset": 0})


@request_for("find_times")
async def times(w: World) -> Request:
    return Request({"topic": await w.filled()}, {"time_ms": 5})


@request_for("describe_logs")
async def logs(w: World) -> Request:
    return Request({}, body={"topics": [await w.topic()]})


@request_for("read_segment")
async def segment(w: World) -> Request:
    return Request({"topic": await w.filled(), "name": "none"})


@request_for("read_records")
async def read_records(w: World) -> Request:
    return Request({"topic": await w.filled(), "partition": 0}, {"start": 0, "end": 1})


@request_for("put_schedule")
async def new_schedule(w: World) -> Request:
    return Request({"topic": await w.topic(), "name": "new"}, body={"every_ms": 3_600_000})


@request_for("get_schedule", "pause_schedule", "resume_schedule", "delete_schedule")
async def of_schedule(w: World) -> Request:
    topic = await w.topic()
    await w.ok("PUT", f"/v1/topics/{topic}/schedules/own", {"every_ms": 3_600_000})
    return Request({"topic": topic, "name": "own"})


@request_for("list_topic_schedules")
async def topic_schedules(w: World) -> Request:
    return Request({"topic": await w.topic()})


@request_for("hold_lease")
async def held(w: World) -> Request:
    positions = [{"topic": await w.topic(), "partition": 0, "offset": 0}]
    return Request({"lease": await w.lease()}, body={"positions": positions})


@request_for("describe_lease", "end_lease")
async def of_lease(w: World) -> Request:
    return Request({"lease": await w.lease()})


@request_for("renew_lease")
async def renewed(w: World) -> Request:
    return Request({"lease": await w.lease()}, body={})


@request_for("describe_subscription", "delete_subscription", "list_in_flight")
async def of_subscription(w: World) -> Request:
    return Request({"topic": await w.filled(), "subscription": "own"})


@request_for("create_subscription")
async def new_subscription(w: World) -> Request:
    return Request({"topic": await w.topic(), "subscription": "new"}, body={})


@request_for("seek_subscription")
async def sought(w: World) -> Request:
    request = {"topic": await w.filled(), "subscription": "own"}
    return Request(request, body={"to": "latest"})


@request_for("receive")
async def received(w: World) -> Request:
    return Request({"topic": await w.filled(), "subscription": "own"}, body={})


@request_for("commit_subscription")
async def committed(w: World) -> Request:
    offsets = {"offsets": [{"partition": 0, "offset": 1}]}
    return Request({"topic": await w.filled(), "subscription": "own"}, body=offsets)


@request_for("describe_group")
async def of_group(w: World) -> Request:
    _, told = await w.member()
    return Request({"group": told["group"]})


@request_for("delete_group")
async def left_group(w: World) -> Request:
    _, told = await w.member()
    path = f"/v1/groups/{told['group']}/members/mia?generation={told['generation']}"
    await w.ok("DELETE", path)
    return Request({"group": told["group"]})


@request_for("seek_group")
async def sought_group(w: World) -> Request:
    topic, told = await w.member()
    return Request({"group": told["group"]}, body={"topic": topic, "to": "latest"})


@request_for("join_group")
async def joined(w: World) -> Request:
    return Request({"group": w.name()}, body={"topics": [await w.topic()]})


@request_for("heartbeat", "sync")
async def of_member(w: World) -> Request:
    _, told = await w.member()
    segments = {"group": told["group"], "member": "mia"}
    return Request(segments, body={"generation": told["generation"]})


@request_for("poll")
async def polled(w: World) -> Request:
    request = await of_member(w)
    request.body["wait_ms"] = 0
    return request


@request_for("leave_group")
async def leaving(w: World) -> Request:
    _, told = await w.member()
    segments = {"group": told["group"], "member": "mia"}
    return Request(segments, {"generation": told["generation"]})


@request_for("commit")
async def commit(w: World) -> Request:
    topic, told = await w.member()
    offsets = [{"topic": topic, "partition": 0, "offset": 0}]
    segments = {"group": told["group"], "member": "mia"}
    return Request(segments, body={"generation": told["generation"], "offsets": offsets})


@request_for("ack", "nack", "reject")
async def answered(w: World) -> Request:
    return Request({"receipt": await w.receipt()}, body={})


@request_for("extend")
async def extended(w: World) -> Request:
    return Request({"receipt": await w.receipt()}, body={"visibility_ms": 5000})


@request_for("ack_many", "nack_many", "reject_many")
async def answered_many(w: World) -> Request:
    return Request(body={"receipts": [await w.receipt()]})


@request_for("extend_many")
async def extended_many(w: World) -> Request:
    return Request(body={"receipts": [await w.receipt()], "visibility_ms": 5000})


@request_for("cancel_delayed")
async def cancelled(w: World) -> Request:
    topic = await w.topic()
    await w.ok("POST", f"/v1/topics/{topic}/messages", {"value": "x", "delay_ms": 3_600_000})
    return Request({"topic": topic, "partition": 0, "offset": 0})


@request_for("describe_dead_letter", "retry_dead_letter", "delete_dead_letter")
async def of_dead_letter(w: World) -> Request:
    return Request({"topic": await w.dead(), "offset": 0})


@request_for("return_dead_letters")
async def returned(w: World) -> Request:
    return Request(body={"topic": await w.dead()})


@request_for("describe_exchange", "delete_exchange")
async def of_exchange(w: World) -> Request:
    return Request({"exchange": await w.exchange()})


@request_for("create_exchange")
async def new_exchange(w: World) -> Request:
    return Request({"exchange": w.name()}, body={"kind": "fanout"})


@request_for("bind")
async def bound(w: World) -> Request:
    return Request(body={"source": await w.exchange(), "destination": await w.topic()})


@request_for("unbind")
async def unbound(w: World) -> Request:
    binding = {"source": await w.exchange(), "destination": await w.topic()}
    await w.ok("POST", "/v1/bindings", binding)
    return Request(query=binding)


@request_for("publish_through_exchange")
async def through(w: World) -> Request:
    return Request({"exchange": await w.exchange()}, body={"messages": [{"value": "x"}]})


@request_for("describe_template", "delete_template")
async def of_template(w: World) -> Request:
    return Request({"name": await w.template()})


@request_for("put_template")
async def new_template(w: World) -> Request:
    return Request({"name": w.name()}, body={"pattern": "^unused", "settings": {}})


@request_for("list_policies_of", "list_permissions_on_namespace")
async def of_namespace(w: World) -> Request:
    return Request({"namespace": "/"})


@request_for("describe_policy", "delete_policy")
async def of_policy(w: World) -> Request:
    return Request({"namespace": "/", "name": await w.policy()})


@request_for("put_policy")
async def new_policy(w: World) -> Request:
    body = {"pattern": "^unused", "definition": {"max-length": 5}}
    return Request({"namespace": "/", "name": w.name()}, body=body)


@request_for("describe_pipeline", "list_pipeline_runs", "stop_pipeline", "forget_pipeline")
async def of_pipeline(w: World) -> Request:
    return Request({"pipeline": await w.pipeline()})


@request_for("report_pipeline")
async def reported(w: World) -> Request:
    body = {"run": "2", "state": "running", "started_ms": 1}
    return Request({"pipeline": await w.pipeline()}, body=body)


@request_for(
    *("describe_connection", "close_connection", "list_channels"),
    *("get_trace", "begin_trace", "end_trace"),
)
async def of_connection(w: World) -> Request:
    return Request({"connection": w.connection()})


@request_for("list_filters")
async def of_session(w: World) -> Request:
    return Request({"session": w.name()})


@request_for("describe_retained")
async def of_retained(w: World) -> Request:
    return Request({"topic": w.name()})


@request_for("close_channel")
async def of_channel(w: World) -> Request:
    return Request({"connection": w.connection(), "channel": 1})


@request_for("set_log_level")
async def log_level(w: World) -> Request:
    return Request(body={"level": "info"})


@request_for("describe_user", "delete_user")
async def of_user(w: World) -> Request:
    return Request({"name": await w.user()})


@request_for("put_user", "put_password")
async def password(w: World) -> Request:
    return Request({"name": await w.user()}, body={"password": "y"})


@request_for("put_tags")
async def tags(w: World) -> Request:
    return Request({"name": await w.user()}, body={"tags": ["administrator"]})


@request_for("describe_permission", "delete_permission")
async def of_permission(w: World) -> Request:
    namespace, user = await w.permission()
    return Request({"namespace": namespace, "user": user})


@request_for("put_permission")
async def new_permission(w: World) -> Request:
    patterns = {"configure": ".*", "write": ".*", "read": ".*"}
    return Request({"namespace": await w.namespace(), "user": await w.user()}, body=patterns)


@request_for("describe_namespace", "delete_namespace", "list_quotas")
async def of_its_namespace(w: World) -> Request:
    return Request({"name": await w.namespace()})


@request_for("put_namespace", "put_limits")
async def limits(w: World) -> Request:
    return Request({"name": await w.namespace()}, body={"max_queues": 5})


@request_for("issue_token")
async def issued(w: World) -> Request:
    return Request(body={})


@request_for("revoke_token")
async def revoked(w: World) -> Request:
    return Request({"token_id": await w.token()})


# --- the test ---


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    engine = Engine.open(MemoryDisk(), SystemClock().now_ms())
    broker = NodeLoop(engine, SystemClock(), asyncio.get_running_loop())
    accounts = Accounts(engine.store)
    engine.references.enforce(accounts.allows)
    accounts.add_namespace("elsewhere")
    for kind in KINDS[1:]:
        accounts.add_user(kind.name, HASH, kind.tags)
        if kind.enters:
            patterns = (pattern_of(kind, verb) for verb in Verb)
            accounts.set_permission(kind.name, "/", *patterns)
        else:
            accounts.set_permission(kind.name, "elsewhere", ".*", ".*", ".*")
    tokens = Tokens(engine.store, accounts)
    token_logins = TokenLogins(accounts, tokens, SystemClock(), JWT)
    token_logins.jwks.ring.took(keys_from(ISSUERS.jwks(), JWT.allowed))
    logins = Logins(accounts, token_logins)
    accounts.add_user("everything", HASH, ["administrator", "monitoring"])
    for namespace in ("/", "elsewhere"):
        accounts.set_permission("everything", namespace, ".*", ".*", ".*")
    texts = {each.name: token_of(each, tokens) for each in TOKEN_KINDS}
    health = Health(lambda: None, lambda: None)
    web = WebCallers(["node"])
    metrics = Metrics(engine, {}, lambda: 0)
    app = make_api(broker, accounts, logins, tokens, health, metrics, web=web, mqtt=Mqtt())
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 5555))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        yield World(engine, broker, client, texts)
    broker.stop()
    logins.close()
    engine.close()


ISSUERS = Issuer()
JWT = JwtSettings(jwks="given", issuer=ISSUER, audience=AUDIENCE, leeway_s=0)


def token_of(kind: Kind, tokens: Tokens) -> str:
    if kind.token == "jwt":
        scope = " ".join(kind.scopes())
        return ISSUERS.token(f"{kind.name}-user", scope, lasts_s=kind.lasts_s)
    now_ms = SystemClock().wall_ms()
    made_ms = now_ms if kind.known else now_ms - 1_000_000
    expires_ms = made_ms + 600_000
    info, text, _ = tokens.issue("everything", made_ms, expires_ms, scopes=kind.scopes())
    tokens.used(info.id, now_ms)  # of which a note is taken
    return text


def pattern_of(kind: Kind, verb: Verb) -> str:
    names = ["^target"] * (verb in kind.verbs) + ["^unrelated|^amq"] * (verb in kind.elsewhere)
    return "|".join(names)


def path_of(operation: Operation, request: Request) -> str:
    path = operation.path
    for name in names_in(path):
        path = path.replace(f"{{{name}}}", quote(str(request.segments[name]), safe=""))
    return path


def is_denied(operation: Operation, response: httpx.Response) -> bool:
    """Others' connections and groups are not there, as far as one is told; others' transactions
    are a conflict."""
    if response.status_code in (401, 403):
        return True
    code = json.loads(response.content).get("code") if response.status_code >= 400 else ""
    hidden = {"not-your-transaction", "unknown-connection", "unknown-group"}
    return code in hidden


ALLOWED_WITHOUT_SUCCESS = {
    "read_segment": 404,
    "retry_quarantined": 409,
    "skip_quarantined": 409,
    "reload_configuration": 404,
}
"""Whoever may gets this: there is no such segment, nothing is damaged, and this node has no file
to read."""


@pytest.mark.parametrize("kind", KINDS + TOKEN_KINDS, ids=lambda each: each.name)
async def test_every_operation_as_every_kind_of_user(world: World, kind: Kind) -> None:
    assert MAKE.keys() == OPERATIONS.keys()
    wrong = []
    for name, operation in OPERATIONS.items():
        request = await MAKE[name](world)
        before = world.engine.store.journal.last_lsn
        response = await world.send(kind, operation.method, path_of(operation, request), request)
        unchanged = world.engine.store.journal.last_lsn == before
        allowed = expected(operation, kind)
        if is_denied(operation, response) == allowed:
            wrong.append((name, "denied" if allowed else "allowed", response.text[:200]))
        elif not allowed and not unchanged:
            wrong.append((name, "denied, and something changed", ""))
        elif allowed and not succeeded(name, response, kind):
            wrong.append((name, f"allowed, and {response.status_code}", response.text[:200]))
    assert wrong == []


def succeeded(name: str, response: httpx.Response, kind: Kind) -> bool:
    if name.endswith("_many"):
        settled = response.json()
        if Verb.READ not in kind.verbs:
            # It reads other names: these receipts are none of its.
            return settled["count"] == 0 and settled["failed"][0]["code"] == "access-refused"
        return settled["count"] == 1
    return response.is_success or response.status_code == ALLOWED_WITHOUT_SUCCESS.get(name)


LISTS = {
    "/v1/topics": lambda each: each["name"],
    "/v1/exchanges": lambda each: each["name"],
    "/v1/bindings": lambda each: each["source"],
    "/v1/subscriptions": lambda each: each["topic"],
    "/v1/groups": lambda each: each["name"],
    "/v1/leases": lambda each: each["name"],
    "/v1/pipelines": lambda each: each["name"],
    "/v1/transactions": lambda each: each["name"],
    "/v1/connections": lambda each: each["id"],
    "/v1/connections/history": lambda each: each["id"],
    "/v1/mqtt/sessions": lambda each: each["client"],
    "/v1/mqtt/retained": lambda each: each["topic"],
    "/v1/tokens": lambda each: each["user"],
}


@pytest.mark.parametrize(
    "kind",
    [each for each in KINDS if each.name in ("without-patterns", "with-other-names")],
    ids=lambda each: each.name,
)
async def test_lists_have_nothing_of_others(world: World, kind: Kind) -> None:
    await unbound(world)
    await world.filled()
    await world.member()
    await world.lease()
    await world.pipeline()
    await world.transaction()
    await world.token()
    world.broker.sessions.remove(world.connection(), "", 0)
    world.connection()
    for path, name_of in LISTS.items():
        mine = await world.send(kind, "GET", path)
        assert mine.is_success, (path, mine.text)
        names = [name_of(each) for each in mine.json()]
        assert [each for each in names if not each.startswith("amq.")] == [], path
        full = await world.ok("GET", path)
        assert full, path


async def test_where_any_right_would_do_the_refusal_says_so(world: World) -> None:
    kind = next(each for each in KINDS if each.name == "without-patterns")
    name = await world.topic()
    response = await world.send(kind, "GET", f"/v1/topics/{name}")
    assert response.status_code == 403
    refused = f"may not configure, write to or read from {name!r} in namespace '/'"
    assert response.json()["detail"] == f"user {kind.name!r} {refused}"


async def test_an_operation_cannot_be_declared_without_a_right() -> None:
    from braidmq.api.endpoints import operation

    with pytest.raises(TypeError, match="right"):
        operation("GET", "/v1/new", tag="node")  # type: ignore[call-arg]
