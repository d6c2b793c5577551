"""How a transaction ends: what is written at its end, what is logged, what latecomers are told."""

import logging
from collections.abc import Sequence

import msgspec

from braidmq.engine.topics import TopicPartition
from braidmq.engine.transactions.errors import (
    ProducerFenced,
    TransactionAborted,
    TransactionCommitted,
    UnknownTransaction,
)
from braidmq.engine.transactions.ledger import Transaction
from braidmq.model.errors import BraidError
from braidmq.model.ids import PartitionId
from braidmq.record.batch import FLAG_COMMIT, FLAG_CONTROL, RecordBatch

logger = logging.getLogger(__name__)

TIMED_OUT = "timeout"
SILENT = "session"
FENCED = "fenced"
ASKED = "aborted"
OWNER_GONE = "restart"

Claimed = tuple[PartitionId, int, int]
"""A partition, and the offsets of records in it from the first to before the last."""


def require_number(name: str, wanted: int, found: int) -> None:
    if wanted not in (0, found):
        raise UnknownTransaction(
            f"this transaction {name!r} is over, and another of its name was begun",
            remedy="Repeat its work in a new one, unless its effects are visible",
        )


def over(name: str, committed: bool, reason: str) -> BraidError:
    if committed:
        return TransactionCommitted(f"transaction {name!r} is committed")
    if reason == FENCED:
        return ProducerFenced(f"the producer of transaction {name!r} was opened by another")
    return TransactionAborted(f"transaction {name!r} was aborted: {reason}")


def lost(transaction: Transaction, partitions: Sequence[TopicPartition]) -> list[Claimed]:
    """Records of branches that lost, in these partitions."""
    here = {partition.log.id for partition in partitions}
    return [
        (number, start, stop)
        for branch in transaction.losers()
        for number, claimed in branch.claims.items()
        for start, stop in claimed
        if number in here
    ]


def marker(transaction: Transaction, now_ms: int) -> RecordBatch:
    """What stands at the end of a transaction in each of its partitions: whether it is committed,
    its number and name, and by partition the offsets that nobody gets."""
    decided = transaction.prepared
    assert decided is not None
    losses: dict[PartitionId, list[tuple[int, int]]] = {}
    for branch in transaction.losers():
        for partition, ranges in branch.claims.items():
            losses.setdefault(partition, []).extend(ranges)
    value = msgspec.msgpack.encode(
        (decided.commit, transaction.number, transaction.begun.name, losses)
    )
    marker = RecordBatch()
    flags = FLAG_CONTROL | FLAG_COMMIT if decided.commit else FLAG_CONTROL
    marker.append(value, flags=flags, timestamp_ms=now_ms)
    return marker


def log_end(transaction: Transaction) -> None:
    decided = transaction.prepared
    assert decided is not None
    level = logging.DEBUG if decided.commit or decided.reason == ASKED else logging.WARNING
    logger.log(
        level,
        "transaction committed" if decided.commit else "transaction aborted",
        extra={
            "namespace": transaction.begun.namespace,
            "transaction": transaction.begun.name or transaction.number,
            "reason": decided.reason,
        },
    )
