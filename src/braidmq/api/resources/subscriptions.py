"""Subscriptions: made, described, rewound; and consuming from one without being a member.

Whoever receives a message answers for it with its receipt, in time: a message nobody answered for
comes again after its visibility timeout.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace, ListInNamespace, PagedQuery
from braidmq.api.endpoints import Answer, Body, Call, operation
from braidmq.api.long_polls import Waiting
from braidmq.api.messages import Message, Partition, show
from braidmq.api.paging import (
    BEGINNING,
    OffsetPlace,
    Page,
    cursor_of,
    first_of,
    page_of,
    place_in,
)
from braidmq.engine.ages import in_flight_age_ms, ready_age_ms
from braidmq.engine.errors import (
    BadPosition,
    TooManyInFlight,
    UnknownPartition,
    UnknownSubscription,
    UnknownTopic,
    WrongMode,
)
from braidmq.engine.policy import HOUR_MS, SECOND_MS
from braidmq.engine.receipts import Receipts
from braidmq.engine.states import State
from braidmq.engine.topics import (
    QUEUE_SUBSCRIPTION,
    Consumer,
    Credit,
    Delivery,
    Mode,
    Subscription,
    mode_by_ordering,
)
from braidmq.model.errors import NotFound
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.security.permissions import Grants
from braidmq.security.records import check_name
from braidmq.security.rights import listing, read

IN_FLIGHT_MAX = 10_000
OFFSET_MAX = (1 << 63) - 1

RECEIVE_MAX = 1000
"""As many as one consumer may have in flight (catalogue row D7)."""
AWAITED_MAX = 10
"""Of ten thousand partitions each may wait for all others: a hundred million numbers."""

VISIBILITY_MS = 30 * SECOND_MS
"""For queues that have none: without a connection nobody notices that a receiver died."""

VISIBILITY_MS_MAX = 12 * 3600 * SECOND_MS

Position = Annotated[
    str,
    Meta(
        description="`earliest`, `latest`, an offset, or `@` and milliseconds since 1970",
        examples=["earliest", "latest", "1200", "@1735689600000"],
    ),
]
Limit = Annotated[int, Meta(ge=1, le=RECEIVE_MAX, description="Messages at most")]
WaitMs = Annotated[
    int,
    Meta(
        ge=0,
        le=HOUR_MS,
        description="How long to wait while there is no message. Unless it says: as long as the"
        " node lets anyone, `http.poll_wait_ms`, 30 seconds. More than that is refused",
    ),
]
VisibilityMs = Annotated[
    int,
    Meta(ge=1, le=VISIBILITY_MS_MAX, description="How long there is to answer for the messages"),
]


Isolation = Annotated[
    Literal["read_committed", "read_uncommitted"],
    Meta(description="Whether messages of open transactions are there; of aborted ones, never"),
]


class NewSubscription(Body, frozen=True):
    mode: (
        Annotated[
            Literal["shared", "single-active", "exclusive", "key-ordered"],
            Meta(
                description="Who gets which message. Unless it says: `shared`, and"
                " `single-active` where the topic's `ordering` is `strict`. `key-ordered` keeps"
                " the order of each key among several who receive"
            ),
        ]
        | UnsetType
    ) = UNSET
    start: Position = "earliest"
    isolation: Isolation = "read_committed"


class SeekBody(Body, frozen=True):
    to: Position
    partition: Annotated[Partition, Meta(description="Only this one")] | UnsetType = UNSET


class ReceiveBody(Body, frozen=True):
    limit: Limit = 1
    wait_ms: WaitMs | UnsetType = UNSET
    visibility_ms: VisibilityMs | UnsetType = UNSET
    auto_ack: Annotated[
        bool, Meta(description="They count as acknowledged at once: lost if the answer is")
    ] = False


class PartitionLag(msgspec.Struct, frozen=True):
    partition: int
    committed: Annotated[int, Meta(description="All before this offset is settled")]
    end: Annotated[int, Meta(description="The offset the next message gets")]
    lag: Annotated[int, Meta(description="Unsettled messages")]
    in_flight: int
    held: Annotated[
        int,
        Meta(description="Messages that wait for others of their keys, from before a resize"),
    ] = 0
    waits_for: Annotated[
        list[int], Meta(description="Partitions in which those are, ten at most")
    ] = []


class SubscriptionInfo(msgspec.Struct, frozen=True):
    namespace: str
    topic: str
    name: str
    mode: str
    durable: bool
    consumers: int
    waiting: Annotated[int, Meta(description="Requests that wait for a message")]
    lag: Annotated[int, Meta(description="Unsettled messages")]
    ready: int
    in_flight: int
    oldest_ready_ms: Annotated[
        int | None,
        Meta(description="How long the oldest message has waited for a consumer; null: none does"),
    ]
    oldest_in_flight_ms: Annotated[
        int | None,
        Meta(
            description="How long the oldest delivery has not been answered, to a tenth of a"
            " second; null: there is none, or it was before the node was restarted"
        ),
    ]
    delivered: Annotated[int, Meta(description="Since the node started")]
    redelivered: int
    acked: int
    expired: int
    dead_lettered: int
    partitions: list[PartitionLag]


class InFlightQuery(PagedQuery, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX)] = 1000


class InFlight(msgspec.Struct, frozen=True):
    """A message that somebody has and has not answered for."""

    partition: int
    offset: int
    attempts: Annotated[int, Meta(description="Deliveries so far, this one included")]
    consumer: int
    deadline_ms: Annotated[int, Meta(description="Then it comes again; 0: never")]


class Received(msgspec.Struct, frozen=True):
    messages: list[Message]


class Subscriptions:
    def __init__(self, context: ApiContext, waiting: Waiting) -> None:
        self._context = context
        self._waiting = waiting
        self._consumers: dict[Subscription, Consumer] = {}
        """One for all who receive without being anybody: its deliveries are told apart by
        receipts."""

    @operation(
        "GET",
        "/v1/subscriptions",
        right=listing("subscriptions of topics that the caller may read"),
        tag="subscriptions",
        errors=(NotFound,),
    )
    async def list_subscriptions(
        self, call: Call, query: ListInNamespace
    ) -> list[SubscriptionInfo] | Page:
        """List the subscriptions of all topics the caller may read, by topic and name."""
        topics = self._context.engine().state.topics_of(query.namespace)
        every = (each for topic in topics for each in list(topic.subscriptions.values()))
        return await self._page(every, query, call.grants)

    @operation(
        "GET",
        "/v1/topics/{topic}/subscriptions",
        right=read("topic"),
        tag="subscriptions",
        errors=(UnknownTopic,),
    )
    async def list_subscriptions_of_topic(
        self, call: Call, topic: str, query: ListInNamespace
    ) -> list[SubscriptionInfo] | Page:
        """List the subscriptions of a topic, by name."""
        found = self._context.topic(call, topic)
        return await self._page(list(found.subscriptions.values()), query, call.grants)

    async def _page(
        self, every: Iterable[Subscription], query: ListInNamespace, grants: Grants
    ) -> Page:
        found, cursor = await page_of(
            every,
            query,
            lambda each: (each.topic.name, each.name),
            tuple[str, str],
            keep=lambda each: (
                not each.topic.deleted
                and each.topic.subscriptions.get(each.name) is each
                and grants.may_read(each.topic.name)
            ),
        )
        now_ms = self._context.now_ms
        return Page([described(each, self._waiting, now_ms) for each in found], cursor)

    @operation(
        "GET",
        "/v1/topics/{topic}/subscriptions/{subscription}",
        right=read("topic"),
        tag="subscriptions",
        errors=(UnknownTopic, UnknownSubscription),
    )
    async def describe_subscription(
        self, call: Call, topic: str, subscription: str, query: InNamespace
    ) -> SubscriptionInfo:
        """Describe a subscription, with its lag."""
        found = self._context.subscription(call, topic, subscription)
        return described(found, self._waiting, self._context.now_ms)

    @operation(
        "PUT",
        "/v1/topics/{topic}/subscriptions/{subscription}",
        right=read("topic"),
        tag="subscriptions",
        statuses=(201, 200),
        errors=(UnknownTopic, BadPosition, WrongMode, RateExceeded),
        examples=({}, {"start": "latest"}),
    )
    async def create_subscription(
        self, call: Call, topic: str, subscription: str, query: InNamespace, body: NewSubscription
    ) -> SubscriptionInfo | Answer:
        """Make a subscription.

        One that is there with this mode is left as it is, wherever it stands.
        """
        check_name(subscription, "subscription name")
        await self._context.may_begin(call, query.namespace)
        found = self._context.topic(call, topic)
        known = found.subscriptions.get(subscription)
        if known is not None:
            if body.mode not in (UNSET, known.mode):
                raise WrongMode(f"subscription {subscription!r} of topic {topic!r} is {known.mode}")
            return Answer(described(known, self._waiting, self._context.now_ms), 200)
        made = self._context.engine().subscriptions.subscribe(
            found,
            subscription,
            now_ms=self._context.now_ms,
            mode=(
                mode_by_ordering(found.policy.ordering) if body.mode is UNSET else Mode(body.mode)
            ),
            start=position(body.start),
            uncommitted=body.isolation == "read_uncommitted",
        )
        await self._context.done()
        return described(made, self._waiting, self._context.now_ms)

    @operation(
        "DELETE",
        "/v1/topics/{topic}/subscriptions/{subscription}",
        right=read("topic").noting("configure, too, for a queue's own subscription"),
        tag="subscriptions",
        statuses=(204,),
        errors=(UnknownTopic, UnknownSubscription, WrongMode),
    )
    async def delete_subscription(
        self, call: Call, topic: str, subscription: str, query: InNamespace
    ) -> None:
        """Delete a subscription, with its place in the topic."""
        found = self._context.subscription(call, topic, subscription)
        if found.name.partition(".")[0] == QUEUE_SUBSCRIPTION:
            call.grants.need_configure(topic)
        if found.mode is Mode.ASSIGNED and found.consumers:
            raise WrongMode(
                f"subscription {subscription!r} of topic {topic!r} belongs to a group with members",
                remedy="Let them leave, and delete the group",
            )
        self._context.engine().subscriptions.delete(found)
        await self._context.done()

    @operation(
        "POST",
        "/v1/topics/{topic}/subscriptions/{subscription}/seek",
        right=read("topic"),
        tag="subscriptions",
        errors=(UnknownTopic, UnknownSubscription, UnknownPartition, BadPosition),
        examples=({"to": "earliest"}, {"to": "@1735689600000"}, {"to": "1200", "partition": 3}),
    )
    async def seek_subscription(
        self, call: Call, topic: str, subscription: str, query: InNamespace, body: SeekBody
    ) -> SubscriptionInfo:
        """Go back, or on, in all partitions or in one.

        Receipts given out before are stale from then on. Other subscriptions do not notice.
        """
        found = self._context.subscription(call, topic, subscription)
        self._context.engine().offsets.rewind(
            found,
            position(body.to),
            now_ms=self._context.now_ms,
            partition=None if body.partition is UNSET else body.partition,
        )
        await self._context.done()
        return described(found, self._waiting, self._context.now_ms)

    @operation(
        "POST",
        "/v1/topics/{topic}/subscriptions/{subscription}/receive",
        right=read("topic"),
        tag="subscriptions",
        errors=(UnknownTopic, UnknownSubscription, WrongMode, TooManyInFlight),
        examples=({"limit": 10, "wait_ms": 20_000},),
        traffic=True,
    )
    async def receive(
        self, call: Call, topic: str, subscription: str, query: InNamespace, body: ReceiveBody
    ) -> Received:
        """Receive messages, and wait for some if there are none.

        Each comes with a receipt, for `/v1/receipts`. The subscription of an AMQP queue is `queue`.
        All who receive from it may have `in_flight_max` of the topic unanswered; then it is 429.
        """
        found = self._context.subscription(call, topic, subscription)
        if found.mode is Mode.ASSIGNED:
            raise WrongMode(
                f"subscription {subscription!r} of topic {topic!r} belongs to a group",
                remedy="Join the group and poll as one of its members",
            )
        if self._consumer(found).room <= 0:
            raise TooManyInFlight(
                f"{found.in_flight} messages of subscription {subscription!r} of topic {topic!r}"
                " are unanswered"
            )

        await self._context.may_be_given(call, query.namespace)
        wait_ms = self._waiting.wanted_ms(body.wait_ms)

        def take() -> list[Message]:
            call.require_still(lambda: call.grants.may_read(topic))
            engine = self._context.engine()
            engine.state.subscription(engine.state.topic(query.namespace, topic), subscription)
            consumer = self._consumer(found)
            consumer.auto_ack = body.auto_ack
            consumer.visibility_ms = visibility_of(found, body.visibility_ms)
            found_now = engine.dispatching.pull(consumer, body.limit, now_ms=self._context.now_ms)
            self._context.delivered(found_now)
            return taken(engine.receipts, found_now)

        left_s = self._context.access.left_s(call.caller)
        messages = await self._waiting.wait(call.request, [found], take, wait_ms, left_s=left_s)
        if messages:
            # A deadline that a crash must not forget is on disk before anybody relies on it.
            await self._context.done()
        return Received(messages)

    @operation(
        "GET",
        "/v1/topics/{topic}/subscriptions/{subscription}/in-flight",
        right=read("topic"),
        tag="subscriptions",
        errors=(UnknownTopic, UnknownSubscription),
    )
    async def list_in_flight(
        self, call: Call, topic: str, subscription: str, query: InFlightQuery
    ) -> list[InFlight] | Page:
        """List messages at consumers, by partition and offset."""
        found = self._context.subscription(call, topic, subscription)
        partition, after = place_in(query.cursor, OffsetPlace, BEGINNING)
        later = islice(in_flight(found, partition, after), query.limit + 1)
        listed, more = first_of(list(later), query.limit)
        return Page(listed, cursor_of([listed[-1].partition, listed[-1].offset]) if more else "")

    def _consumer(self, subscription: Subscription) -> Consumer:
        consumer = self._consumers.get(subscription)
        engine = self._context.engine()
        if consumer is None or consumer.id not in engine.state.consumers:
            self._drop_orphans()
            consumer = self._consumers[subscription] = engine.consumers.attach(
                subscription, now_ms=self._context.now_ms, credits=[Credit()], passive=True
            )
        consumer.credits[0].limit = subscription.topic.policy.in_flight_max
        return consumer

    def _drop_orphans(self) -> None:
        """Consumers whose subscription is gone went with it."""
        known = self._context.engine().state.consumers
        for subscription, consumer in list(self._consumers.items()):
            if consumer.id not in known:
                del self._consumers[subscription]


def in_flight(subscription: Subscription, partition: int, after: int) -> Iterator[InFlight]:
    for view in subscription.views[partition:]:
        first = after + 1 if view.partition.number == partition else 0
        for start, stop in view.state.in_state(State.IN_FLIGHT):
            for offset in range(max(start, first), stop):
                found = view.state.look(offset)
                if found is not None:
                    _, attempts, consumer, _, deadline_ms = found
                    yield InFlight(view.partition.number, offset, attempts, consumer, deadline_ms)


def position(text: str) -> int | str:
    """As the engine wants it; what it can't be is the engine's to say."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else text


def visibility_of(subscription: Subscription, wanted: int | UnsetType) -> int:
    if wanted is not UNSET:
        return wanted
    return subscription.topic.policy.visibility_ms or VISIBILITY_MS


def taken(receipts: Receipts, deliveries: list[Delivery]) -> list[Message]:
    """Deliveries as messages with receipts. At once: a receipt holds for the delivery as it is."""
    return [
        show(
            delivery.view.partition.topic.name,
            delivery.view.partition.number,
            delivery.batch.record(index),
            "" if delivery.consumer.auto_ack else str(receipt),
            delivery.attempts,
        )
        for delivery in deliveries
        for index, receipt in zip(
            range(delivery.first_index, delivery.stop_index), receipts.of(delivery), strict=True
        )
    ]


def described(subscription: Subscription, waiting: Waiting, now_ms: int) -> SubscriptionInfo:
    barriers = subscription.barriers
    awaited = barriers.awaited(AWAITED_MAX) if barriers is not None else []
    return SubscriptionInfo(
        namespace=subscription.topic.namespace,
        topic=subscription.topic.name,
        name=subscription.name,
        mode=str(subscription.mode),
        durable=subscription.durable,
        consumers=len(subscription.consumers),
        waiting=waiting.count(subscription),
        lag=subscription.depth,
        ready=subscription.ready,
        in_flight=subscription.in_flight,
        oldest_ready_ms=ready_age_ms(subscription, now_ms),
        oldest_in_flight_ms=in_flight_age_ms(subscription, now_ms),
        delivered=subscription.delivered,
        redelivered=subscription.redelivered,
        acked=subscription.acked,
        expired=subscription.expired,
        dead_lettered=subscription.dead_lettered,
        partitions=[
            PartitionLag(
                view.partition.number,
                view.state.settled.floor,
                view.state.end,
                view.state.depth,
                view.state.in_flight,
                view.state.held,
                awaited[view.partition.number] if awaited and view.state.held else [],
            )
            for view in subscription.views
        ],
    )
