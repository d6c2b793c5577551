"""Figures of reliability, delays, priorities and transactions.

Of a namespace they count only topics that the caller may read. There may be ten thousand of those:
they are looked at a few at a time, and others have their turn in between.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from heapq import nlargest
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace, MillisecondsSinceEpoch, PagedQuery
from braidmq.api.endpoints import Call, operation
from braidmq.api.paging import LIST_MAX, Page, cursor_of, place_in
from braidmq.engine.delay_ends import DelayEnd
from braidmq.engine.lanes import LaneScheduler, lanes_of
from braidmq.engine.later import waiting_in
from braidmq.engine.topics import PartitionView, Topic
from braidmq.engine.totals import SUBSCRIPTION_COUNTS
from braidmq.model.errors import NotFound
from braidmq.security.rights import MONITORING, listing

TOPICS_PER_TURN = 200
"""About a millisecond."""

READABLE = "figures of topics that the caller may read"


class ReliabilityStats(msgspec.Struct, frozen=True):
    """What consumers have now, and what became of messages since the node started."""

    namespace: str
    topics: int
    subscriptions: int
    consumers: int
    ready: int
    in_flight: Annotated[int, Meta(description="Delivered, and not answered")]
    retrying: Annotated[int, Meta(description="Waiting for their next attempt")]
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    rejected: int
    timed_out: Annotated[int, Meta(description="Nobody answered within the visibility timeout")]
    expired: int
    dead_lettered: int
    dead_letters_by_reason: (
        Annotated[dict[str, int], Meta(description="Of the whole namespace, for `monitoring` only")]
        | UnsetType
    ) = UNSET
    dropped_by_reason: (
        Annotated[dict[str, int], Meta(description="Given up with nowhere to go; likewise")]
        | UnsetType
    ) = UNSET


class TopicDelays(msgspec.Struct, frozen=True):
    topic: str
    pending: int
    delivered: int
    cancelled: int
    expired: int


class DelayStats(msgspec.Struct, frozen=True):
    """Messages that wait for their time, by the subscriptions that are to get them; and what became
    of others since the node started."""

    namespace: str
    pending: Annotated[
        int,
        Meta(
            description="Of each partition those of the subscription that waits for most; where"
            " nobody subscribes, those of its log"
        ),
    ]
    delivered: Annotated[int, Meta(description="Their time came, since the node started")]
    cancelled: int
    expired: Annotated[int, Meta(description="Before their time had come")]
    topics: Annotated[
        list[TopicDelays],
        Meta(description="Those where most wait, then most have waited; at most a hundred"),
    ]
    timers: Annotated[int, Meta(description="All timers of the node: retries, time limits, delays")]
    next_timer_ms: MillisecondsSinceEpoch | UnsetType = UNSET


class LaneStats(msgspec.Struct, frozen=True):
    lane: Annotated[str, Meta(description="Of five, or the level where the highest goes first")]
    ready: int
    in_flight: int
    served: Annotated[int, Meta(description="Since the node started, or the lanes changed")]
    served_per_second: Annotated[float, Meta(description="Over the last ten seconds or so")]
    weight: Annotated[int, Meta(description="Of a hundred")] | UnsetType = UNSET
    last_served_ms: MillisecondsSinceEpoch | UnsetType = UNSET


class PartitionLanes(msgspec.Struct, frozen=True):
    topic: str
    subscription: str
    partition: int
    lanes: list[LaneStats]


class PriorityStats(msgspec.Struct, frozen=True):
    partitions: list[PartitionLanes]


class PriorityQuery(PagedQuery, frozen=True):
    topic: Annotated[str, Meta(description="Only this one")] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX, description="Partitions at most")] = 100


class TransactionStats(msgspec.Struct, frozen=True):
    open: int
    open_by_namespace: dict[str, int]
    committed: Annotated[int, Meta(description="Since the node started")]
    aborted: int
    producers: Annotated[int, Meta(description="Idempotent producers that are known")]
    oldest_age_ms: int | UnsetType = UNSET
    records: Annotated[int, Meta(description="Messages published in open ones")] = 0


class Statistics:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/reliability/stats",
        right=listing(READABLE),
        tag="statistics",
        errors=(NotFound,),
    )
    async def reliability_stats(self, call: Call, query: InNamespace) -> ReliabilityStats:
        """Say what is in flight and being retried, and what became of messages.

        Counters of subscriptions that are deleted are not in it: those of `/metrics` have them.
        """
        counts: Counter[str] = Counter()
        async for topic in self._readable(call):
            counts["topics"] += 1
            for each in topic.subscriptions.values():
                counts["subscriptions"] += 1
                counts["consumers"] += len(each.consumers)
                for view in each.views:
                    counts["ready"] += view.state.ready
                    counts["in_flight"] += view.state.in_flight
                    counts["retrying"] += view.state.waiting
                for name in SUBSCRIPTION_COUNTS:
                    counts[name] += getattr(each, name)
        counted = ReliabilityStats.__struct_fields__[1:-2]
        found = msgspec.convert(
            {"namespace": query.namespace} | {name: counts[name] for name in counted},
            ReliabilityStats,
        )
        if not call.user.may_monitor:
            return found
        totals = self._context.node_loop.view.state.totals.of(query.namespace)
        return msgspec.structs.replace(
            found,
            dead_letters_by_reason=dict(totals.dead_lettered),
            dropped_by_reason=dict(totals.dropped),
        )

    @operation(
        "GET", "/v1/delay/stats", right=listing(READABLE), tag="statistics", errors=(NotFound,)
    )
    async def delay_stats(self, call: Call, query: InNamespace) -> DelayStats:
        """Say how many messages wait for their time and where, and what became of others.

        What was counted in topics that are deleted is not in it: `braid_delays_ended_total` of
        `/metrics` has that.
        """
        topics: list[TopicDelays] = []
        ends = self._context.engine().delay_ends
        async for topic in self._readable(call):
            found = waiting_in(topic)
            ended = ends.counts(topic)
            if found or ended:
                counts = (ended[each] for each in DelayEnd)
                topics.append(TopicDelays(topic.name, found, *counts))
        state = self._context.node_loop.view.state
        due_ms = state.wheel.next_due_ms()
        return DelayStats(
            query.namespace,
            sum(each.pending for each in topics),
            sum(each.delivered for each in topics),
            sum(each.cancelled for each in topics),
            sum(each.expired for each in topics),
            nlargest(100, topics, key=_delays_of),
            len(state.wheel),
            UNSET if due_ms is None else state.wall_ms(due_ms),
        )

    @operation(
        "GET",
        "/v1/priority/stats",
        right=listing(READABLE + ", those with priorities"),
        tag="statistics",
        errors=(NotFound,),
    )
    async def priority_stats(self, call: Call, query: PriorityQuery) -> PriorityStats | Page:
        """Say of each lane of each partition what is ready and in flight, and how it is served.

        By topic, subscription and partition.
        """
        after = place_in(query.cursor, tuple[str, str, int], ("", "", -1))
        if query.topic is not UNSET:
            topic = self._context.engine().state.topics.get((query.namespace, query.topic))
            topics = [topic] if topic is not None and call.grants.may_read(topic.name) else []
        else:
            topics = [each async for each in self._readable(call)]
        found: list[PartitionLanes] = []
        for topic in sorted(topics, key=lambda each: each.name):
            if topic.lane_of is None or topic.name < after[0]:
                continue
            for name, subscription in sorted(topic.subscriptions.items()):
                for view in subscription.views:
                    if (topic.name, name, view.partition.number) <= after or view.lanes is None:
                        continue
                    if len(found) == query.limit:
                        last = found[-1]
                        place = last.topic, last.subscription, last.partition
                        return Page(PriorityStats(found), cursor_of(place))
                    lanes = self._lanes(view, view.lanes)
                    found.append(PartitionLanes(topic.name, name, view.partition.number, lanes))
            await asyncio.sleep(0)
        return PriorityStats(found)

    def _lanes(self, view: PartitionView, lanes: LaneScheduler) -> list[LaneStats]:
        state = self._context.node_loop.view.state
        return [
            LaneStats(
                each.name,
                each.ready,
                each.in_flight,
                each.served,
                round(each.per_second, 1),
                UNSET if each.weight is None else each.weight,
                UNSET if each.last_served_ms is None else state.wall_ms(each.last_served_ms),
            )
            for each in lanes_of(view.state, lanes, self._context.now_ms)
        ]

    @operation("GET", "/v1/transactions/stats", right=MONITORING, tag="statistics")
    async def transaction_stats(self, call: Call) -> TransactionStats:
        """Say how many transactions are open, were committed and aborted, on the whole node."""
        coordinator, now_ms = self._context.engine().transactions, self._context.now_ms
        open_ones = coordinator.transactions()
        started = [each.begun.started_ms for each in open_ones]
        return TransactionStats(
            len(open_ones),
            dict(Counter(each.begun.namespace for each in open_ones)),
            coordinator.committed,
            coordinator.aborted,
            coordinator.producer_count,
            now_ms - min(started) if started else UNSET,
            sum(each.records for each in open_ones),
        )

    async def _readable(self, call: Call) -> AsyncIterator[Topic]:
        """Topics of the namespace that the caller may read, a few a turn."""
        grants = call.grants
        topics = self._context.engine().state.topics_of(grants.namespace)
        for number, topic in enumerate(topics):
            if number % TOPICS_PER_TURN == TOPICS_PER_TURN - 1:
                await asyncio.sleep(0)
            if not topic.deleted and grants.may_read(topic.name):
                yield topic


def _delays_of(topic: TopicDelays) -> tuple[int, int]:
    return topic.pending, topic.delivered + topic.cancelled + topic.expired
