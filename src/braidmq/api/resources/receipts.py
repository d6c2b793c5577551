"""Answering for messages by receipt: ack, nack, reject, extend; one or many."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext, InNamespace
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.long_polls import Waiting
from braidmq.api.resources.subscriptions import VISIBILITY_MS_MAX
from braidmq.api.transaction_headers import (
    TRANSACTION_ERRORS,
    TransactionHeaders,
    find_transaction,
)
from braidmq.engine import receipts as engine_receipts
from braidmq.engine.errors import BadReceipt, StaleReceipt, UnknownSubscription
from braidmq.engine.policy import Milliseconds
from braidmq.engine.topics import Consumer, PartitionView
from braidmq.engine.transactions.coordinator import InFlight
from braidmq.engine.transactions.errors import NotInFlight
from braidmq.engine.transactions.ledger import Transaction
from braidmq.model.errors import BraidError, NotFound
from braidmq.model.limits import ERROR_CHARACTERS_MAX, MIB
from braidmq.security.rights import EACH, read

RECEIPTS_MAX = 10_000
RECEIPT_CHARACTERS_MAX = 512

Receipt = Annotated[str, Meta(max_length=RECEIPT_CHARACTERS_MAX)]
Receipts = Annotated[list[Receipt], Meta(min_length=1, max_length=RECEIPTS_MAX)]
Reason = Annotated[
    str,
    Meta(max_length=ERROR_CHARACTERS_MAX, description="Why; kept if it becomes a dead letter"),
]
ForMs = Annotated[
    int, Meta(ge=1, le=VISIBILITY_MS_MAX, description="Time to answer in, from now on")
]
RetryDelay = (
    Annotated[Milliseconds, Meta(description="Comes again after this; else after the back-off")]
    | UnsetType
)
ERRORS = (NotFound, BadReceipt, StaleReceipt, UnknownSubscription)


class NackOne(Body, frozen=True):
    delay_ms: RetryDelay = UNSET
    error: Reason = ""


class RejectOne(Body, frozen=True):
    error: Reason = ""


class ExtendOne(Body, frozen=True):
    visibility_ms: ForMs


class AckMany(Body, frozen=True):
    receipts: Receipts


class NackMany(AckMany, frozen=True):
    delay_ms: RetryDelay = UNSET
    error: Reason = ""


class RejectMany(AckMany, frozen=True):
    error: Reason = ""


class ExtendMany(AckMany, frozen=True, kw_only=True):
    visibility_ms: ForMs


class NotSettled(msgspec.Struct, frozen=True):
    receipt: str
    code: str
    detail: str


class Settled(msgspec.Struct, frozen=True):
    """How many receipts counted, and which did not."""

    count: int
    failed: list[NotSettled]


Held = tuple[Consumer, PartitionView, int]
Verb = Callable[[Consumer, PartitionView, int, int], int]


class Answers:
    def __init__(self, context: ApiContext, waiting: Waiting) -> None:
        self._context = context
        self._waiting = waiting

    # --- one ---

    @operation(
        "POST",
        "/v1/receipts/{receipt}/ack",
        right=read("receipt.topic"),
        tag="receipts",
        statuses=(204,),
        errors=(*ERRORS, *TRANSACTION_ERRORS, NotInFlight),
        traffic=True,
    )
    async def ack(
        self, call: Call, receipt: Receipt, query: InNamespace, headers: TransactionHeaders
    ) -> None:
        """Acknowledge a message: it is done with.

        In a transaction: when that commits. An abort gives it back.
        """
        if headers.transaction is not UNSET:
            await self._ack_in(call, query.namespace, headers.transaction, [receipt])
            return
        await self._answer_one(call, query.namespace, receipt, self._ack)

    @operation(
        "POST",
        "/v1/receipts/{receipt}/nack",
        right=read("receipt.topic"),
        tag="receipts",
        statuses=(204,),
        errors=ERRORS,
        examples=({"error": "database is down"},),
        traffic=True,
    )
    async def nack(self, call: Call, receipt: Receipt, query: InNamespace, body: NackOne) -> None:
        """Give a message back, to be tried again.

        After the topic's back-off, or `delay_ms`. A message that was tried as often as the topic
        allows becomes a dead letter.
        """
        await self._answer_one(call, query.namespace, receipt, self._nack(body))

    @operation(
        "POST",
        "/v1/receipts/{receipt}/reject",
        right=read("receipt.topic"),
        tag="receipts",
        statuses=(204,),
        errors=ERRORS,
        examples=({"error": "not an order"},),
        traffic=True,
    )
    async def reject(
        self, call: Call, receipt: Receipt, query: InNamespace, body: RejectOne
    ) -> None:
        """Give a message up: it becomes a dead letter at once."""
        await self._answer_one(call, query.namespace, receipt, self._reject(body))

    @operation(
        "POST",
        "/v1/receipts/{receipt}/extend",
        right=read("receipt.topic"),
        tag="receipts",
        statuses=(204,),
        errors=ERRORS,
        examples=({"visibility_ms": 60_000},),
        traffic=True,
    )
    async def extend(
        self, call: Call, receipt: Receipt, query: InNamespace, body: ExtendOne
    ) -> None:
        """Ask for more time to answer."""
        await self._answer_one(call, query.namespace, receipt, self._extend(body))

    # --- many ---

    @operation(
        "POST",
        "/v1/receipts/ack",
        right=read().noting(EACH),
        tag="receipts",
        errors=(NotFound, *TRANSACTION_ERRORS, StaleReceipt, NotInFlight),
        body_bytes_max=8 * MIB,
        traffic=True,
    )
    async def ack_many(
        self, call: Call, query: InNamespace, headers: TransactionHeaders, body: AckMany
    ) -> Settled:
        """Acknowledge many messages.

        Receipts that do not count are named in the answer; the others do. In a transaction all of
        them count, when that commits, or one that does not is the answer.
        """
        if headers.transaction is not UNSET:
            count = await self._ack_in(call, query.namespace, headers.transaction, body.receipts)
            return Settled(count, [])
        return await self._answer_many(call, query.namespace, body.receipts, self._ack)

    @operation(
        "POST",
        "/v1/receipts/nack",
        right=read().noting(EACH),
        tag="receipts",
        errors=(NotFound,),
        body_bytes_max=8 * MIB,
        traffic=True,
    )
    async def nack_many(self, call: Call, query: InNamespace, body: NackMany) -> Settled:
        """Give many messages back, to be tried again."""
        return await self._answer_many(call, query.namespace, body.receipts, self._nack(body))

    @operation(
        "POST",
        "/v1/receipts/reject",
        right=read().noting(EACH),
        tag="receipts",
        errors=(NotFound,),
        body_bytes_max=8 * MIB,
        traffic=True,
    )
    async def reject_many(self, call: Call, query: InNamespace, body: RejectMany) -> Settled:
        """Give many messages up: they become dead letters at once."""
        return await self._answer_many(call, query.namespace, body.receipts, self._reject(body))

    @operation(
        "POST",
        "/v1/receipts/extend",
        right=read().noting(EACH),
        tag="receipts",
        errors=(NotFound,),
        body_bytes_max=8 * MIB,
        traffic=True,
    )
    async def extend_many(self, call: Call, query: InNamespace, body: ExtendMany) -> Settled:
        """Ask for more time to answer for many messages."""
        return await self._answer_many(call, query.namespace, body.receipts, self._extend(body))

    # --- what is done ---

    @property
    def _ack(self) -> Verb:
        return self._context.engine().settling.ack

    def _nack(self, body: NackOne | NackMany) -> Verb:
        delay_ms = None if body.delay_ms is UNSET else body.delay_ms
        return self._at_once("nack", error=body.error, delay_ms=delay_ms)

    def _reject(self, body: RejectOne | RejectMany) -> Verb:
        return self._at_once("reject", error=body.error)

    def _at_once(self, verb: str, **arguments: Any) -> Verb:
        do = getattr(self._context.engine().settling, verb)

        def perform(consumer: Consumer, view: PartitionView, start: int, stop: int) -> int:
            count: int = do(consumer, view, start, stop, now_ms=self._context.now_ms, **arguments)
            return count

        return perform

    def _extend(self, body: ExtendOne | ExtendMany) -> Verb:
        def perform(consumer: Consumer, view: PartitionView, start: int, stop: int) -> int:
            until_ms = self._context.now_ms + body.visibility_ms
            engine = self._context.engine()
            return engine.settling.extend(consumer, view, start, stop, until_ms=until_ms)

        return perform

    async def _answer_one(self, call: Call, namespace: str, receipt: str, verb: Verb) -> None:
        self._perform([self._held(call, namespace, receipt)], verb)
        await self._context.done()

    async def _answer_many(
        self, call: Call, namespace: str, receipts: list[str], verb: Verb
    ) -> Settled:
        held: dict[str, Held] = {}
        failed: list[NotSettled] = []
        for receipt in dict.fromkeys(receipts):
            try:
                held[receipt] = self._held(call, namespace, receipt)
            except BraidError as error:
                failed.append(NotSettled(receipt, error.code, str(error.args[0])))
        self._perform(list(held.values()), verb)
        await self._context.done()
        return Settled(len(held), failed)

    async def _ack_in(
        self, call: Call, namespace: str, transaction: str, receipts: list[str]
    ) -> int:
        """Those that are the transaction's already count again."""
        found = find_transaction(self._context, call, namespace, transaction)
        held = [self._held(call, namespace, each, found) for each in dict.fromkeys(receipts)]
        mine = set(found.holders.values())
        fresh = [each for each in held if each[0].id not in mine]
        self._context.engine().transactions.acknowledge_all(found, _runs(fresh))
        self._wake(fresh)
        await self._context.done()
        return len(held)

    def _held(
        self, call: Call, namespace: str, receipt: str, transaction: Transaction | None = None
    ) -> Held:
        call.grants.need_read(engine_receipts.parse(receipt).topic)
        engine = self._context.engine()
        held = engine.receipts.redeem(receipt, namespace)
        holder = engine.transactions.held_by(held[0])
        if holder is not None and holder is not transaction:
            raise StaleReceipt(f"the message of receipt {receipt!r} belongs to a transaction")
        return held

    def _perform(self, held: list[Held], verb: Verb) -> None:
        for run in _runs(held):
            verb(*run)
        self._wake(held)

    def _wake(self, held: list[Held]) -> None:
        """A member whose hands were full may have room again."""
        for subscription in {each[1].subscription for each in held}:
            self._waiting.wake(subscription)


def _runs(held: list[Held]) -> list[InFlight]:
    """Messages that were received together are answered for together."""
    held = sorted(held, key=lambda each: (each[0].id, each[1].id, each[2]))
    runs: list[InFlight] = []
    at = 0
    while at < len(held):
        consumer, view, start = held[at]
        stop = start
        while at < len(held) and held[at] == (consumer, view, stop):
            stop += 1
            at += 1
        runs.append((consumer, view, start, stop))
    return runs
