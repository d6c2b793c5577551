"""Administration over HTTP, with the names and the answers of its API (``/v1/openapi.json``)."""

from collections.abc import Mapping, Sequence
from typing import Any

from braidmq.client.address import Address
from braidmq.client.http import HttpClient, Query

PAGE_BYTES_MAX = 4 << 20

Json = dict[str, Any]
Settings = Mapping[str, Any]


class Admin:
    """``broker.admin``: topics, subscriptions, groups, dead letters, delayed messages, exchanges,
    templates, connections. Answers are the API's JSON."""

    def __init__(self, http: HttpClient, address: Address) -> None:
        self._http = http
        self._namespace = address.vhost

    async def close(self) -> None:
        await self._http.close()

    async def _call(
        self, method: str, *path: object, query: Query | None = None, body: object | None = None
    ) -> Any:
        said: dict[str, Any] = {"namespace": self._namespace, **(query or {})}
        return await self._http.call(method, [str(each) for each in path], said, body)

    # --- topics ---

    async def list_topics(self, *, prefix: str = "") -> list[Json]:
        """All of them, page by page."""
        found: list[Json] = []
        while True:
            after = found[-1]["name"] if found else ""
            page = await self._call("GET", "topics", query={"prefix": prefix, "after": after})
            if not page:
                return found
            found += page

    async def describe_topic(self, topic: str) -> Json:
        found: Json = await self._call("GET", "topics", topic)
        return found

    async def create_topic(self, topic: str, **settings: Any) -> Json:
        """``create_topic("orders", partitions=6)``; the same topic twice is once."""
        made: Json = await self._call("PUT", "topics", topic, body={"settings": settings})
        return made

    async def alter_topic(self, topic: str, **settings: Any) -> Json:
        changed: Json = await self._call("PATCH", "topics", topic, body={"settings": settings})
        return changed

    async def delete_topic(self, topic: str) -> None:
        await self._call("DELETE", "topics", topic)

    async def purge_topic(self, topic: str) -> int:
        """How many messages went."""
        purged: int = (await self._call("POST", "topics", topic, "purge"))["messages"]
        return purged

    # --- transactions ---

    async def list_transactions(self) -> list[Json]:
        """Those that are open, the oldest first, and what each keeps readers from."""
        found: list[Json] = await self._call("GET", "transactions")
        return found

    async def transaction(self, name: str) -> Json:
        """An open one, or for an hour how it ended."""
        found: Json = await self._call("GET", "transactions", name)
        return found

    async def commit_transaction(self, name: str) -> Json:
        ended: Json = await self._call("POST", "transactions", name, "commit")
        return ended

    async def abort_transaction(self, name: str) -> Json:
        ended: Json = await self._call("POST", "transactions", name, "abort")
        return ended

    async def last_committed(self, application: str) -> tuple[int, int]:
        """Epoch and sequence of what an application committed last. Raises NotFound."""
        found: Json = await self._call("GET", "applications", application)
        return found["epoch"], found["sequence"]

    # --- reading ---

    async def read_messages(
        self, topic: str, partition: int, *, start: str = "earliest", limit: int = 100
    ) -> Json:
        query: Query = {"start": start, "limit": limit}
        page: Json = await self._call(
            "GET", "topics", topic, "partitions", partition, "messages", query=query
        )
        return page

    async def read_page(self, topic: str, partition: int, start: str, limit: int) -> bytes:
        """As ``read_messages``, not decoded."""
        path = ["topics", topic, "partitions", str(partition), "messages"]
        query: Query = {
            "namespace": self._namespace,
            "start": start,
            "limit": limit,
            "bytes_max": PAGE_BYTES_MAX,
        }
        return await self._http.call_raw("GET", path, query)

    # --- subscriptions ---

    async def list_subscriptions(self, topic: str | None = None) -> list[Json]:
        path = ["subscriptions"] if topic is None else ["topics", topic, "subscriptions"]
        found: list[Json] = await self._call("GET", *path)
        return found

    async def describe_subscription(self, topic: str, subscription: str) -> Json:
        found: Json = await self._call("GET", "topics", topic, "subscriptions", subscription)
        return found

    async def create_subscription(
        self, topic: str, subscription: str, *, mode: str = "shared", start: str = "earliest"
    ) -> Json:
        body = {"mode": mode, "start": start}
        made: Json = await self._call(
            "PUT", "topics", topic, "subscriptions", subscription, body=body
        )
        return made

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        await self._call("DELETE", "topics", topic, "subscriptions", subscription)

    async def seek_subscription(self, topic: str, subscription: str, to: str) -> Json:
        """Begin again from ``earliest``, ``latest``, an offset, or ``@`` and milliseconds."""
        path = ("topics", topic, "subscriptions", subscription, "seek")
        found: Json = await self._call("POST", *path, body={"to": to})
        return found

    # --- groups ---

    async def list_groups(self) -> list[Json]:
        found: list[Json] = await self._call("GET", "groups")
        return found

    async def describe_group(self, group: str) -> Json:
        found: Json = await self._call("GET", "groups", group)
        return found

    async def delete_group(self, group: str) -> None:
        await self._call("DELETE", "groups", group)

    async def seek_group(self, group: str, topic: str, to: str) -> None:
        await self._call("POST", "groups", group, "seek", body={"topic": topic, "to": to})

    async def join_group(self, group: str, topics: Sequence[str], **options: Any) -> Json:
        """What the new member is told: ``member_id``, ``generation``, ``assigned``, …"""
        body = {"topics": list(topics), **options}
        member: Json = await self._call("POST", "groups", group, "members", body=body)
        return member

    async def heartbeat(self, group: str, member: str, generation: int) -> Json:
        path = ("groups", group, "members", member, "heartbeat")
        told: Json = await self._call("POST", *path, body={"generation": generation})
        return told

    async def sync(
        self, group: str, member: str, generation: int, revoked: Sequence[Json] = ()
    ) -> Json:
        body = {"generation": generation, "revoked": list(revoked)}
        told: Json = await self._call("POST", "groups", group, "members", member, "sync", body=body)
        return told

    async def leave_group(self, group: str, member: str, generation: int) -> None:
        query: Query = {"generation": generation}
        await self._call("DELETE", "groups", group, "members", member, query=query)

    async def poll(
        self, group: str, member: str, generation: int, *, limit: int = 100, wait_ms: int = 0
    ) -> Json:
        body = {"generation": generation, "limit": limit, "wait_ms": wait_ms}
        polled: Json = await self._call(
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

    async def list_dead_letters(self, topic: str, *, start: int = 0, limit: int = 100) -> Json:
        query: Query = {"start": start, "limit": limit}
        found: Json = await self._call("GET", "topics", topic, "dead-letters", query=query)
        return found

    async def describe_dead_letter(self, topic: str, offset: int) -> Json:
        found: Json = await self._call("GET", "topics", topic, "dead-letters", offset)
        return found

    async def retry_dead_letter(self, topic: str, offset: int) -> None:
        await self._call("POST", "topics", topic, "dead-letters", offset, "retry")

    async def retry_dead_letters(self, topic: str) -> Json:
        found: Json = await self._call("POST", "topics", topic, "dead-letters", "retry")
        return found

    async def delete_dead_letter(self, topic: str, offset: int) -> None:
        await self._call("DELETE", "topics", topic, "dead-letters", offset)

    async def purge_dead_letters(self, topic: str) -> int:
        removed: int = (await self._call("DELETE", "topics", topic, "dead-letters"))["count"]
        return removed

    async def list_delayed(self, topic: str, *, limit: int = 100) -> Json:
        found: Json = await self._call("GET", "topics", topic, "delayed", query={"limit": limit})
        return found

    async def cancel_delayed(self, topic: str, partition: int, offset: int) -> None:
        await self._call("DELETE", "topics", topic, "delayed", partition, offset)

    # --- exchanges and bindings ---

    async def list_exchanges(self) -> list[Json]:
        found: list[Json] = await self._call("GET", "exchanges")
        return found

    async def create_exchange(self, exchange: str, kind: str = "direct", **options: Any) -> Json:
        made: Json = await self._call("PUT", "exchanges", exchange, body={"kind": kind, **options})
        return made

    async def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        await self._call("DELETE", "exchanges", exchange, query={"if_unused": if_unused})

    async def list_bindings(self, source: str | None = None) -> list[Json]:
        found: list[Json] = await self._call("GET", "bindings", query={"source": source})
        return found

    async def bind(
        self, source: str, destination: str, routing_key: str = "", **options: Any
    ) -> Json:
        body = {
            "source": source,
            "destination": destination,
            "routing_key": routing_key,
            **options,
        }
        made: Json = await self._call("POST", "bindings", body=body)
        return made

    async def unbind(self, source: str, destination: str, routing_key: str = "") -> None:
        query: Query = {"source": source, "destination": destination, "routing_key": routing_key}
        await self._call("DELETE", "bindings", query=query)

    # --- templates ---

    async def list_templates(self) -> list[Json]:
        found: list[Json] = await self._call("GET", "templates")
        return found

    async def put_template(
        self, name: str, pattern: str, settings: Settings, *, priority: int = 0
    ) -> Json:
        body = {"pattern": pattern, "settings": dict(settings), "priority": priority}
        made: Json = await self._call("PUT", "templates", name, body=body)
        return made

    async def delete_template(self, name: str) -> None:
        await self._call("DELETE", "templates", name)

    # --- the node ---

    async def overview(self) -> Json:
        found: Json = await self._http.call("GET", ["overview"], {})
        return found

    async def list_connections(self) -> list[Json]:
        found: list[Json] = await self._call("GET", "connections")
        return found

    async def close_connection(self, connection: str) -> None:
        await self._call("DELETE", "connections", connection)
