"""What every resource works with. ``guard`` has checked the caller's rights before."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from braidmq.api.access import Access, host_of
from braidmq.api.endpoints import Call
from braidmq.api.paging import LIST_MAX, CursorText, ListLimit
from braidmq.api.problems import DiskLow, MemoryLow
from braidmq.engine.effects import Level
from braidmq.engine.engine import Engine
from braidmq.engine.topics import Delivery, Subscription, Topic
from braidmq.model.errors import BadRequest
from braidmq.record.batch import RecordBatch
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.rate_limits import REFUSED, SLOWED, RateExceeded
from braidmq.security.records import ROOT_NAMESPACE

NamespaceName = Annotated[
    str, Meta(description="The namespace; AMQP calls it a virtual host", examples=["/"])
]
NUMBER_MAX = 1 << 53
"""A float holds it exactly, as does whatever reads JSON, and all that we store."""

MillisecondsSinceEpoch = Annotated[int, Meta(description="Milliseconds since 1970, UTC")]
GivenTime = Annotated[int, Meta(ge=0, le=NUMBER_MAX, description="Milliseconds since 1970, UTC")]


class InNamespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: NamespaceName = ROOT_NAMESPACE


class PagedQuery(InNamespace, frozen=True):
    """Of whatever comes in pages; its ``limit`` has bounds of its own."""

    cursor: CursorText = ""


class ListInNamespace(PagedQuery, frozen=True):
    limit: ListLimit = LIST_MAX


class ApiContext:
    def __init__(self, node_loop: NodeLoop, access: Access) -> None:
        self.node_loop = node_loop
        self.access = access

    @property
    def now_ms(self) -> int:
        """A handler goes on when others were read in the same turn: it reads the clock itself."""
        return self.node_loop.read_clock()

    def engine(self) -> Engine:
        """The engine, to be used until the next await."""
        return self.node_loop.engine()

    def published(self, namespace: str, batch: RecordBatch, accepted: int) -> None:
        """Usage: so many messages of a batch were taken, from the first."""
        size = batch.value_bytes_between(0, accepted) if accepted else 0
        self.node_loop.usage.meter(namespace, "http").took(accepted, size)

    async def let_in(self, call: Call, namespace: str, count: int = 1) -> None:
        """Before messages are published: their client waits until there is room for one, and what
        there is no room for is paid for by the next. Raises RateExceeded."""
        rates = self.node_loop.rates
        client = rates.client(namespace, call.user.name, host_of(call.request))
        throttle = client.throttle
        if throttle is None:
            return
        while wait_ms := throttle.wait_ms(rates.now_ms()):
            if rates.refuses:
                rates.count("messages", REFUSED, client.named)
                raise client.too_fast()
            rates.count("messages", SLOWED, client.named)
            await rates.wait(wait_ms)
        size = call.request.headers.get("content-length", "0")
        throttle.spend(count, int(size) if size.isdecimal() else 0, rates.now_ms())

    async def may_begin(self, call: Call, namespace: str) -> None:
        """Before a subscription or consumer is made. Raises RateExceeded."""
        rates = self.node_loop.rates
        client = rates.client(namespace, call.user.name, host_of(call.request))
        if wait_ms := client.subscribe():
            rates.count("subscriptions", SLOWED, client.named)
            await rates.wait(wait_ms)

    async def may_be_given(self, call: Call, namespace: str) -> None:
        """Before messages are delivered. Raises RateExceeded."""
        rates = self.node_loop.rates
        throttle = rates.deliveries(namespace)
        if throttle is None:
            return
        while wait_ms := throttle.wait_ms(rates.now_ms()):
            who = f"{call.user.name}@{host_of(call.request)}"
            if rates.refuses:
                rates.count("deliveries", REFUSED, who)
                raise RateExceeded(
                    f"namespace {namespace!r} is given as many messages as it may", wait_ms
                )
            rates.count("deliveries", SLOWED, who)
            await rates.wait(wait_ms)

    async def done(self) -> None:
        """Wait until all that was done so far is on disk."""
        lsn = self.node_loop.pending_lsn()
        if lsn is not None:
            await self.node_loop.durable(lsn)

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """Usage: these are on their way to a client."""
        for each in deliveries:
            meter = self.node_loop.usage.meter(each.view.partition.topic.namespace, "http")
            size = each.batch.value_bytes_between(each.first_index, each.stop_index)
            meter.gave(each.stop_index - each.first_index, size)
            throttle = self.node_loop.rates.deliveries(each.view.partition.topic.namespace)
            if throttle is not None:
                count = each.stop_index - each.first_index
                throttle.spend(count, size, self.node_loop.now_ms())

    def topic(self, call: Call, name: str) -> Topic:
        """Of the namespace that its caller has entered. Raises UnknownTopic."""
        return self.engine().state.topic(call.grants.namespace, name)

    def subscription(self, call: Call, topic: str, subscription: str) -> Subscription:
        return self.node_loop.view.state.subscription(self.topic(call, topic), subscription)

    def require_room(self) -> None:
        """Publishers wait while memory or disk is low (catalogue row A7)."""
        pressure = self.node_loop.view.pressure
        if pressure.level is not Level.BLOCKED:
            return
        if pressure.disk_is_blocked:
            raise DiskLow("the node's disk is almost full: it accepts no messages")
        raise MemoryLow("the node's memory is almost full: it accepts no messages")


def require_storable(values: dict[str, Any]) -> None:
    """JSON has numbers that no format of ours can hold."""
    try:
        msgspec.msgpack.encode(values)
    except (OverflowError, ValueError, RecursionError) as error:
        raise BadRequest(f"this can't be stored: {error}") from None
