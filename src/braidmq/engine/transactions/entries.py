"""What the journal keeps of producers and transactions. This module owns these formats.

A batch that somebody numbered, or that belongs to a transaction, has a stamp at the end of the
meta of its RECORDS entry:

    byte  0          8       10     11 12       14            22         30       38      42
          ┌──────────┬───────┬──────┬──┬────────┬─────────────┬──────────┬────────┬───────┐
          │ producer │ epoch │ kind │0 │ branch │ transaction │ sequence │ last   │records│
          └──────────┴───────┴──────┴──┴────────┴─────────────┴──────────┴────────┴───────┘

Little-endian. ``sequence`` numbers the first message of the publish this batch is a part of,
``last`` the last message of this part; both are -1 where nothing is numbered. Of a transaction's
records the numbers are those of its branch, and producer is 0.

TRANSACTION entries and the snapshot's section are MessagePack of the structures below.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

import msgspec

STAMP = struct.Struct("<QHBxHQqqI")


class StampKind(IntEnum):
    NUMBERED = 0
    """Records of a producer."""
    IN_TRANSACTION = 1
    COMMIT_MARKER = 2
    ABORT_MARKER = 3


class Stamp(NamedTuple):
    producer: int = 0
    epoch: int = 0
    kind: int = StampKind.NUMBERED
    branch: int = 0
    transaction: int = 0
    sequence: int = -1
    last: int = -1
    records: int = 0

    def encode(self) -> bytes:
        return STAMP.pack(*self)


def decode_stamp(data: bytes) -> Stamp:
    return Stamp(*STAMP.unpack(data))


class Application(NamedTuple):
    """A program that numbers its transactions, and which of its lives this is."""

    name: str
    epoch: int
    sequence: int
    instance: str = ""
    """Which program counts: another one with the same epoch would begin at numbers that are used
    up. Empty: it does not say."""


class ProducerSet(msgspec.Struct, tag="producer", array_like=True, frozen=True):
    """A producer was made, or has a new epoch."""

    id: int
    epoch: int
    namespace: str
    name: str
    owner: str


class ProducerForgotten(msgspec.Struct, tag="producer-forgotten", array_like=True, frozen=True):
    id: int


class Begun(msgspec.Struct, tag="begun", array_like=True, frozen=True):
    number: int
    namespace: str
    name: str
    owner: str
    producer: int
    application: Application | None
    started_ms: int
    timeout_ms: int
    session_ms: int
    staged: bool = False
    """What is published in it lies outside its topics until it is committed."""


class BranchAdded(msgspec.Struct, tag="branch", array_like=True, frozen=True):
    transaction: int
    index: int
    name: str


class Acknowledged(msgspec.Struct, tag="acknowledged", array_like=True, frozen=True):
    """Messages that are settled when the transaction commits, and ready again when not."""

    transaction: int
    subscription: int
    partition: int
    ranges: list[tuple[int, int]]


class OffsetCommitted(msgspec.Struct, tag="offset", array_like=True, frozen=True):
    """Everything below an offset is settled when the transaction commits."""

    transaction: int
    subscription: int
    partition: int
    offset: int


class Committing(msgspec.Struct, tag="committing", array_like=True, frozen=True):
    """What is staged of some branches, in this order, is being copied to its topics. Not yet the
    decision: what can't be copied aborts it."""

    transaction: int
    winners: list[int]


class Prepared(msgspec.Struct, tag="prepared", array_like=True, frozen=True):
    """The decision, which nothing takes back."""

    transaction: int
    commit: bool
    reason: str
    winners: list[int]
    """Branches that are committed; of the others everything is aborted."""


class Completed(msgspec.Struct, tag="completed", array_like=True, frozen=True):
    transaction: int
    ended_ms: int


class NamespaceForgotten(msgspec.Struct, tag="namespace-forgotten", array_like=True, frozen=True):
    """It was deleted, with all that is in it."""

    namespace: str


class Resized(msgspec.Struct, tag="resized", array_like=True, frozen=True):
    """Messages of a topic are dealt among its partitions in another way from now on."""

    topic: int
    before: list[int]
    """The partitions they were dealt among."""
    by_key: bool
    """Whether keys counted."""
    after: list[int]


TransactionEntry = (
    ProducerSet
    | ProducerForgotten
    | Begun
    | BranchAdded
    | Acknowledged
    | OffsetCommitted
    | Committing
    | Prepared
    | Completed
    | NamespaceForgotten
    | Resized
)

encode_entry = msgspec.msgpack.Encoder().encode
decode_entry = msgspec.msgpack.Decoder(TransactionEntry).decode


# --- the snapshot's section ---


class MarkState(msgspec.Struct, array_like=True):
    partition: int
    highest: int
    recent: list[tuple[int, int, int]]
    generation: int = 0
    older: list[tuple[int, int]] = []


class ProducerState(msgspec.Struct, array_like=True):
    id: int
    epoch: int
    namespace: str
    name: str
    owner: str
    marks: list[MarkState]


class BranchState(msgspec.Struct, array_like=True):
    index: int
    name: str
    marks: list[MarkState]
    claims: dict[int, list[tuple[int, int]]]


class TransactionState(msgspec.Struct, array_like=True):
    begun: Begun
    branches: list[BranchState]
    acknowledged: list[Acknowledged]
    offsets: list[OffsetCommitted]
    prepared: Prepared | None
    marked: bool
    committing: Committing | None = None


class Outcome(msgspec.Struct, array_like=True, frozen=True):
    """How a transaction ended. There may be many, so that the snapshot takes them as they are."""

    namespace: str
    name: str
    owner: str
    committed: bool
    reason: str
    ended_ms: int
    number: int = 0
    """Which of those that had its name it was."""


class ApplicationState(msgspec.Struct, array_like=True):
    namespace: str
    name: str
    epoch: int
    sequence: int
    owner: str = ""
    """Empty: written before owners were kept."""
    instance: str = ""


class LayoutState(msgspec.Struct, array_like=True):
    generation: int
    partitions: list[int]
    by_key: bool


class LayoutsState(msgspec.Struct, array_like=True):
    topic: int
    generation: int
    current: list[int]
    past: list[LayoutState]


class LedgerState(msgspec.Struct, array_like=True):
    next_producer: int
    next_transaction: int
    producers: list[ProducerState]
    transactions: list[TransactionState]
    outcomes: list[Outcome]
    applications: list[ApplicationState]
    layouts: list[LayoutsState] = []


encode_state = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(LedgerState).decode
