"""Consumer groups: membership, polling, commits.

    join ─► poll, commit, heartbeat … ─► leave

Every poll counts as a heartbeat. What a member was sent before a rebalance took a partition away
from it counts no more: its commits are refused with 409.

Groups whose consumers share messages instead of partitions (AMQP's `x-group`, MQTT's `$queue`,
subscriptions) have no members or generations. They are listed, described, moved and deleted here,
too.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace, ListInNamespace
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.long_polls import Stay, Waiting
from braidmq.api.messages import Message, Partition
from braidmq.api.paging import Page, page_of
from braidmq.api.resources.reading import OFFSET_MAX
from braidmq.api.resources.subscriptions import (
    Limit,
    Position,
    SubscriptionInfo,
    VisibilityMs,
    WaitMs,
    described,
    position,
    taken,
    visibility_of,
)
from braidmq.api.transaction_headers import (
    TRANSACTION_ERRORS,
    TransactionHeaders,
    find_transaction,
)
from braidmq.engine.auto_commit import AUTO_COMMIT_INTERVAL_MS
from braidmq.engine.errors import (
    BadPosition,
    LimitReached,
    UnknownGroup,
    UnknownPartition,
    UnknownSubscription,
    UnknownTopic,
    WrongMode,
)
from braidmq.engine.group_coordinator import Answer as GroupAnswer
from braidmq.engine.group_plans import Strategy
from braidmq.engine.groups import (
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    Group,
    GroupFull,
    Membership,
    NotYourMember,
    StaleGeneration,
    UnknownMember,
)
from braidmq.engine.policy import HOUR_MS
from braidmq.engine.topics import QUEUE_SUBSCRIPTION, Consumer, Mode, Subscription
from braidmq.model.errors import NotFound
from braidmq.model.limits import MIB
from braidmq.runtime.rate_limits import RateExceeded
from braidmq.security.permissions import Grants
from braidmq.security.records import check_name
from braidmq.security.rights import READS, listing, owner, read

T = TypeVar("T")

TOPICS_MAX = 1000
PARTITIONS_MAX = 10_000
PARTITIONS_BYTES_MAX = 8 * MIB
"""A body that names so many topics or partitions, with names of full length."""

Generation = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
MEMBER_ERRORS = (UnknownGroup, UnknownMember, StaleGeneration)


class JoinBody(Body, frozen=True):
    """Who wants what. How the group is run its first member decides."""

    topics: Annotated[list[str], Meta(min_length=1, max_length=TOPICS_MAX)]
    member_id: (
        Annotated[
            str, Meta(min_length=1, max_length=255, description="To come back under the same name")
        ]
        | UnsetType
    ) = UNSET
    client: Annotated[str, Meta(max_length=200, description="Begins the member's id")] = "http"
    strategy: Literal["sticky", "range", "round-robin"] = "sticky"
    session_timeout_ms: Annotated[int, Meta(gt=HEARTBEAT_INTERVAL_MS, le=HOUR_MS)] = (
        SESSION_TIMEOUT_MS
    )
    rebalance_timeout_ms: Annotated[int, Meta(ge=0, le=HOUR_MS)] = REBALANCE_TIMEOUT_MS
    start: Annotated[Position, Meta(description="Where the group begins in topics new to it")] = (
        "earliest"
    )
    auto_commit: Annotated[
        bool,
        Meta(
            description="What the member was given counts as committed once it polls again: at"
            " most `auto_commit_interval_ms` after that. One poll at a time, then"
        ),
    ] = False
    auto_commit_interval_ms: Annotated[int, Meta(ge=1, le=HOUR_MS)] = AUTO_COMMIT_INTERVAL_MS


class PartitionOf(Body, frozen=True):
    topic: str
    partition: Partition


class HeartbeatBody(Body, frozen=True):
    generation: Generation
    revoked: Annotated[
        list[PartitionOf],
        Meta(max_length=PARTITIONS_MAX, description="Partitions the member has let go of"),
    ] = msgspec.field(default_factory=list)


class PollBody(Body, frozen=True):
    generation: Generation
    limit: Limit = 100
    wait_ms: WaitMs | UnsetType = UNSET
    visibility_ms: VisibilityMs | UnsetType = UNSET


class CommitOffset(PartitionOf, frozen=True):
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="All before it is done with")]


class CommitBody(Body, frozen=True):
    generation: Generation
    offsets: Annotated[list[CommitOffset], Meta(min_length=1, max_length=PARTITIONS_MAX)]


class GroupSeekBody(Body, frozen=True):
    topic: str
    to: Position
    partition: Annotated[Partition, Meta(description="Only this one")] | UnsetType = UNSET


class LeaveQuery(InNamespace, frozen=True, kw_only=True):
    generation: Generation


Assignment = dict[str, list[int]]


class MemberInfo(msgspec.Struct, frozen=True):
    """What a member is told: work on `assigned`, finish and let go of `revoking`."""

    group: str
    member_id: str
    generation: int
    assigned: Annotated[Assignment, Meta(description="Topic → partitions")]
    revoking: Assignment
    heartbeat_interval_ms: int


class Polled(msgspec.Struct, frozen=True):
    member: MemberInfo
    messages: list[Message]


class MemberSummary(msgspec.Struct, frozen=True):
    member_id: str
    assigned: Assignment
    revoking: Assignment


GroupMode = Annotated[
    str, Meta(description="`assigned`: members have partitions; else as of its subscriptions")
]


class GroupSummary(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    mode: GroupMode
    members: Annotated[int, Meta(description="Or consumers, where partitions are not assigned")]
    lag: int
    generation: int | UnsetType = UNSET
    strategy: str | UnsetType = UNSET


class GroupInfo(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    mode: GroupMode
    members: list[MemberSummary]
    subscriptions: Annotated[
        list[SubscriptionInfo], Meta(description="With the lag in each partition")
    ]
    generation: int | UnsetType = UNSET
    strategy: str | UnsetType = UNSET
    session_timeout_ms: int | UnsetType = UNSET
    rebalance_timeout_ms: int | UnsetType = UNSET


class Groups:
    def __init__(self, context: ApiContext, waiting: Waiting) -> None:
        self._context = context
        self._waiting = waiting

    # --- groups ---

    @operation(
        "GET",
        "/v1/groups",
        right=listing("groups with a topic that the caller may read"),
        tag="groups",
        errors=(NotFound,),
    )
    async def list_groups(self, call: Call, query: ListInNamespace) -> list[GroupSummary] | Page:
        """List groups, of whatever protocol, by name. A queue's own subscription is none."""
        grants = call.grants
        engine = self._context.engine()
        found: dict[str, list[Subscription]] = {}
        for topic in engine.state.topics_of(query.namespace):
            for each in topic.subscriptions.values():
                if grants.may_read(topic.name) and (each.mode is Mode.ASSIGNED or is_group(each)):
                    found.setdefault(each.name, []).append(each)
        known = {group.name: group for group in engine.groups.groups(query.namespace)}
        # One whose topics are all gone is nobody's secret.
        for name in known:
            if not self._subscriptions(query.namespace, name):
                found.setdefault(name, [])
        names, cursor = await page_of(found, query, lambda name: (name,), tuple[str])
        listed = [
            summary(query.namespace, name, known.get(name), found.get(name, [])) for name in names
        ]
        return Page(listed, cursor)

    @operation(
        "GET",
        "/v1/groups/{group}",
        right=read().noting("read on one of its topics, and only those are shown"),
        tag="groups",
        errors=(UnknownGroup,),
    )
    async def describe_group(self, call: Call, group: str, query: InNamespace) -> GroupInfo:
        """Describe a group: members, what they have, and how far behind they are."""
        grants = call.grants
        every = self._subscriptions(query.namespace, group, shared=True)
        found = self._coordinated(query.namespace, group, every)
        subscriptions = [each for each in every if grants.may_read(each.topic.name)]
        if every and not subscriptions:
            # As of a group that is not there: who may read none of its topics does not learn of it.
            raise UnknownGroup(f"there is no group {group!r} in namespace {query.namespace!r}")
        shown = [described(each, self._waiting, self._context.now_ms) for each in subscriptions]
        if found is None:
            return GroupInfo(query.namespace, group, str(subscriptions[0].mode), [], shown)
        return GroupInfo(
            query.namespace,
            group,
            str(Mode.ASSIGNED),
            [
                MemberSummary(
                    each,
                    _readable(grants, found.assignment(each)),
                    _readable(grants, found.revoking(each)),
                )
                for each in found.member_ids
            ],
            shown,
            found.generation,
            found.strategy.value,
            found.session_timeout_ms,
            found.rebalance_timeout_ms,
        )

    @operation(
        "DELETE",
        "/v1/groups/{group}",
        right=read().noting("read on all of its topics"),
        tag="groups",
        statuses=(204,),
        errors=(UnknownGroup, WrongMode),
    )
    async def delete_group(self, call: Call, group: str, query: InNamespace) -> None:
        """Delete a group that has no members, with its place in every topic."""
        grants = call.grants
        engine = self._context.engine()
        subscriptions = self._subscriptions(query.namespace, group, shared=True)
        for each in subscriptions:
            grants.need_read(each.topic.name)
        found = self._coordinated(query.namespace, group, subscriptions)
        if any(is_served(each) for each in subscriptions):
            raise WrongMode(f"group {group!r} has consumers", remedy="Stop them first")
        if found is not None:
            engine.groups.forget(query.namespace, group)
        for each in subscriptions:
            engine.subscriptions.delete(each)
        await self._context.done()

    @operation(
        "POST",
        "/v1/groups/{group}/seek",
        right=read("body.topic"),
        tag="groups",
        errors=(UnknownTopic, UnknownSubscription, UnknownPartition, BadPosition),
        examples=(
            {"topic": "orders", "to": "earliest"},
            {"topic": "orders", "to": "1200", "partition": 3},
        ),
    )
    async def seek_group(
        self, call: Call, group: str, query: InNamespace, body: GroupSeekBody
    ) -> SubscriptionInfo:
        """Have a group begin again in a topic, from a position in all its partitions or in one.

        What its members have in flight there is theirs no more, and comes again if it is behind
        the position. They stay members.
        """
        found = self._context.subscription(call, body.topic, group)
        self._context.engine().offsets.rewind(
            found,
            position(body.to),
            now_ms=self._context.now_ms,
            partition=None if body.partition is UNSET else body.partition,
        )
        await self._context.done()
        return described(found, self._waiting, self._context.now_ms)

    def _subscriptions(
        self, namespace: str, group: str, *, shared: bool = False
    ) -> list[Subscription]:
        """Those of its members; with ``shared`` also those whose consumers share messages."""
        found = (
            topic.subscriptions.get(group)
            for topic in self._context.engine().state.topics_of(namespace)
        )
        return [
            each
            for each in found
            if each is not None and (each.mode is Mode.ASSIGNED or (shared and is_group(each)))
        ]

    def _coordinated(
        self, namespace: str, group: str, subscriptions: list[Subscription]
    ) -> Group | None:
        """None for a group that has only subscriptions. Raises UnknownGroup without any."""
        try:
            return self._context.engine().groups.group(namespace, group)
        except UnknownGroup:
            if not subscriptions:
                raise
            return None

    def _require_reads(self, call: Call, namespace: str, group: str) -> None:
        """Whoever speaks for a member must be allowed to read what the group reads."""
        for each in self._subscriptions(namespace, group):
            call.grants.need_read(each.topic.name)

    # --- members ---

    @operation(
        "POST",
        "/v1/groups/{group}/members",
        right=read("body.topics").noting("an id that is another user's member is refused"),
        tag="groups",
        statuses=(201,),
        errors=(
            UnknownTopic,
            WrongMode,
            BadPosition,
            GroupFull,
            NotYourMember,
            LimitReached,
            RateExceeded,
        ),
        body_bytes_max=PARTITIONS_BYTES_MAX,
        examples=({"topics": ["orders"]},),
        traffic=True,
    )
    async def join_group(
        self, call: Call, group: str, query: InNamespace, body: JoinBody
    ) -> MemberInfo:
        """Join a group.

        It is made if there is none. Whoever joins under the id of a member of its own is that
        member's new life: what it had goes back first. The id of another user's member is refused.
        """
        check_name(group, "group name")
        await self._context.may_begin(call, query.namespace)
        groups = self._context.engine().groups
        answer = groups.join(
            query.namespace,
            group,
            None if body.member_id is UNSET else body.member_id,
            body.client,
            body.topics,
            now_ms=self._context.now_ms,
            strategy=Strategy(body.strategy),
            session_timeout_ms=body.session_timeout_ms,
            rebalance_timeout_ms=body.rebalance_timeout_ms,
            owner=call.user.name,
            start=position(body.start),
            auto_commit_ms=body.auto_commit_interval_ms if body.auto_commit else 0,
        )
        for topic in dict.fromkeys(body.topics):
            # It polls: nothing is pushed to it.
            member_id = answer.membership.member_id
            groups.consumer(query.namespace, group, member_id, topic).paused = True
        await self._context.done()  # with the subscriptions that were made for it
        return await self._told(group, answer)

    @operation(
        "POST",
        "/v1/groups/{group}/members/{member}/heartbeat",
        right=owner("member").noting(READS),
        tag="groups",
        errors=MEMBER_ERRORS,
        body_bytes_max=PARTITIONS_BYTES_MAX,
        examples=({"generation": 3},),
        traffic=True,
    )
    async def heartbeat(
        self, call: Call, group: str, member: str, query: InNamespace, body: HeartbeatBody
    ) -> MemberInfo:
        """Stay a member.

        Only in the current generation: 409 says that there is a new one, which `sync` tells.
        """
        self._require_reads(call, query.namespace, group)
        revoked = pairs(body.revoked)
        answer = self._heartbeat(query.namespace, group, member, body.generation, revoked)
        return await self._told(group, answer)

    @operation(
        "POST",
        "/v1/groups/{group}/members/{member}/sync",
        right=owner("member").noting(READS),
        tag="groups",
        errors=MEMBER_ERRORS,
        body_bytes_max=PARTITIONS_BYTES_MAX,
        examples=({"generation": 3, "revoked": [{"topic": "orders", "partition": 1}]},),
        traffic=True,
    )
    async def sync(
        self, call: Call, group: str, member: str, query: InNamespace, body: HeartbeatBody
    ) -> MemberInfo:
        """Learn what changed: as a heartbeat, but also from an older generation."""
        self._require_reads(call, query.namespace, group)
        answer = self._heartbeat(
            query.namespace, group, member, body.generation, pairs(body.revoked), catch_up=True
        )
        return await self._told(group, answer)

    def _heartbeat(
        self,
        namespace: str,
        group: str,
        member: str,
        generation: int,
        revoked: Iterable[tuple[str, int]] = (),
        *,
        catch_up: bool = False,
    ) -> GroupAnswer:
        return self._context.engine().groups.heartbeat(
            namespace,
            group,
            member,
            generation,
            now_ms=self._context.now_ms,
            revoked=revoked,
            catch_up=catch_up,
        )

    @operation(
        "DELETE",
        "/v1/groups/{group}/members/{member}",
        right=owner("member"),
        tag="groups",
        statuses=(204,),
        errors=MEMBER_ERRORS,
        traffic=True,
    )
    async def leave_group(self, call: Call, group: str, member: str, query: LeaveQuery) -> None:
        """Leave a group: what the member had is given to the others at once."""
        self._context.engine().groups.leave(
            query.namespace, group, member, query.generation, now_ms=self._context.now_ms
        )
        await self._context.done()

    @operation(
        "POST",
        "/v1/groups/{group}/members/{member}/poll",
        right=owner("member").noting(READS),
        tag="groups",
        errors=(*MEMBER_ERRORS, UnknownTopic, RateExceeded),
        examples=({"generation": 3, "limit": 500, "wait_ms": 10_000},),
        traffic=True,
    )
    async def poll(
        self, call: Call, group: str, member: str, query: InNamespace, body: PollBody
    ) -> Polled:
        """Receive messages of the member's partitions, and wait for some if there are none.

        Counts as a heartbeat for as long as it waits, and tells of a new generation as `sync` does:
        at once when partitions come or go, with whatever messages there are. A member has at most
        1000 messages of a topic unanswered.
        """
        self._require_reads(call, query.namespace, group)
        await self._context.may_be_given(call, query.namespace)
        wait_ms = self._waiting.wanted_ms(body.wait_ms)
        consumers = self._consumers(query.namespace, group, member, body.generation)
        topics = [each.subscription.topic.name for each in consumers]
        groups = self._context.engine().groups
        session_ms = groups.group(query.namespace, group).session_timeout_ms
        groups.came_back(query.namespace, group, member, now_ms=self._context.now_ms)

        def take() -> list[Message]:
            call.require_still(lambda: all(map(call.grants.may_read, topics)))
            known = self._context.engine().state.consumers
            live = [each for each in consumers if each.id in known]
            return self._take(live, body)

        messages = await self._waiting.wait(
            call.request,
            consumers,
            take,
            wait_ms,
            Stay(
                partial(self._stay, query.namespace, group, member, body.generation),
                session_ms // 3,
            ),
            self._context.access.left_s(call.caller),
        )
        answer = self._heartbeat(query.namespace, group, member, body.generation, catch_up=True)
        return Polled(await self._told(group, answer), messages)

    def _stay(self, namespace: str, group: str, member: str, generation: int) -> None:
        # Who is no member any more learns that when it has waited.
        with suppress(UnknownGroup, UnknownMember, StaleGeneration):
            self._heartbeat(namespace, group, member, generation, catch_up=True)

    def _consumers(
        self, namespace: str, group: str, member: str, generation: int
    ) -> list[Consumer]:
        self._heartbeat(namespace, group, member, generation, catch_up=True)
        return self._context.engine().groups.consumers(namespace, group, member)

    def _take(self, consumers: list[Consumer], body: PollBody) -> list[Message]:
        engine = self._context.engine()
        messages: list[Message] = []
        # Topics take turns: who has most would leave no room for the others.
        for consumer in sorted(consumers, key=lambda each: each.served):
            if len(messages) >= body.limit:
                break
            consumer.visibility_ms = visibility_of(consumer.subscription, body.visibility_ms)
            consumer.paused = False
            limit = body.limit - len(messages)
            pulled = engine.dispatching.pull(consumer, limit, now_ms=self._context.now_ms)
            self._context.delivered(pulled)
            messages += taken(engine.receipts, pulled)
            consumer.paused = True
        return messages

    @operation(
        "POST",
        "/v1/groups/{group}/members/{member}/commit",
        right=owner("member").noting(READS),
        tag="groups",
        statuses=(204,),
        errors=(
            UnknownGroup,
            UnknownTopic,
            UnknownPartition,
            StaleGeneration,
            BadPosition,
            *TRANSACTION_ERRORS,
        ),
        body_bytes_max=PARTITIONS_BYTES_MAX,
        examples=(
            {"generation": 3, "offsets": [{"topic": "orders", "partition": 0, "offset": 1200}]},
        ),
        traffic=True,
    )
    async def commit(
        self,
        call: Call,
        group: str,
        member: str,
        query: InNamespace,
        headers: TransactionHeaders,
        body: CommitBody,
    ) -> None:
        """Settle all messages before an offset, in each of some partitions.

        Each counts by itself: those before one that is refused are committed. A member that is no
        more, or that lost a partition since its generation, gets 409. In a transaction they are
        settled when that commits, all of them; it can't if the member has lost one of them by then.
        """
        self._require_reads(call, query.namespace, group)
        engine = self._context.engine()
        places = [
            (query.namespace, group, member, body.generation, each.topic, each.partition)
            for each in body.offsets
        ]
        if headers.transaction is UNSET:
            for each, place in zip(body.offsets, places, strict=True):
                _as_member(partial(engine.groups.commit, *place, each.offset))
        else:
            name = headers.transaction
            transaction = find_transaction(self._context, call, query.namespace, name)
            claims = []
            for each, place in zip(body.offsets, places, strict=True):
                require_member = partial(_as_member, partial(engine.groups.committing, *place))
                claims.append((require_member(), each.offset, require_member))
            engine.transactions.commit_offsets(transaction, claims)
        await self._context.done()

    async def _told(self, group: str, answer: GroupAnswer) -> MemberInfo:
        """A generation is told once it is durable: it must never be given out twice."""
        membership: Membership = answer.membership
        await self._context.node_loop.durable(answer.lsn)
        return MemberInfo(
            group,
            membership.member_id,
            membership.generation,
            listed(membership.assigned),
            listed(membership.revoking),
            membership.heartbeat_interval_ms,
        )


def is_group(subscription: Subscription) -> bool:
    """What serves a queue or an MQTT session is nobody's group."""
    is_own = subscription.name.partition(".")[0] == QUEUE_SUBSCRIPTION
    return not is_own and not subscription.topic.name.startswith("$")


def is_served(subscription: Subscription) -> bool:
    """Somebody would miss it. Who receives over HTTP comes and goes."""
    pushed = any(not each.passive for each in subscription.consumers)
    return pushed and subscription.mode is not Mode.ASSIGNED


def summary(
    namespace: str, name: str, group: Group | None, subscriptions: list[Subscription]
) -> GroupSummary:
    lag = sum(each.depth for each in subscriptions)
    if group is None:
        consumers = sum(len(each.consumers) for each in subscriptions)
        return GroupSummary(namespace, name, str(subscriptions[0].mode), consumers, lag)
    members, strategy = len(group.member_ids), group.strategy.value
    return GroupSummary(
        namespace, name, str(Mode.ASSIGNED), members, lag, group.generation, strategy
    )


def _as_member(act: Callable[[], T]) -> T:
    try:
        return act()
    except UnknownMember as error:
        # A zombie: its session is over, and others have what it had.
        raise StaleGeneration(str(error.args[0]), remedy=UnknownMember.remedy) from None


def _readable(grants: Grants, partitions: dict[str, tuple[int, ...]]) -> Assignment:
    return listed({each: of for each, of in partitions.items() if grants.may_read(each)})


def listed(partitions: dict[str, tuple[int, ...]]) -> Assignment:
    return {topic: list(numbers) for topic, numbers in partitions.items()}


def pairs(partitions: Iterable[PartitionOf]) -> list[tuple[str, int]]:
    return [(each.topic, each.partition) for each in partitions]
