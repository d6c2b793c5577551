"""Who consumes what: consumers of a topic with their clients, MQTT's sessions and filters, retained
messages, and connections that are over."""

import asyncio
from heapq import nsmallest
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace, MillisecondsSinceEpoch, PagedQuery
from braidmq.api.endpoints import Call, operation
from braidmq.api.messages import Message, show
from braidmq.api.paging import LIST_MAX, Page, cursor_of, first_of, place_in
from braidmq.engine.errors import UnknownTopic
from braidmq.engine.topics import UNLIMITED, Consumer, Subscription
from braidmq.gateways.mqtt.lists import MqttFilter, MqttLists, MqttSessionInfo
from braidmq.model.errors import BadRequest, NotFound
from braidmq.runtime.sessions import HISTORY_MAX, ClientInfo, OfClient, PastConnection
from braidmq.security.rights import listing, owner, read
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.text import check_filter

STEPS_PER_TURN = 500
"""About a millisecond of a walk through retained messages, or topics."""

OWN = "the caller's own; with `monitoring` everybody's"


class UnknownSession(NotFound):
    code = "unknown-session"


class NothingRetained(NotFound):
    code = "nothing-retained"


class ListQuery(PagedQuery, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100


class ConsumerInfo(msgspec.Struct, frozen=True):
    id: int
    topic: str
    subscription: str
    protocol: Annotated[str, Meta(description="amqp, mqtt, http, or internal for the node's own")]
    in_flight: int
    credit: (
        Annotated[int, Meta(description="Messages it may still be given; not there: any number")]
        | UnsetType
    )
    prefetch: (
        Annotated[
            int,
            Meta(
                description="Unanswered messages it may have: what it asked for, or less by its"
                " topic's `consumer_prefetch_max`; not there: any number"
            ),
        ]
        | UnsetType
    )
    auto_ack: bool
    priority: int
    active: Annotated[bool, Meta(description="False for those that stand by, or are paused")]
    client: (
        Annotated[
            ClientInfo,
            Meta(description="Only of one's own, unless one has the tag `monitoring`"),
        ]
        | UnsetType
    ) = UNSET


class RetainedQuery(ListQuery, frozen=True):
    filter: Annotated[str, Meta(description="Only topics that it matches", min_length=1)] = "#"


class RetainedInfo(msgspec.Struct, frozen=True):
    topic: str
    bytes: Annotated[int, Meta(description="Of its payload")]
    timestamp_ms: MillisecondsSinceEpoch
    expires_at_ms: MillisecondsSinceEpoch | UnsetType = UNSET


class HistoryQuery(PagedQuery, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=HISTORY_MAX)] = 100


class Clients:
    def __init__(self, context: ApiContext, mqtt: MqttLists | None = None) -> None:
        self._context = context
        self._mqtt = mqtt

    # --- consumers ---

    @operation(
        "GET",
        "/v1/topics/{topic}/consumers",
        right=read("topic").noting("clients of others are shown with the tag `monitoring`"),
        tag="topics",
        errors=(UnknownTopic,),
    )
    async def list_consumers(
        self, call: Call, topic: str, query: ListQuery
    ) -> list[ConsumerInfo] | Page:
        """List who consumes from a topic or queue, with what they have and may still get.

        By id.
        """
        found = self._context.topic(call, topic)
        (after,) = place_in(query.cursor, tuple[int], (0,))
        later = sorted(
            (
                each
                for subscription in found.subscriptions.values()
                for each in subscription.consumers
                if each.id > after
            ),
            key=lambda each: each.id,
        )
        consumers, more = first_of(later, query.limit)
        members = self._members(consumers)
        return Page(
            [self._consumer(call, each, members[each.subscription]) for each in consumers],
            cursor_of([consumers[-1].id]) if more else "",
        )

    def _consumer(
        self, call: Call, consumer: Consumer, members: dict[Consumer, tuple[str, str]]
    ) -> ConsumerInfo:
        subscription, room = consumer.subscription, max(consumer.room, 0)
        client = _client_of(consumer, members)
        shown = client is not None and (call.user.may_monitor or client.user == call.user.name)
        return ConsumerInfo(
            consumer.id,
            subscription.topic.name,
            subscription.name,
            "internal" if client is None else client.protocol,
            consumer.in_flight,
            UNSET if room > UNLIMITED // 2 else room,
            UNSET if consumer.prefetch > UNLIMITED // 2 else consumer.prefetch,
            consumer.auto_ack,
            consumer.priority,
            not consumer.paused and _is_served(subscription, consumer),
            client if client is not None and shown else UNSET,
        )

    @operation(
        "GET",
        "/v1/consumers",
        right=listing("consumers of topics that the caller may read").noting(
            "clients of others are shown with the tag `monitoring`"
        ),
        tag="topics",
        errors=(NotFound,),
    )
    async def list_all_consumers(self, call: Call, query: ListQuery) -> list[ConsumerInfo] | Page:
        """List who consumes from any topic of a namespace. By id."""
        (after,) = place_in(query.cursor, tuple[int], (0,))
        later: list[Consumer] = []
        for number, topic in enumerate(self._context.engine().state.topics_of(query.namespace)):
            if number % STEPS_PER_TURN == STEPS_PER_TURN - 1:
                await asyncio.sleep(0)
            if not topic.deleted and call.grants.may_read(topic.name):
                for subscription in topic.subscriptions.values():
                    later += [each for each in subscription.consumers if each.id > after]
        there = self._context.engine().state.consumers
        now = (each for each in later if each.id in there)
        found = nsmallest(query.limit + 1, now, key=lambda each: each.id)
        consumers, more = first_of(found, query.limit)
        members = self._members(consumers)
        return Page(
            [self._consumer(call, each, members[each.subscription]) for each in consumers],
            cursor_of([consumers[-1].id]) if more else "",
        )

    def _members(
        self, consumers: list[Consumer]
    ) -> dict[Subscription, dict[Consumer, tuple[str, str]]]:
        return {
            subscription: self._context.engine().groups.members_at(subscription)
            for subscription in {each.subscription for each in consumers}
        }

    # --- MQTT ---

    @operation("GET", "/v1/mqtt/sessions", right=listing(OWN), tag="mqtt", errors=(NotFound,))
    async def list_sessions(self, call: Call, query: ListQuery) -> list[MqttSessionInfo] | Page:
        """List the sessions of MQTT clients, connected or not, by client id."""
        (after,) = place_in(query.cursor, tuple[str], ("",))
        if self._mqtt is None:
            return []
        seen = (
            each
            for each in self._mqtt.sessions(query.namespace)
            if each.client_id > after and (call.user.may_monitor or each.user == call.user.name)
        )
        found, more = first_of(list(islice(seen, query.limit + 1)), query.limit)
        return Page(
            [self._mqtt.describe(each) for each in found],
            cursor_of([found[-1].client_id]) if more else "",
        )

    @operation(
        "GET",
        "/v1/mqtt/sessions/{session}/filters",
        right=owner("session"),
        tag="mqtt",
        errors=(UnknownSession,),
    )
    async def list_filters(
        self, call: Call, session: str, query: ListQuery
    ) -> list[MqttFilter] | Page:
        """List what a session subscribed to, by filter. `session` is its client id."""
        found = None if self._mqtt is None else self._mqtt.find(query.namespace, session)
        if found is None or self._mqtt is None:
            raise UnknownSession(f"no MQTT client {session!r} has a session")
        (after,) = place_in(query.cursor, tuple[str], ("",))
        later = (each for each in self._mqtt.filters(found) if each.filter > after)
        filters, more = first_of(list(islice(later, query.limit + 1)), query.limit)
        return Page(filters, cursor_of([filters[-1].filter]) if more else "")

    @operation(
        "GET",
        "/v1/mqtt/retained",
        right=listing("retained messages of topics that the caller may read"),
        tag="mqtt",
        errors=(NotFound,),
    )
    async def list_retained(self, call: Call, query: RetainedQuery) -> list[RetainedInfo] | Page:
        """List retained messages that a filter matches, in the order of their topics' levels.

        As in a subscription, wildcards at the beginning do not match `$…`.
        """
        (after,) = place_in(query.cursor, tuple[str], ("",))
        try:
            check_filter(query.filter)
        except MqttError as error:
            raise BadRequest(f"{query.filter!r} is not an MQTT filter: {error}") from None
        found: list[RetainedInfo] = []
        if self._mqtt is None:
            return found
        topics = self._mqtt.retained_topics(query.namespace, query.filter, after)
        for number, topic in enumerate(topics):
            if number % STEPS_PER_TURN == STEPS_PER_TURN - 1:
                await asyncio.sleep(0)
            if topic is None or not call.grants.may_read(topic):
                continue
            self._context.engine()  # one that has expired is forgotten on the way
            record = self._mqtt.retained(query.namespace, topic, self._context.now_ms)
            if record is None:
                continue
            if len(found) == query.limit:
                return Page(found, cursor_of([found[-1].topic]))
            size = len(record.value or b"")
            expires = record.expires_at_ms or UNSET
            found.append(RetainedInfo(topic, size, record.timestamp_ms, expires))
        return found

    @operation(
        "GET",
        "/v1/mqtt/retained/{topic}",
        right=read("topic"),
        tag="mqtt",
        errors=(NothingRetained,),
    )
    async def describe_retained(self, call: Call, topic: str, query: InNamespace) -> Message:
        """Give the retained message of a topic."""
        self._context.engine()
        record = None
        if self._mqtt is not None:
            record = self._mqtt.retained(query.namespace, topic, self._context.now_ms)
        if record is None:
            raise NothingRetained(f"there is no retained message for {topic!r}")
        return show(topic, 0, record)

    # --- connections that are over ---

    @operation(
        "GET",
        "/v1/connections/history",
        right=listing(OWN),
        tag="node",
        errors=(NotFound,),
    )
    async def list_past_connections(
        self, call: Call, query: HistoryQuery
    ) -> list[PastConnection] | Page:
        """List connections to a namespace that are over, the last first, and why they ended.

        The node remembers the last thousand until it is restarted.
        """
        (before,) = place_in(query.cursor, tuple[int | None], (None,))
        seen = (
            each
            for each in self._context.node_loop.sessions.history(before)
            if each.namespace == query.namespace
            and (call.user.may_monitor or each.user == call.user.name)
        )
        found, more = first_of(list(islice(seen, query.limit + 1)), query.limit)
        return Page(found, cursor_of([found[-1].number]) if more else "")


def _client_of(consumer: Consumer, members: dict[Consumer, tuple[str, str]]) -> ClientInfo | None:
    """None for the node's own."""
    receiver = consumer.receiver
    if isinstance(receiver, OfClient):
        return receiver.client_info()
    if consumer in members:
        member, user = members[consumer]
        return ClientInfo("http", user, member)
    return None


def _is_served(subscription: Subscription, consumer: Consumer) -> bool:
    return subscription.active is None or subscription.active is consumer
