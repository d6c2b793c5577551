"""The node: what it is doing, and who is connected to it."""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq import __version__
from braidmq.api.context import ApiContext, ListInNamespace
from braidmq.api.endpoints import Call, operation
from braidmq.api.paging import ListQuery, Page, page_of
from braidmq.model.errors import NotFound
from braidmq.net.listeners import Listener
from braidmq.net.settings import ListenerSpec
from braidmq.net.tls_handshakes import TlsPort
from braidmq.runtime.sessions import ChannelInfo, Session, SessionInfo
from braidmq.security.records import User, kept_name
from braidmq.security.rights import MONITORING, listing, owner

RATE_WINDOW_MS = 5_000
"""Rates are over at least about this long: shorter ones jump about."""

Channel = Annotated[int, Meta(ge=0, le=65_535)]


class UnknownConnection(NotFound):
    code = "unknown-connection"


class Totals(msgspec.Struct, frozen=True):
    """Counted since the node started, with topics that were deleted since."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    dead_lettered: int = 0


class Rates(msgspec.Struct, frozen=True):
    """Messages a second, over the last seconds."""

    published: float = 0.0
    delivered: float = 0.0
    acked: float = 0.0


class Overview(msgspec.Struct, frozen=True):
    node: str
    version: str
    started_ms: int
    uptime_ms: int
    pressure: Annotated[str, Meta(description="normal, slow or blocked")]
    topics: int
    subscriptions: int
    consumers: int
    connections: int
    ready: Annotated[int, Meta(description="Messages that could be delivered now")]
    in_flight: int
    memory_bytes: Annotated[int, Meta(description="Messages in memory")]
    totals: Totals
    rates: Rates


class Figures:
    """The figures of an overview, and the rates between two looks at them."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._started_ms: int = context.node_loop.clock.now_ms()
        self._last: tuple[int, Totals] = (self._started_ms, Totals())
        self._before: tuple[int, Totals] = self._last

    def may_see(self, user: User) -> bool:
        """Whether a user who was shown them still may see them: its tags may have changed."""
        accounts = self._context.access.accounts
        if accounts.dev or not kept_name(user):
            return True  # what a token said does not change
        return accounts.has_user(user.name) and accounts.user(user.name).may_monitor

    def look(self) -> Overview:
        node_loop = self._context.node_loop
        engine, now_ms = node_loop.view, node_loop.clock.now_ms()
        subscriptions = list(engine.state.subscriptions.values())
        topics = engine.state.topics_of()
        by_namespace = engine.state.totals.all_counts(topics)
        counts = sum(by_namespace.values(), Counter())
        totals = Totals(*(counts[name] for name in Totals.__struct_fields__))
        return Overview(
            node=platform.node(),
            version=__version__,
            started_ms=self._started_ms,
            uptime_ms=now_ms - self._started_ms,
            pressure=engine.pressure.level.name.lower(),
            topics=len(topics),
            subscriptions=len(subscriptions),
            consumers=sum(len(each.consumers) for each in subscriptions),
            connections=len(node_loop.sessions),
            ready=sum(each.ready for each in subscriptions),
            in_flight=sum(each.in_flight for each in subscriptions),
            memory_bytes=engine.store.memory.resident,
            totals=totals,
            rates=self._rates(now_ms, totals),
        )

    def _rates(self, now_ms: int, totals: Totals) -> Rates:
        if now_ms - self._last[0] >= RATE_WINDOW_MS:
            self._before, self._last = self._last, (now_ms, totals)
        since_ms, then = self._before
        seconds = max(now_ms - since_ms, 1) / 1000
        return Rates(
            *(
                round(max(getattr(totals, name) - getattr(then, name), 0) / seconds, 1)
                for name in Rates.__struct_fields__
            )
        )


class CertificateInfo(msgspec.Struct, frozen=True):
    subject: str
    serial: Annotated[str, Meta(description="In hexadecimal digits")]
    names: Annotated[tuple[str, ...], Meta(description="The hosts it is for")]
    expires_ms: Annotated[int, Meta(description="When it ends, in milliseconds since 1970")]


class ListenerInfo(msgspec.Struct, frozen=True):
    name: str
    protocol: Annotated[str, Meta(description="amqp, mqtt, ws or http")]
    host: Annotated[str, Meta(description="What it binds")]
    port: int
    url: str
    open: Annotated[bool, Meta(description="Whether it accepts connections")]
    connections: Annotated[int, Meta(description="Those that came by it and are open")]
    tls: Annotated[bool, Meta(description="Whether it speaks TLS")]
    certificates: Annotated[
        tuple[CertificateInfo, ...], Meta(description="What new connections are shown")
    ]
    warnings: Annotated[
        tuple[str, ...],
        Meta(description="What is careless about it: open to the network without TLS, say"),
    ]


def _certificates_of(port: TlsPort) -> tuple[CertificateInfo, ...]:
    return tuple(
        CertificateInfo(each.subject, each.serial, each.names, int(each.not_after_s * 1000))
        for each in port.current.certificates
    )


class Node:
    def __init__(
        self,
        context: ApiContext,
        figures: Figures,
        listeners: Sequence[Listener] = (),
        warnings_of: Callable[[ListenerSpec], Iterable[str]] = lambda _: (),
    ) -> None:
        self._warnings_of = warnings_of
        self._context = context
        self._figures = figures
        self._listeners = listeners

    @operation("GET", "/v1/overview", right=MONITORING, tag="node")
    async def overview(self, call: Call) -> Overview:
        """Say what the node is doing: counters and rates over all namespaces."""
        self._context.engine()
        return self._figures.look()

    @operation("GET", "/v1/listeners", right=MONITORING, tag="node")
    async def list_listeners(self, call: Call, query: ListQuery) -> list[ListenerInfo] | Page:
        """List where clients connect, with how many did, as they are configured."""
        numbered = enumerate(self._listeners)
        found, cursor = await page_of(numbered, query, lambda each: (each[0],), tuple[int])
        listed = [
            ListenerInfo(
                each.spec.name,
                each.spec.protocol,
                each.spec.host,
                each.spec.port,
                each.spec.url,
                each.is_open,
                each.connection_count,
                each.tls is not None,
                () if each.tls is None else _certificates_of(each.tls),
                tuple(self._warnings_of(each.spec)),
            )
            for _, each in found
        ]
        return Page(listed, cursor)

    @operation(
        "GET",
        "/v1/connections",
        right=listing("the caller's own; with `monitoring` everybody's"),
        tag="node",
        errors=(NotFound,),
    )
    async def list_connections(
        self, call: Call, query: ListInNamespace
    ) -> list[SessionInfo] | Page:
        """List the connections of other protocols to a namespace, the oldest first.

        Those of the caller; with the tag `monitoring` everybody's.
        """
        found, cursor = await page_of(
            (each.describe() for each in self._context.node_loop.sessions.all()),
            query,
            lambda each: (each.connected_ms, each.id),
            tuple[int, str],
            keep=lambda each: (
                each.namespace == query.namespace
                and (call.user.may_monitor or each.user == call.user.name)
            ),
        )
        return Page(found, cursor)

    @operation(
        "GET",
        "/v1/connections/{connection}",
        right=owner("connection", namespace=""),
        tag="node",
        errors=(UnknownConnection,),
    )
    async def describe_connection(self, call: Call, connection: str) -> SessionInfo:
        """Describe a connection."""
        return self._found(connection).describe()

    @operation(
        "DELETE",
        "/v1/connections/{connection}",
        right=owner("connection", namespace=""),
        tag="node",
        statuses=(204,),
        errors=(UnknownConnection,),
    )
    async def close_connection(self, call: Call, connection: str) -> None:
        """Close a connection; its peer is told who did."""
        self._found(connection).end(f"closed by {call.user.name} over HTTP")

    @operation(
        "GET",
        "/v1/connections/{connection}/channels",
        right=owner("connection", namespace=""),
        tag="node",
        errors=(UnknownConnection,),
    )
    async def list_channels(
        self, call: Call, connection: str, query: ListQuery
    ) -> list[ChannelInfo] | Page:
        """List the channels of a connection, by number."""
        channels = self._found(connection).describe_channels()
        return Page(*await page_of(channels, query, lambda each: (each.number,), tuple[int]))

    @operation(
        "DELETE",
        "/v1/connections/{connection}/channels/{channel}",
        right=owner("connection", namespace=""),
        tag="node",
        statuses=(204,),
        errors=(UnknownConnection,),
    )
    async def close_channel(self, call: Call, connection: str, channel: Channel) -> None:
        """Close a channel; its peer is told who did."""
        reason = f"closed by {call.user.name} over HTTP"
        if not self._found(connection).end_channel(channel, reason):
            raise UnknownConnection(f"connection {connection!r} has no channel {channel}")

    def _found(self, connection: str) -> Session:
        session = self._context.node_loop.sessions.get(connection)
        if session is None:
            raise UnknownConnection(f"there is no connection {connection!r}")
        return session
