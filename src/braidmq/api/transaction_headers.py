"""Who publishes or acknowledges: nobody in particular, a producer that numbers its messages, or a
transaction. Requests say it in headers."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import ApiContext
from braidmq.api.endpoints import Call
from braidmq.engine.transactions.errors import (
    NotYourTransaction,
    OutOfOrderSequence,
    ProducerFenced,
    TooManyBranches,
    TransactionAborted,
    TransactionCommitted,
    TransactionCommitting,
    UnknownProducer,
    UnknownTransaction,
)
from braidmq.engine.transactions.ledger import Transaction
from braidmq.engine.transactions.publishing import Origin
from braidmq.model.errors import BadRequest, BraidError

NAME_CHARACTERS_MAX = 255
NUMBER_MAX = (1 << 62) - 1

Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
ProducerId = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Epoch = Annotated[int, Meta(ge=0, le=0x7FFF)]
TransactionNumber = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Sequence = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]

TRANSACTION_ERRORS: tuple[type[BraidError], ...] = (
    UnknownTransaction,
    NotYourTransaction,
    TransactionCommitted,
    TransactionAborted,
    TransactionCommitting,
)
ORIGIN_ERRORS: tuple[type[BraidError], ...] = (
    UnknownProducer,
    ProducerFenced,
    OutOfOrderSequence,
    TooManyBranches,
    *TRANSACTION_ERRORS,
)


class TransactionHeaders(msgspec.Struct, frozen=True, kw_only=True):
    transaction: (
        Annotated[Name, Meta(description="It counts when this transaction commits")] | UnsetType
    ) = msgspec.field(default=UNSET, name="Braid-Transaction")


class PublishHeaders(TransactionHeaders, frozen=True, kw_only=True):
    transaction_number: (
        Annotated[
            TransactionNumber,
            Meta(description="Which of those that had its name; another one is not published in"),
        ]
        | UnsetType
    ) = msgspec.field(default=UNSET, name="Braid-Transaction-Number")
    branch: (
        Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX, description="Of the transaction")]
        | UnsetType
    ) = msgspec.field(default=UNSET, name="Braid-Branch")
    producer_id: ProducerId | UnsetType = msgspec.field(default=UNSET, name="Braid-Producer-Id")
    producer_epoch: Epoch | UnsetType = msgspec.field(default=UNSET, name="Braid-Producer-Epoch")
    sequence: (
        Annotated[
            Sequence,
            Meta(description="Number of the first message, of those to this topic, from 0 on"),
        ]
        | UnsetType
    ) = msgspec.field(default=UNSET, name="Braid-Sequence")


def origin_of(
    context: ApiContext, call: Call, namespace: str, headers: PublishHeaders
) -> Origin | None:
    """Raises one of ORIGIN_ERRORS."""
    numbered = headers.sequence is not UNSET
    sequence = headers.sequence if headers.sequence is not UNSET else -1
    if headers.transaction is not UNSET:
        if headers.producer_id is not UNSET:
            raise BadRequest("a publish can't name both a producer and a transaction")
        number = 0 if headers.transaction_number is UNSET else headers.transaction_number
        transaction = find_transaction(context, call, namespace, headers.transaction, number)
        branch = "" if headers.branch is UNSET else headers.branch
        return Origin(context.engine().transactions.branch(transaction, branch), sequence)
    if headers.producer_id is UNSET:
        if numbered:
            raise BadRequest("a sequence needs a producer or a transaction")
        return None
    if headers.producer_epoch is UNSET or not numbered:
        raise BadRequest("a producer must give its epoch and a sequence with each publish")
    producer = context.engine().transactions.producer(
        namespace,
        headers.producer_id,
        headers.producer_epoch,
        owner=call.user.name,
        now_ms=context.now_ms,
    )
    return Origin(producer, sequence)


def find_transaction(
    context: ApiContext, call: Call, namespace: str, name: str, number: int = 0
) -> Transaction:
    """One that is open, and the caller's."""
    return context.engine().transactions.find(
        namespace, name, now_ms=context.now_ms, owner=call.user.name, number=number
    )
