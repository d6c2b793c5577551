"""Leases: who reads in bulk, and what must stay for them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.api.context import ApiContext, InNamespace, ListInNamespace, MillisecondsSinceEpoch
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.messages import Partition
from braidmq.api.paging import Page, page_of
from braidmq.api.resources.reading import Offset
from braidmq.engine.errors import LimitReached, UnknownLease, UnknownPartition, UnknownTopic
from braidmq.engine.leases import Lease
from braidmq.engine.topics import TopicPartition
from braidmq.model.errors import NotFound
from braidmq.model.limits import MIB
from braidmq.security.records import check_name
from braidmq.security.rights import listing, owner, read

LEASES_MAX = 1000
"""In one namespace: each is looked at whenever another moves."""

TTL_MS_MAX = 24 * 3600 * 1000
PARTS_MAX = 1_000_000
BODY_BYTES_MAX = 4 * MIB


class LeasePosition(Body, frozen=True):
    topic: str
    partition: Partition
    offset: Offset


class NewLease(Body, frozen=True):
    positions: Annotated[
        list[LeasePosition],
        Meta(description="What is at these offsets or after them stays"),
    ]
    ttl_ms: Annotated[
        int, Meta(ge=1000, le=TTL_MS_MAX, description="It ends so long after the last sign of life")
    ] = 60_000
    holder: Annotated[str, Meta(max_length=200, description="What it is for, for people")] = ""
    parts: Annotated[
        int,
        Meta(ge=0, le=PARTS_MAX, description="It ends when so many parts of the work are finished"),
    ] = 0


class RenewBody(Body, frozen=True):
    finished: Annotated[
        list[Annotated[int, Meta(ge=0, le=PARTS_MAX)]],
        Meta(description="Parts of the work that are done"),
    ] = msgspec.field(default_factory=list)


class LeaseInfo(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    holder: str
    user: str
    created_ms: MillisecondsSinceEpoch
    expires_ms: MillisecondsSinceEpoch
    ttl_ms: int
    parts: int
    finished: Annotated[int, Meta(description="Parts that are done")]
    positions: list[LeasePosition]


class LeasesResource:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/leases",
        right=listing("the caller's own; an administrator sees all"),
        tag="leases",
        errors=(NotFound,),
    )
    async def list_leases(self, call: Call, query: ListInNamespace) -> list[LeaseInfo] | Page:
        """List who reads in bulk, by name."""
        found, cursor = await page_of(
            self._context.engine().leases.list(query.namespace),
            query,
            lambda each: (each.name,),
            tuple[str],
            keep=lambda each: call.user.is_administrator or each.user == call.user.name,
        )
        return Page([self._described(each) for each in found], cursor)

    @operation(
        "GET", "/v1/leases/{lease}", right=owner("lease"), tag="leases", errors=(UnknownLease,)
    )
    async def describe_lease(self, call: Call, lease: str, query: InNamespace) -> LeaseInfo:
        """Describe a lease."""
        return self._described(self._context.engine().leases.lease(query.namespace, lease))

    @operation(
        "PUT",
        "/v1/leases/{lease}",
        right=read("body.positions.topic").and_(read()).and_(owner("lease")),
        tag="leases",
        errors=(UnknownTopic, UnknownPartition, LimitReached),
        body_bytes_max=BODY_BYTES_MAX,
        examples=({"positions": [{"topic": "orders", "partition": 0, "offset": 1200}]},),
    )
    async def hold_lease(
        self, call: Call, lease: str, query: InNamespace, body: NewLease
    ) -> LeaseInfo:
        """Keep what is still to be read, or move on.

        Retention, compaction and the forgetting of acknowledged messages stop at the positions of a
        lease until it ends. The answer has where it really stands: what is gone already is gone.
        """
        check_name(lease, "lease name")
        engine = self._context.engine()
        positions: dict[TopicPartition, int] = {}
        for each in body.positions:
            topic = engine.state.topic(query.namespace, each.topic)
            positions[topic.partition(each.partition)] = each.offset
        others = [each for each in engine.leases.list(query.namespace) if each.name != lease]
        if len(others) >= LEASES_MAX:
            raise LimitReached(f"namespace {query.namespace!r} has {LEASES_MAX} leases already")
        held = engine.leases.hold(
            query.namespace,
            lease,
            positions,
            now_ms=self._context.now_ms,
            ttl_ms=body.ttl_ms,
            holder=body.holder,
            # An administrator may move one for whoever holds it; it stays theirs.
            user=engine.leases.owner_of(query.namespace, lease) or call.user.name,
            parts=body.parts,
        )
        await self._context.done()
        return self._described(held)

    @operation(
        "POST",
        "/v1/leases/{lease}/renew",
        right=owner("lease"),
        tag="leases",
        statuses=(204,),
        errors=(UnknownLease,),
        body_bytes_max=BODY_BYTES_MAX,
        examples=({}, {"finished": [0, 3]}),
        traffic=True,
    )
    async def renew_lease(
        self, call: Call, lease: str, query: InNamespace, body: RenewBody
    ) -> None:
        """Give a sign of life.

        With parts of the work that are done; once all are, the lease ends.
        """
        found = self._context.engine().leases.lease(query.namespace, lease)
        engine = self._context.engine()
        engine.leases.renew(found, self._context.now_ms, tuple(body.finished))
        if body.finished:
            await self._context.done()  # the last part ends it

    @operation(
        "DELETE",
        "/v1/leases/{lease}",
        right=owner("lease"),
        tag="leases",
        statuses=(204,),
        errors=(UnknownLease,),
    )
    async def end_lease(self, call: Call, lease: str, query: InNamespace) -> None:
        """End a lease: what it kept may go."""
        found = self._context.engine().leases.lease(query.namespace, lease)
        self._context.engine().leases.end(found, self._context.now_ms)
        await self._context.done()

    def _described(self, lease: Lease) -> LeaseInfo:
        partitions = self._context.engine().state.partitions
        return LeaseInfo(
            lease.namespace,
            lease.name,
            lease.holder,
            lease.user,
            lease.created_ms,
            lease.expires_ms,
            lease.ttl_ms,
            lease.parts,
            len(lease.finished),
            [
                LeasePosition(found.topic.name, found.number, offset)
                for number, offset in lease.positions.items()
                if (found := partitions.get(number)) is not None
            ],
        )
