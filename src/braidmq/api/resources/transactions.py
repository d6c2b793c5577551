"""Transactions: begun, kept alive, ended, listed.

What happens in one is published and acknowledged as always, with its name in `Braid-Transaction`.
"""

import uuid
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import (
    ApiContext,
    InNamespace,
    ListInNamespace,
    MillisecondsSinceEpoch,
)
from braidmq.api.endpoints import Answer, Body, Call, operation
from braidmq.api.paging import Page, page_of
from braidmq.api.transaction_headers import (
    NAME_CHARACTERS_MAX,
    NUMBER_MAX,
    TRANSACTION_ERRORS,
    Epoch,
    Name,
    ProducerId,
    TransactionNumber,
    find_transaction,
)
from braidmq.engine.errors import LimitReached, TopicFull, UnknownTopic
from braidmq.engine.groups import StaleGeneration
from braidmq.engine.transactions.coordinator import (
    BRANCHES_MAX,
    DURATION_MS_MAX,
    SESSION_MS,
    TIMEOUT_MS,
    Coordinator,
)
from braidmq.engine.transactions.entries import Application, Outcome
from braidmq.engine.transactions.errors import (
    NotYourTransaction,
    OtherInstance,
    ProducerFenced,
    StaleApplication,
    TransactionCommitted,
    TransactionCommitting,
    UnknownBranch,
    UnknownProducer,
    UnknownTransaction,
)
from braidmq.engine.transactions.ledger import Transaction
from braidmq.model.errors import BadRequest, NotFound
from braidmq.model.ids import Lsn
from braidmq.model.limits import MIB
from braidmq.security.rights import listing, owner, write

BRANCHES_BYTES_MAX = 16 * MIB
"""A body that names so many branches, with names of full length."""

RESERVED_NAME = "stats"
"""What is at its place in a path is something else."""

Duration = Annotated[int, Meta(ge=1, le=DURATION_MS_MAX)]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


class UnknownApplication(NotFound):
    """It has committed nothing yet."""

    code = "unknown-application"


class ApplicationStep(Body, frozen=True):
    """A program that numbers its transactions: each number is committed once."""

    name: Name
    epoch: Number
    sequence: Number
    instance: Annotated[
        str,
        Meta(
            max_length=NAME_CHARACTERS_MAX,
            description="Who counts; another one can't go on with the same epoch",
        ),
    ] = ""


class NewTransaction(Body, frozen=True):
    name: (
        Annotated[Name, Meta(description="The open one of that name is gone on with")] | UnsetType
    ) = UNSET
    timeout_ms: Annotated[Duration, Meta(description="Aborted if it takes longer")] = TIMEOUT_MS
    session_ms: Annotated[Duration, Meta(description="Aborted if silent for longer")] = SESSION_MS
    producer_id: (
        Annotated[ProducerId, Meta(description="Aborts what an older epoch left open")] | UnsetType
    ) = UNSET
    producer_epoch: Epoch | UnsetType = UNSET
    application: ApplicationStep | UnsetType = UNSET
    staged: Annotated[
        bool,
        Meta(
            description="What is published in it lies outside its topics, and holds up nobody,"
            " until the commit copies it there"
        ),
    ] = False


class CommitTransaction(Body, frozen=True):
    branches: (
        Annotated[
            list[Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]],
            Meta(max_length=BRANCHES_MAX, description="What others published is left out"),
        ]
        | UnsetType
    ) = UNSET
    number: (
        Annotated[
            TransactionNumber,
            Meta(description="Which of those that had its name: not to commit another one"),
        ]
        | UnsetType
    ) = UNSET


class HeldPartition(msgspec.Struct, frozen=True):
    """A partition with messages of an open transaction."""

    topic: str
    partition: int
    first_offset: int
    behind: Annotated[
        int, Meta(description="Messages nobody gets because of it; 0 if an older one is in the way")
    ]


class TransactionInfo(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    state: Literal["empty", "ongoing", "committing", "prepare", "complete"]
    owner: str
    number: int | UnsetType = UNSET
    started_ms: MillisecondsSinceEpoch | UnsetType = UNSET
    age_ms: int | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    session_ms: int | UnsetType = UNSET
    records: Annotated[int, Meta(description="Messages published in it")] | UnsetType = UNSET
    branches: list[str] | UnsetType = UNSET
    holds: list[HeldPartition] | UnsetType = UNSET
    outcome: Literal["committed", "aborted"] | UnsetType = UNSET
    reason: Annotated[str, Meta(description="Why it was aborted")] | UnsetType = UNSET
    ended_ms: MillisecondsSinceEpoch | UnsetType = UNSET


class ApplicationInfo(msgspec.Struct, frozen=True):
    """What an application committed last."""

    namespace: str
    name: str
    epoch: int
    sequence: int


class Transactions:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def _coordinator(self) -> Coordinator:
        return self._context.engine().transactions

    @operation(
        "POST",
        "/v1/transactions",
        right=write().noting("names that are another user's are refused"),
        tag="transactions",
        statuses=(201, 200),
        errors=(
            NotFound,
            UnknownProducer,
            ProducerFenced,
            NotYourTransaction,
            TransactionCommitted,
            TransactionCommitting,
            StaleApplication,
            OtherInstance,
            LimitReached,
        ),
        examples=({}, {"name": "nightly-17", "timeout_ms": 600_000}),
        traffic=True,
    )
    async def begin_transaction(
        self, call: Call, query: InNamespace, body: NewTransaction
    ) -> TransactionInfo | Answer:
        """Begin a transaction.

        Publish and acknowledge in it with its name in the header `Braid-Transaction`, from
        wherever; nothing of it is seen until it is committed. Without a name it gets one. One of
        that name that is open is answered with 200; one that is committed, with 409.
        """
        coordinator, now_ms = self._coordinator(), self._context.now_ms
        if body.name == RESERVED_NAME:
            raise BadRequest(
                f"a transaction can't be named {RESERVED_NAME!r}: that is where statistics are",
                remedy="Use another name",
            )
        if (body.producer_id is UNSET) != (body.producer_epoch is UNSET):
            raise BadRequest("a producer needs both an id and an epoch")
        producer = None
        if body.producer_id is not UNSET and body.producer_epoch is not UNSET:
            producer = coordinator.producer(
                query.namespace,
                body.producer_id,
                body.producer_epoch,
                owner=call.user.name,
                now_ms=now_ms,
            )
        step = body.application
        transaction, lsn = coordinator.begin(
            query.namespace,
            uuid.uuid4().hex if body.name is UNSET else body.name,
            now_ms=now_ms,
            owner=call.user.name,
            producer=producer,
            application=None
            if step is UNSET
            else Application(step.name, step.epoch, step.sequence, step.instance),
            timeout_ms=body.timeout_ms,
            session_ms=body.session_ms,
            staged=body.staged,
        )
        info = self._described(transaction)
        await self._context.done()
        return info if lsn is not None else Answer(info, 200)

    @operation(
        "GET",
        "/v1/transactions",
        right=listing("the caller's own; an administrator sees all"),
        tag="transactions",
        errors=(NotFound,),
    )
    async def list_transactions(
        self, call: Call, query: ListInNamespace
    ) -> list[TransactionInfo] | Page:
        """List open transactions, the oldest first, and what each keeps readers from.

        Those of the caller; an administrator sees all.
        """
        found, cursor = await page_of(
            self._coordinator().transactions(query.namespace),
            query,
            lambda each: (each.begun.started_ms, each.number),
            tuple[int, int],
            keep=lambda each: call.user.is_administrator or each.begun.owner == call.user.name,
        )
        return Page([self._described(each) for each in found], cursor)

    @operation(
        "GET",
        "/v1/transactions/{transaction}",
        right=owner("transaction"),
        tag="transactions",
        errors=(UnknownTransaction, NotYourTransaction),
    )
    async def describe_transaction(
        self, call: Call, transaction: str, query: InNamespace
    ) -> TransactionInfo:
        """Describe a transaction; for an hour after its end, how that was."""
        owner = self._owner(query.namespace, transaction)
        coordinator = self._coordinator()
        for each in coordinator.transactions(query.namespace):
            if each.begun.name == transaction:
                return self._described(each)
        outcome = coordinator.outcome(query.namespace, transaction, owner)
        return _finished(query.namespace, transaction, outcome)

    @operation(
        "POST",
        "/v1/transactions/{transaction}/heartbeat",
        right=owner("transaction").noting("not even an administrator"),
        tag="transactions",
        statuses=(204,),
        errors=TRANSACTION_ERRORS,
        traffic=True,
    )
    async def keep_transaction(self, call: Call, transaction: str, query: InNamespace) -> None:
        """Say that whoever has the transaction is still there.

        Publishing and acknowledging in it do too.
        """
        find_transaction(self._context, call, query.namespace, transaction)

    @operation(
        "POST",
        "/v1/transactions/{transaction}/commit",
        right=owner("transaction"),
        tag="transactions",
        errors=(
            *TRANSACTION_ERRORS,
            UnknownBranch,
            StaleApplication,
            OtherInstance,
            StaleGeneration,
            TopicFull,
            UnknownTopic,
        ),
        body_bytes_max=BRANCHES_BYTES_MAX,
        examples=({}, {"branches": ["task-1", "task-3"]}),
        traffic=True,
    )
    async def commit_transaction(
        self, call: Call, transaction: str, query: InNamespace, body: CommitTransaction
    ) -> TransactionInfo:
        """Make all of it visible, and have what it acknowledged done with.

        To commit one that is committed is answered the same; one that was aborted, with 409. What
        is staged is copied to its topics first, for which the caller needs the right to write.
        """
        owner = self._owner(query.namespace, transaction)
        branches = None if body.branches is UNSET else body.branches
        if body.number is not UNSET:
            self._coordinator().require_number(query.namespace, transaction, body.number)
        staged = self._staged(query.namespace, transaction)
        if staged is not None:
            lsn = await self._commit_staged(call, staged, branches)
        else:
            lsn = self._coordinator().end(
                query.namespace,
                transaction,
                commit=True,
                now_ms=self._context.now_ms,
                owner=owner,
                branches=branches,
            )
        return await self._ended(query.namespace, transaction, owner, lsn)

    @operation(
        "POST",
        "/v1/transactions/{transaction}/abort",
        right=owner("transaction"),
        tag="transactions",
        errors=TRANSACTION_ERRORS,
    )
    async def abort_transaction(
        self, call: Call, transaction: str, query: InNamespace
    ) -> TransactionInfo:
        """Have nothing of it ever seen, and what it acknowledged delivered again.

        An administrator may abort anybody's.
        """
        owner = self._owner(query.namespace, transaction)
        lsn = self._coordinator().end(
            query.namespace, transaction, commit=False, now_ms=self._context.now_ms, owner=owner
        )
        return await self._ended(query.namespace, transaction, owner, lsn)

    @operation(
        "GET",
        "/v1/applications/{application}",
        right=owner("application"),
        tag="transactions",
        errors=(UnknownApplication,),
    )
    async def describe_application(
        self, call: Call, application: str, query: InNamespace
    ) -> ApplicationInfo:
        """Tell what an application committed last."""
        last = self._coordinator().last_committed(query.namespace, application)
        if last is None:
            raise UnknownApplication(f"application {application!r} has committed nothing")
        return ApplicationInfo(query.namespace, application, *last)

    def _staged(self, namespace: str, name: str) -> Transaction | None:
        for each in self._coordinator().transactions(namespace):
            if each.begun.name == name and each.begun.staged:
                return each
        return None

    async def _commit_staged(
        self, call: Call, transaction: Transaction, branches: list[str] | None
    ) -> Lsn:
        engine = self._context.engine()
        for topic in engine.staging.targets(transaction):
            call.grants.need_write(topic.name)
        steps = engine.staging.committing(transaction, branches, self._context.now_ms)
        await self._context.node_loop.work(steps)
        return engine.store.journal.last_lsn

    def _owner(self, namespace: str, name: str) -> str:
        """As whom the caller speaks: an administrator for whoever began it."""
        return self._coordinator().owner_of(namespace, name)

    async def _ended(self, namespace: str, name: str, owner: str, lsn: Lsn) -> TransactionInfo:
        outcome = self._coordinator().outcome(namespace, name, owner)
        await self._context.node_loop.durable(lsn)
        return _finished(namespace, name, outcome)

    def _described(self, transaction: Transaction) -> TransactionInfo:
        begun = transaction.begun
        return TransactionInfo(
            begun.namespace,
            begun.name,
            str(transaction.phase),  # type: ignore[arg-type]
            begun.owner,
            transaction.number,
            begun.started_ms,
            self._context.now_ms - begun.started_ms,
            begun.timeout_ms,
            begun.session_ms,
            transaction.records,
            list(transaction.branches),
            [
                HeldPartition(held.topic.name, held.partition, held.first_offset, held.behind)
                for held in self._context.engine().transactions.held(transaction)
            ],
        )


def _finished(namespace: str, name: str, outcome: Outcome) -> TransactionInfo:
    return TransactionInfo(
        namespace,
        name,
        "complete",
        outcome.owner,
        outcome="committed" if outcome.committed else "aborted",
        reason=outcome.reason or UNSET,
        ended_ms=outcome.ended_ms,
    )
