"""Administration over HTTP, with the names and the answers of its API (``/openapi.json``)."""

from collections.abc import Sequence
from typing import Any, Literal, Unpack

from braidmq.client.address import Address
from braidmq.client.answers import (
    BindingInfo,
    DeadLetterInfo,
    DelayedMessages,
    DelayStats,
    ExchangeInfo,
    GroupInfo,
    GroupSummary,
    Letters,
    MemberInfo,
    Overview,
    Polled,
    ReadMessages,
    Retried,
    ReturnedLetters,
    ScheduleInfo,
    SessionInfo,
    SubscriptionInfo,
    TemplateInfo,
    TopicInfo,
    TopicPolicySettings,
    TopicSummary,
    TransactionInfo,
)
from braidmq.client.http import HttpClient, Query
from braidmq.client.options import check_words, one_of

PAGE_BYTES_MAX = 4 << 20
LETTERS_PAGE = 1000

Json = dict[str, Any]
Mode = Literal["shared", "key-ordered", "single-active", "exclusive"]


class Admin:
    """``broker.admin``: topics, subscriptions, groups, dead letters, delayed messages, exchanges,
    templates, connections.

    ```python
    topic = await broker.admin.describe_topic("orders")
    print(topic["depth"])
    ```

    Answers are the API's JSON, as typed dictionaries of ``braidmq.client.answers``. Methods raise
    NotFound, Conflict, BadRequest, AccessRefused, NotAuthenticated, ConnectFailed.
    """

    def __init__(self, http: HttpClient, address: Address) -> None:
        self._http = http
        self._namespace = address.vhost

    async def _call(
        self, method: str, *path: object, query: Query | None = None, body: object | None = None
    ) -> Any:
        said: dict[str, Any] = {"namespace": self._namespace, **(query or {})}
        return await self._http.call(method, [str(each) for each in path], said, body)

    async def _every(self, *path: str, query: Query | None = None) -> list[Any]:
        """All of a list, page by page."""
        found: list[Any] = []
        async for page in self._http.pages(path, {"namespace": self._namespace, **(query or {})}):
            found += page
        return found

    # --- topics ---

    async def list_topics(self, *, prefix: str = "") -> list[TopicSummary]:
        found: list[TopicSummary] = await self._every("topics", query={"prefix": prefix})
        return found

    async def describe_topic(self, topic: str) -> TopicInfo:
        found: TopicInfo = await self._call("GET", "topics", topic)
        return found

    async def create_topic(self, topic: str, **settings: Unpack[TopicPolicySettings]) -> TopicInfo:
        """``create_topic("orders", partitions=6)``; the same topic twice is once."""
        body = {"settings": _checked(settings)}
        made: TopicInfo = await self._call("PUT", "topics", topic, body=body)
        return made

    async def alter_topic(self, topic: str, **settings: Unpack[TopicPolicySettings]) -> TopicInfo:
        """``alter_topic("orders", overflow="drop-head")``; what is not named stays as it is."""
        body = {"settings": _checked(settings)}
        changed: TopicInfo = await self._call("PATCH", "topics", topic, body=body)
        return changed

    async def delete_topic(self, topic: str) -> None:
        await self._call("DELETE", "topics", topic)

    async def purge_topic(self, topic: str) -> int:
        """How many messages went."""
        purged: int = (await self._call("POST", "topics", topic, "purge"))["messages"]
        return purged

    # --- transactions ---

    async def list_transactions(self) -> list[TransactionInfo]:
        """Those that are open, the oldest first, and what each keeps readers from."""
        found: list[TransactionInfo] = await self._every("transactions")
        return found

    async def transaction(self, name: str) -> TransactionInfo:
        """An open one, or for an hour how it ended."""
        found: TransactionInfo = await self._call("GET", "transactions", name)
        return found

    async def commit_transaction(self, name: str) -> TransactionInfo:
        ended: TransactionInfo = await self._call("POST", "transactions", name, "commit")
        return ended

    async def abort_transaction(self, name: str) -> TransactionInfo:
        ended: TransactionInfo = await self._call("POST", "transactions", name, "abort")
        return ended

    async def last_committed(self, application: str) -> tuple[int, int]:
        """Epoch and sequence of what an application committed last. Raises NotFound."""
        found: Json = await self._call("GET", "applications", application)
        return found["epoch"], found["sequence"]

    # --- reading ---

    async def read_messages(
        self, topic: str, partition: int, *, start: str = "earliest", limit: int = 100
    ) -> ReadMessages:
        query: Query = {"start": start, "limit": limit}
        page: ReadMessages = await self._call(
            "GET", "topics", topic, "partitions", partition, "messages", query=query
        )
        return page

    # --- subscriptions ---

    async def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        path = ["subscriptions"] if topic is None else ["topics", topic, "subscriptions"]
        found: list[SubscriptionInfo] = await self._every(*path)
        return found

    async def describe_subscription(self, topic: str, subscription: str) -> SubscriptionInfo:
        found: SubscriptionInfo = await self._call(
            "GET", "topics", topic, "subscriptions", subscription
        )
        return found

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        mode: Mode | None = None,
        start: str = "earliest",
    ) -> SubscriptionInfo:
        """``start`` is ``earliest``, ``latest``, an offset, or ``@`` and milliseconds."""
        if mode is not None:
            one_of("mode", mode, Mode)
        body = {"start": start} if mode is None else {"mode": mode, "start": start}
        made: SubscriptionInfo = await self._call(
            "PUT", "topics", topic, "subscriptions", subscription, body=body
        )
        return made

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        await self._call("DELETE", "topics", topic, "subscriptions", subscription)

    async def seek_subscription(
        self, topic: str, subscription: str, to: str, *, partition: int | None = None
    ) -> SubscriptionInfo:
        """Begin again from ``earliest``, ``latest``, an offset, or ``@`` and milliseconds; in one
        partition or in all."""
        path = ("topics", topic, "subscriptions", subscription, "seek")
        found: SubscriptionInfo = await self._call("POST", *path, body=_position(to, partition))
        return found

    # --- groups ---

    async def list_groups(self) -> list[GroupSummary]:
        found: list[GroupSummary] = await self._every("groups")
        return found

    async def describe_group(self, group: str) -> GroupInfo:
        found: GroupInfo = await self._call("GET", "groups", group)
        return found

    async def delete_group(self, group: str) -> None:
        await self._call("DELETE", "groups", group)

    async def seek_group(
        self, group: str, topic: str, to: str, *, partition: int | None = None
    ) -> None:
        body = {"topic": topic, **_position(to, partition)}
        await self._call("POST", "groups", group, "seek", body=body)

    async def join_group(self, group: str, topics: Sequence[str], **options: Any) -> MemberInfo:
        """What the new member is told: ``member_id``, ``generation``, ``assigned``, …"""
        body = {"topics": list(topics), **options}
        member: MemberInfo = await self._call("POST", "groups", group, "members", body=body)
        return member

    async def heartbeat(self, group: str, member: str, generation: int) -> MemberInfo:
        path = ("groups", group, "members", member, "heartbeat")
        told: MemberInfo = await self._call("POST", *path, body={"generation": generation})
        return told

    async def sync(
        self, group: str, member: str, generation: int, revoked: Sequence[Json] = ()
    ) -> MemberInfo:
        body = {"generation": generation, "revoked": list(revoked)}
        told: MemberInfo = await self._call(
            "POST", "groups", group, "members", member, "sync", body=body
        )
        return told

    async def leave_group(self, group: str, member: str, generation: int) -> None:
        query: Query = {"generation": generation}
        await self._call("DELETE", "groups", group, "members", member, query=query)

    async def poll(
        self, group: str, member: str, generation: int, *, limit: int = 100, wait_ms: int = 0
    ) -> Polled:
        body = {"generation": generation, "limit": limit, "wait_ms": wait_ms}
        polled: Polled = await self._call(
            "POST", "groups", group, "members", member, "poll", body=body
        )
        return polled

    async def commit(
        self, group: str, member: str, generation: int, offsets: Sequence[Json]
    ) -> None:
        """``offsets=[{"topic": "orders", "partition": 0, "offset": 17}]``"""
        body = {"generation": generation, "offsets": list(offsets)}
        await self._call("POST", "groups", group, "members", member, "commit", body=body)

    # --- dead letters, delayed ---

    async def list_dead_letters(
        self, topic: str, *, start: int = 0, limit: int = 100, queue: str = ""
    ) -> Letters:
        query: Query = {"start": start, "limit": limit, "queue": queue}
        found: Letters = await self._call("GET", "topics", topic, "dead-letters", query=query)
        return found

    async def list_all_dead_letters(
        self, *, limit: int = 100, **wanted: str | int
    ) -> list[DeadLetterInfo]:
        """Of all namespaces that the user may enter, or those that have what is ``wanted``:
        ``namespace``, ``topic``, ``reason``, ``subscription``, ``queue``, ``since_ms``,
        ``until_ms``; in as many calls as ``limit`` of them take."""
        found: list[DeadLetterInfo] = []
        query: Query = {"limit": min(limit, LETTERS_PAGE), **wanted}
        async for page in self._http.pages(["dead-letters"], query):
            found += page["letters"]
            if len(found) >= limit:
                break
        return found[:limit]

    async def return_dead_letters(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        to: str = "subscription",
        **wanted: str | int,
    ) -> ReturnedLetters:
        """Return those that have what is ``wanted`` (as above, and ``offset``) to where they came
        from, or with ``everything`` all: in as many calls as it takes. ``count`` went back, or
        would in a ``dry_run``; ``stayed_count`` can't, and ``stayed`` says why, of the first."""
        body: Json = {"all": everything, "dry_run": dry_run, "to": to, **wanted}
        done: ReturnedLetters | None = None
        while True:
            part: ReturnedLetters = await self._http.call(
                "POST", ["dead-letters", "return"], {}, body
            )
            if done is None:
                done = part
            else:
                done["count"] += part["count"]
                done["stayed_count"] += part["stayed_count"]
                done["examples"] = done["examples"] or part["examples"]
                done["stayed"] = done["stayed"] or part["stayed"]
                known = done["unreadable"]
                known += [each for each in part["unreadable"] if each not in known]
            if not part["next"]:
                done["next"] = ""
                return done
            body["cursor"] = part["next"]

    async def describe_dead_letter(
        self, topic: str, offset: int, *, queue: str = ""
    ) -> DeadLetterInfo:
        query: Query = {"queue": queue}
        path = ("topics", topic, "dead-letters", offset)
        found: DeadLetterInfo = await self._call("GET", *path, query=query)
        return found

    async def retry_dead_letter(self, topic: str, offset: int, *, queue: str = "") -> None:
        path = ("topics", topic, "dead-letters", offset, "retry")
        await self._call("POST", *path, query={"queue": queue})

    async def retry_dead_letters(self, topic: str) -> Retried:
        found: Retried = await self._call("POST", "topics", topic, "dead-letters", "retry")
        return found

    async def delete_dead_letter(self, topic: str, offset: int, *, queue: str = "") -> None:
        path = ("topics", topic, "dead-letters", offset)
        await self._call("DELETE", *path, query={"queue": queue})

    async def purge_dead_letters(self, topic: str) -> int:
        removed: int = (await self._call("DELETE", "topics", topic, "dead-letters"))["count"]
        return removed

    async def list_delayed(
        self, topic: str, *, state: str = "pending", limit: int = 100
    ) -> DelayedMessages:
        """``messages`` that wait; or with ``state`` the last that were ``"delivered"``,
        ``"cancelled"`` or ``"expired"`` since the node started, as ``ended``."""
        query: Query = {"state": state, "limit": limit}
        found: DelayedMessages = await self._call("GET", "topics", topic, "delayed", query=query)
        return found

    async def delay_stats(self) -> DelayStats:
        found: DelayStats = await self._call("GET", "delay", "stats")
        return found

    async def cancel_delayed(self, topic: str, partition: int, offset: int) -> None:
        await self._call("DELETE", "topics", topic, "delayed", partition, offset)

    # --- schedules ---

    async def list_schedules(self, topic: str | None = None) -> list[ScheduleInfo]:
        path = ["schedules"] if topic is None else ["topics", topic, "schedules"]
        found: list[ScheduleInfo] = await self._every(*path)
        return found

    async def put_schedule(
        self, topic: str, name: str, value: str = "", **options: Any
    ) -> ScheduleInfo:
        """Publish ``value`` again and again: by ``cron="0 9 * * mon-fri"`` in a ``zone``, or
        ``every_ms``; with ``key``, ``headers``, ``partition``, ``paused``. One of that name is
        replaced."""
        body = {"value": value, **options}
        made: ScheduleInfo = await self._call("PUT", "topics", topic, "schedules", name, body=body)
        return made

    async def describe_schedule(self, topic: str, name: str) -> ScheduleInfo:
        found: ScheduleInfo = await self._call("GET", "topics", topic, "schedules", name)
        return found

    async def pause_schedule(self, topic: str, name: str) -> ScheduleInfo:
        found: ScheduleInfo = await self._call("POST", "topics", topic, "schedules", name, "pause")
        return found

    async def resume_schedule(self, topic: str, name: str) -> ScheduleInfo:
        found: ScheduleInfo = await self._call("POST", "topics", topic, "schedules", name, "resume")
        return found

    async def delete_schedule(self, topic: str, name: str) -> None:
        await self._call("DELETE", "topics", topic, "schedules", name)

    # --- exchanges and bindings ---

    async def list_exchanges(self) -> list[ExchangeInfo]:
        found: list[ExchangeInfo] = await self._every("exchanges")
        return found

    async def create_exchange(
        self, exchange: str, kind: str = "direct", **options: Any
    ) -> ExchangeInfo:
        made: ExchangeInfo = await self._call(
            "PUT", "exchanges", exchange, body={"kind": kind, **options}
        )
        return made

    async def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        await self._call("DELETE", "exchanges", exchange, query={"if_unused": if_unused})

    async def list_bindings(self, source: str | None = None) -> list[BindingInfo]:
        found: list[BindingInfo] = await self._every("bindings", query={"source": source})
        return found

    async def bind(
        self, source: str, destination: str, routing_key: str = "", **options: Any
    ) -> BindingInfo:
        body = {
            "source": source,
            "destination": destination,
            "routing_key": routing_key,
            **options,
        }
        made: BindingInfo = await self._call("POST", "bindings", body=body)
        return made

    async def unbind(self, source: str, destination: str, routing_key: str = "") -> None:
        query: Query = {"source": source, "destination": destination, "routing_key": routing_key}
        await self._call("DELETE", "bindings", query=query)

    # --- templates ---

    async def list_templates(self) -> list[TemplateInfo]:
        found: list[TemplateInfo] = await self._every("templates")
        return found

    async def put_template(
        self, name: str, pattern: str, settings: TopicPolicySettings, *, priority: int = 0
    ) -> TemplateInfo:
        """Settings of all topics whose name is like ``pattern`` and that say nothing else."""
        body = {"pattern": pattern, "settings": _checked(settings), "priority": priority}
        made: TemplateInfo = await self._call("PUT", "templates", name, body=body)
        return made

    async def delete_template(self, name: str) -> None:
        await self._call("DELETE", "templates", name)

    # --- the node ---

    async def overview(self) -> Overview:
        found: Overview = await self._http.call("GET", ["overview"], {})
        return found

    async def list_connections(self) -> list[SessionInfo]:
        found: list[SessionInfo] = await self._every("connections")
        return found

    async def close_connection(self, connection: str) -> None:
        await self._call("DELETE", "connections", connection)


async def read_page(admin: Admin, topic: str, partition: int, start: str, limit: int) -> bytes:
    """As ``read_messages``, not decoded."""
    path = ["topics", topic, "partitions", str(partition), "messages"]
    query: Query = {
        "namespace": admin._namespace,
        "start": start,
        "limit": limit,
        "bytes_max": PAGE_BYTES_MAX,
    }
    return await admin._http.call_raw("GET", path, query)


def _checked(settings: TopicPolicySettings) -> TopicPolicySettings:
    check_words(settings, TopicPolicySettings)
    return settings


def _position(to: str, partition: int | None) -> Json:
    return {"to": to} if partition is None else {"to": to, "partition": partition}
