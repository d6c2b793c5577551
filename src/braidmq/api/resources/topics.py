"""Topics: made, described, changed, emptied, deleted."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import (
    ApiContext,
    InNamespace,
    ListInNamespace,
    MillisecondsSinceEpoch,
    require_storable,
)
from braidmq.api.endpoints import (
    Answer,
    Body,
    Call,
    operation,
    refuse_if_only_new,
)
from braidmq.api.paging import Page, cursor_of, place_in
from braidmq.api.problems import PreconditionFailed
from braidmq.engine.ages import oldest
from braidmq.engine.errors import LimitReached, TooManyResizes, TopicExists, UnknownTopic
from braidmq.engine.keeping import kept_of
from braidmq.engine.policy import IllegalPolicy, TopicPolicy, merge
from braidmq.engine.references import names_target
from braidmq.engine.topics import Topic
from braidmq.model.errors import NotFound
from braidmq.security.records import check_name
from braidmq.security.rights import TARGETS, any_right, configure, listing, read


class Settings(Body, frozen=True):
    """Settings of a topic; what is not given is the template's, or the default."""

    settings: Annotated[
        dict[str, Any],
        Meta(description="Any of TopicPolicy", examples=[{"partitions": 6, "priority": "lanes"}]),
    ] = msgspec.field(default_factory=dict)


class TopicsQuery(ListInNamespace, frozen=True):
    prefix: Annotated[str, Meta(description="Only names that begin so")] = ""


class TopicSummary(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    partitions: int
    durable: bool
    subscriptions: int
    consumers: int
    depth: Annotated[int, Meta(description="Unsettled messages of the fullest subscription")]
    depth_bytes: int
    published: Annotated[int, Meta(description="Messages since the node started")]


class PartitionInfo(msgspec.Struct, frozen=True):
    partition: int
    start_offset: Annotated[int, Meta(description="The first offset it still has")]
    next_offset: Annotated[int, Meta(description="What the next message gets")]
    messages: Annotated[int, Meta(description="What its log still has, settled or not")]
    bytes: Annotated[int, Meta(description="What they take, about")]
    closing: Annotated[
        bool,
        Meta(description="It was taken away: it takes no more messages, and is read to its end"),
    ] = False


class TopicInfo(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    durable: bool
    created_ms: MillisecondsSinceEpoch
    published: int
    depth: int
    depth_bytes: int
    oldest_ready_ms: Annotated[
        int | None,
        Meta(
            description="How long the oldest message of any subscription has waited for a consumer;"
            " null: none does"
        ),
    ]
    oldest_in_flight_ms: Annotated[
        int | None,
        Meta(description="How long the oldest delivery has not been answered; null: there is none"),
    ]
    messages: Annotated[
        int, Meta(description="What its partitions still have, settled or not; after a restart too")
    ]
    bytes: Annotated[int, Meta(description="What they take, about")]
    kept: Annotated[
        int, Meta(description="Acknowledged messages that a queue keeps: a seek replays them")
    ]
    kept_bytes: Annotated[int, Meta(description="What those take, about")]
    settings: Annotated[dict[str, Any], Meta(description="Those it was given")]
    policy: Annotated[TopicPolicy, Meta(description="What holds, templates and defaults included")]
    partitions: list[PartitionInfo]
    subscriptions: list[str]
    disabled: (
        Annotated[
            list[str],
            Meta(description="Settings that do not hold: who made them lost the right to a target"),
        ]
        | UnsetType
    ) = UNSET


class Purged(msgspec.Struct, frozen=True):
    messages: int


class Topics:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/topics",
        right=listing("topics that the caller may read, write or configure"),
        tag="topics",
        errors=(NotFound,),
    )
    async def list_topics(self, call: Call, query: TopicsQuery) -> list[TopicSummary] | Page:
        """List topics.

        By name; only those that the caller may read, write or configure.
        """
        grants = call.grants
        (after,) = place_in(query.cursor, tuple[str], ("",))
        names = sorted(
            topic.name
            for topic in self._context.engine().state.topics_of(query.namespace)
            if topic.name > after and topic.name.startswith(query.prefix)
        )
        seen: list[TopicSummary] = []
        for name in names:
            if not grants.sees(name):
                continue
            if len(seen) == query.limit:
                return Page(seen, cursor_of([seen[-1].name]))
            seen.append(summary(self._context.engine().state.topic(query.namespace, name)))
        return Page(seen)

    @operation(
        "GET", "/v1/topics/{topic}", right=any_right("topic"), tag="topics", errors=(UnknownTopic,)
    )
    async def describe_topic(self, call: Call, topic: str, query: InNamespace) -> TopicInfo:
        """Describe a topic.

        Its settings, partitions and counters.
        """
        return self._described(self._context.topic(call, topic), call)

    @operation(
        "PUT",
        "/v1/topics/{topic}",
        right=configure("topic").noting(TARGETS),
        tag="topics",
        statuses=(201, 200),
        errors=(NotFound, IllegalPolicy, TopicExists, LimitReached, PreconditionFailed),
        examples=({"settings": {"partitions": 6}}, {}),
    )
    async def create_topic(
        self, call: Call, topic: str, query: InNamespace, body: Settings
    ) -> TopicInfo | Answer:
        """Make a topic.

        A topic that has just these settings already is answered with 200, one with others with 409.
        With `If-None-Match: *` any existing topic is answered with 412.
        """
        check_name(topic, "topic name")
        require_storable(body.settings)
        engine = self._context.engine()
        known = engine.state.topics.get((query.namespace, topic))
        if known is not None:
            refuse_if_only_new(call.request, f"topic {topic!r}")
            if known.settings != body.settings:
                raise TopicExists(
                    f"topic {topic!r} already exists with other settings",
                    remedy="Use PATCH to change them",
                )
            engine.references.adopt(known, call.maker)
            return Answer(self._described(known, call), 200)
        self._require_room(query.namespace)
        made = engine.topics.create(
            query.namespace,
            topic,
            body.settings,
            now_ms=self._context.now_ms,
            set_by=call.maker,
        )
        await self._context.done()
        return self._described(made, call)

    def _require_room(self, namespace: str) -> None:
        self._context.node_loop.view.state.quotas.require(namespace, "max_topics")

    @operation(
        "PATCH",
        "/v1/topics/{topic}",
        right=configure("topic").noting(TARGETS),
        tag="topics",
        errors=(UnknownTopic, IllegalPolicy, TooManyResizes),
        examples=({"settings": {"retention": {"time_ms": 86_400_000}}},),
    )
    async def alter_topic(
        self, call: Call, topic: str, query: InNamespace, body: Settings
    ) -> TopicInfo:
        """Change settings of a topic.

        Settings given win over those it has; the others stay. Partitions can be added, never taken
        away.
        """
        found = self._context.topic(call, topic)
        require_storable(body.settings)
        self._context.engine().topics.alter(
            found,
            merge(found.settings, body.settings),
            now_ms=self._context.now_ms,
            set_by=call.maker if names_target(body.settings) else None,
        )
        await self._context.done()
        return self._described(found, call)

    @operation(
        "DELETE",
        "/v1/topics/{topic}",
        right=configure("topic"),
        tag="topics",
        statuses=(204,),
        errors=(UnknownTopic,),
    )
    async def delete_topic(self, call: Call, topic: str, query: InNamespace) -> None:
        """Delete a topic.

        With its messages and subscriptions; its consumers are told.
        """
        found = self._context.topic(call, topic)
        self._context.engine().topics.delete(found)
        await self._context.done()

    @operation(
        "POST",
        "/v1/topics/{topic}/purge",
        right=read("topic"),
        tag="topics",
        errors=(UnknownTopic,),
    )
    async def purge_topic(self, call: Call, topic: str, query: InNamespace) -> Purged:
        """Take out every message that nobody has in flight.

        For all subscriptions; the answer has how many the fullest of them lost.
        """
        found = self._context.topic(call, topic)
        purged = self._context.engine().retention.purge(found)
        await self._context.done()
        return Purged(purged)

    def _described(self, topic: Topic, call: Call) -> TopicInfo:
        policy, settings = topic.policy, topic.settings
        if not call.grants.may_configure(topic.name):
            # An address that alerts are posted to is often all it takes to post there.
            policy, settings = without_webhook(policy), without_webhook_setting(settings)
        kept = [kept_of(each) for each in topic.partitions]
        ready_ms, in_flight_ms = oldest(topic, self._context.now_ms)
        retained = [each.log.retained() for each in topic.partitions]
        return TopicInfo(
            namespace=topic.namespace,
            name=topic.name,
            durable=topic.durable,
            created_ms=topic.created_ms,
            published=topic.published,
            depth=topic.depth,
            depth_bytes=topic.depth_bytes,
            oldest_ready_ms=ready_ms,
            oldest_in_flight_ms=in_flight_ms,
            messages=sum(each[0] for each in retained),
            bytes=sum(each[1] for each in retained),
            kept=sum(each[0] for each in kept),
            kept_bytes=sum(each[1] for each in kept),
            settings=settings,
            policy=policy,
            partitions=[
                PartitionInfo(
                    each.number,
                    each.log.start_offset,
                    each.log.next_offset,
                    *has,
                    each.number >= topic.width,
                )
                for each, has in zip(topic.partitions, retained, strict=True)
            ],
            subscriptions=sorted(topic.subscriptions),
            disabled=UNSET if topic.dead_letter is topic.policy.dead_letter else ["dead_letter"],
        )


def without_webhook(policy: TopicPolicy) -> TopicPolicy:
    hidden = msgspec.structs.replace(policy.dead_letter, alert_webhook=None)
    return msgspec.structs.replace(policy, dead_letter=hidden)


def without_webhook_setting(settings: dict[str, Any]) -> dict[str, Any]:
    dead = settings.get("dead_letter")
    if not isinstance(dead, dict) or "alert_webhook" not in dead:
        return settings
    return settings | {"dead_letter": {k: v for k, v in dead.items() if k != "alert_webhook"}}


def summary(topic: Topic) -> TopicSummary:
    return TopicSummary(
        namespace=topic.namespace,
        name=topic.name,
        partitions=topic.width,
        durable=topic.durable,
        subscriptions=len(topic.subscriptions),
        consumers=sum(len(each.consumers) for each in topic.subscriptions.values()),
        depth=topic.depth,
        depth_bytes=topic.depth_bytes,
        published=topic.published,
    )
