"""Everything a node keeps over a restart, as plain values: two that went through the same entries
have the same.

Of every class that has durable state each field is named here, as durable or with the reason why it
is not. A field that is new is neither: ``state_of`` fails until somebody has said which it is.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from braidmq.engine.engine import Engine
from braidmq.engine.recovery import DeliveryNotes
from braidmq.engine.state import CANCELLED, EngineState
from braidmq.engine.states import State
from braidmq.engine.topics import PartitionView, Subscription, Topic, TopicPartition
from braidmq.engine.transactions.ledger import Branch, Ledger, Producer, Transaction
from braidmq.engine.transactions.sequences import Layouts, Mark, Sequences
from braidmq.model.ids import PartitionId
from braidmq.record.offset_set import OffsetSet
from braidmq.storage.catalogue import Catalogue
from braidmq.storage.participant import Participant
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.state import StoreState
from braidmq.storage.store import Store

Values = dict[str, object]

FROM_POLICY = "from its policy"
COUNTED = "counted since the node was started"
TIMER = "a timer, set anew"
READING = "where its records lie: what they are is compared"
INDEX = "finds what is compared already"
NOBODY = "clients are gone after a restart"


class Fields(NamedTuple):
    durable: frozenset[str]
    volatile: Mapping[str, str]
    """And why."""


def _fields(*durable: str, **volatile: str) -> Fields:
    return Fields(frozenset(durable), volatile)


FIELDS: dict[type, Fields] = {
    StoreState: _fields(
        "catalogue",
        "logs",
        "acknowledged",
        "next_partition",
        "terms",
        "participants",
        memory="bytes that tails take",
        recovery="what opening found",
        dirty="what a checkpoint has to write",
        evictable="what may leave memory",
        obsolete="files that may go",
        unsaid="what the next checkpoint says",
        left_out="what the next checkpoint says",
        checks_digest="whether it follows another",
        by_kind=INDEX,
        _subscribers=INDEX,
        _acknowledging=INDEX,
        _files="open files",
        _index_interval="a setting",
        _on_damage="a caller",
    ),
    Catalogue: _fields("_tables"),
    PartitionLog: _fields(
        "id",
        "label",
        "start_offset",
        "next_offset",
        "damage",
        durable="only those that are, are compared",
        _form="a row of the catalogue, or from its topic's policy",
        segments=READING,
        flushed_offset=READING,
        _tail=READING,
        _head=READING,
        _sealed=READING,
        _shares=READING,
        _extending=READING,
        _indexes=READING,
        _memory="bytes that tails take",
        _files="open files",
        acknowledged="the sets of its subscriptions, which are compared",
        pinned_offset="from leases, which are rows of the catalogue",
        appended_bytes=COUNTED,
        on_damage="a caller",
    ),
    Ledger: _fields(
        "producers",
        "transactions",
        "outcomes",
        "applications",
        "application_owners",
        "application_instances",
        "next_producer",
        "next_transaction",
        "layouts",
        name="of the participant",
        kinds="of the participant",
        producers_by_name=INDEX,
        by_name=INDEX,
        _layouts_of=INDEX,
    ),
    Producer: _fields(
        "id", "epoch", "namespace", "name", "owner", "marks", last_seen_ms="its time begins anew"
    ),
    Layouts: _fields("generation", "current", "past"),
    Mark: _fields("generation", "highest", "older", "recent"),
    Branch: _fields("index", "name", "marks", "claims", transaction="has it"),
    Transaction: _fields(
        "begun",
        "branches",
        "acknowledged",
        "offsets",
        "committing",
        "prepared",
        "marked",
        branches_by_index=INDEX,
        completed="those that are, are gone",
        guards=NOBODY,
        holders="consumers that stand for it, made anew",
        last_seen_ms="its time begins anew",
        deadline_ms="from what began it",
        timer=TIMER,
    ),
    DeliveryNotes: _fields(
        "kept",
        name="of the participant",
        kinds="of the participant",
        state="the engine's, which is compared",
        replayed="empty once the kernels know",
    ),
    EngineState: _fields(
        "topics",
        "templates",
        "_next_ids",
        store="compared by itself",
        wheel=TIMER,
        upkeep="settings",
        quotas="of namespaces, which accounts keep; what is used is counted again",
        topics_by_id=INDEX,
        partitions=INDEX,
        subscriptions=INDEX,
        views=INDEX,
        consumers=NOBODY,
        dirty="what to look at next",
        crowded="what to look at next",
        quiet="what to look at next",
        notices="for members, who are told anew",
        effects="told once",
        totals=COUNTED,
        clock="what the time is",
        clocks="what the time is",
        ages=COUNTED,
    ),
    Topic: _fields(
        "id",
        "namespace",
        "name",
        "kind",
        "settings",
        "attributes",
        "policy",
        "partitions",
        "subscriptions",
        "created_ms",
        "quarantined",
        "width",
        "closed",
        "resizes",
        durable="only those that are, are compared",
        round_robin="where the next message without key goes",
        published=COUNTED,
        last_used_ms="its time begins anew",
        idle_timer=TIMER,
        compaction_timer=TIMER,
        deleted="those that are, are gone",
        stand_in="from its policy and subscriptions",
        **dict.fromkeys(
            (
                *("dead_letter", "lane_of", "drops_head", "counts_ready", "bounded", "journaled"),
                *("message_bytes_max", "until_acked", "deduplicates", "takes_any", "limited"),
                *("keeps_acked", "keeps_transient", "by_key", "needs_partition", "prefetch_max"),
            ),
            FROM_POLICY,
        ),
    ),
    TopicPartition: _fields(
        "number",
        "log",
        "open_transactions",
        topic="has it",
        views="its subscriptions have them",
        clock="what the time is",
        older_clocks="what the time was",
        has_dates="from its records",
        later="from its records, when its timers are set",
        head_timer=TIMER,
        kept="when what is acknowledged goes: its time begins anew",
        undecided="from open transactions",
        undecided_bytes="from open transactions",
        look_ms="when retention looks next",
        look_offset="when retention looks next",
        look_size="when retention looks next",
        check_offset="when retention looks next",
    ),
    Subscription: _fields(
        "id",
        "name",
        "mode",
        "uncommitted",
        "views",
        durable="only those that are, are compared",
        topic="has it",
        gate=NOBODY,
        barriers="from the resizes of its topic and what is settled",
        keeps_sent="set by whoever attaches",
        **dict.fromkeys(
            (
                *("active", "assignment", "revoking", "consumers", "exclusive", "keys", "watched"),
                *("rotor", "next_partition", "served"),
            ),
            NOBODY,
        ),
        **dict.fromkeys(
            (
                *("acked", "nacked", "rejected", "expired", "delivered", "redelivered"),
                *("dead_lettered", "timed_out"),
            ),
            COUNTED,
        ),
    ),
    PartitionView: _fields(
        "partition",
        "state",
        id="numbered anew",
        subscription="has it",
        lanes=FROM_POLICY,
        oldest_ms="from its records",
        oldest_offset="from its records",
        ready_since="from its records",
    ),
}


def fields_of(each: object) -> set[str]:
    found = set(getattr(each, "__dict__", ()))
    for kind in type(each).__mro__:
        found.update(getattr(kind, "__mypyc_attrs__", ()), kind.__dict__.get("__slots__", ()))
    return found - {"__dict__", "__weakref__"}


def _durable(each: object, convert: Mapping[str, Callable[[Any], object]]) -> Values:
    """Its durable fields, as they are or converted."""
    fields, found = FIELDS[type(each)], fields_of(each)
    unknown = found - fields.durable - fields.volatile.keys()
    assert not unknown, f"{type(each).__name__}: durable or not? {sorted(unknown)}"
    gone = (fields.durable | fields.volatile.keys()) - found
    assert not gone, f"{type(each).__name__} has no {sorted(gone)} any more"
    return {
        name: convert[name](getattr(each, name)) if name in convert else getattr(each, name)
        for name in sorted(fields.durable)
    }


def differences(one: object, other: object, path: str = "") -> list[str]:
    """Where two states differ, and how."""
    if one == other:
        return []
    if isinstance(one, dict) and isinstance(other, dict):
        keys = [*one, *(key for key in other if key not in one)]
        return [
            line
            for key in keys
            for line in differences(one.get(key), other.get(key), f"{path}/{key}")
        ]
    return [f"{path}: {one!r} and {other!r}"]


# --- storage ---


def state_of(store: Store) -> Values:
    state = store.state
    return _durable(
        state,
        {
            "catalogue": lambda catalogue: _durable(catalogue, {"_tables": _rows}),
            "logs": lambda logs: {
                number: _log(log, state) for number, log in logs.items() if log.is_kept
            },
            "acknowledged": lambda sets: {
                key: offsets
                for key, settled in sets.items()
                if key[1] in state.logs and state.logs[key[1]].is_kept
                if (offsets := offsets_of(settled)) != (0, ())
            },
            "participants": lambda each: {
                name: _participant(participant, state) for name, participant in each.items()
            },
        },
    )


def _rows(tables: Mapping[str, Mapping[str, bytes]]) -> object:
    return {name: dict(rows) for name, rows in tables.items() if rows}


def offsets_of(settled: OffsetSet) -> tuple[int, tuple[tuple[int, int], ...]]:
    return settled.floor, tuple(settled.ranges_above_floor())


def _log(log: PartitionLog, state: StoreState) -> Values:
    values = _durable(log, {})
    if log.acknowledged and log.damage is None:
        # A queue's start follows what is acknowledged, and is seldom journaled by itself.
        floor = min(each.floor for each in log.acknowledged)
        values["start_offset"] = max(log.start_offset, min(floor, log.pinned_offset))
    values["records"] = [] if log.damage is not None else list(_records(log, state))
    return values


def _records(log: PartitionLog, state: StoreState) -> Iterable[tuple[object, ...]]:
    """Those that somebody may want: memory may still have others, and how long one is kept that
    all have acknowledged begins anew with a restart."""
    at = log.start_offset
    sets = {owner: each for (owner, number), each in state.acknowledged.items() if number == log.id}
    cancelled = sets.pop(CANCELLED, OffsetSet())
    while runs := log.read(at):
        for run in runs:
            for index in range(run.first, run.stop):
                record = run.batch.record(index)
                at = record.offset + 1
                if not log.acknowledged or not (
                    all(record.offset in each for each in log.acknowledged)
                    or record.offset in cancelled
                    or (sets and all(record.offset in each for each in sets.values()))
                ):
                    yield tuple(record)


def _participant(participant: Participant, state: StoreState) -> object:
    if isinstance(participant, Ledger):
        return state_of_ledger(participant, state.logs)
    if isinstance(participant, DeliveryNotes):
        return _durable(participant, {})
    return participant.dump()


# --- producers and transactions ---


def state_of_ledger(ledger: Ledger, logs: Mapping[PartitionId, PartitionLog]) -> Values:
    def marks(each: Sequences) -> Mapping[PartitionId, Values]:
        return {at: _durable(mark, {"recent": list}) for at, mark in each.marks.items()}

    def branch(each: Branch) -> Values:
        return _durable(each, {"marks": lambda _: marks(each), "claims": dict})

    def producer(each: Producer) -> Values:
        # Of partitions that are gone they are forgotten in time.
        left = {at: mark for at, mark in marks(each).items() if at in logs}
        return _durable(each, {"marks": lambda _: left})

    return _durable(
        ledger,
        {
            "producers": lambda producers: {
                number: producer(each) for number, each in producers.items()
            },
            "transactions": lambda transactions: {
                number: _durable(
                    each, {"branches": lambda found: {k: branch(b) for k, b in found.items()}}
                )
                for number, each in transactions.items()
            },
            "outcomes": lambda outcomes: list(outcomes.items()),
            "layouts": lambda layouts: {
                topic: _durable(each, {"current": list, "past": list})
                for topic, each in layouts.items()
                if any(at in logs and logs[at].is_kept for at in each.current)
            },
        },
    )


# --- the engine ---


def state_of_engine(engine: Engine, now_ms: int) -> Values:
    """Of the engine and its store, as if everybody had left."""
    outliving = engine.state.outliving_consumers()
    values = _durable(
        engine.state,
        {
            "topics": lambda topics: {
                key: _topic(each, now_ms, outliving) for key, each in topics.items() if each.durable
            },
            "_next_ids": lambda ids: {kind: ids[kind] for kind in ("topic", "subscription")},
        },
    )
    return {"engine": values, "store": state_of(engine.store)}


def _topic(topic: Topic, now_ms: int, outliving: set[int]) -> Values:
    return _durable(
        topic,
        {
            "closed": lambda closed: closed or {},
            "partitions": lambda partitions: [
                _durable(
                    each,
                    {
                        "log": lambda log: log.id,
                        # What transactions had in memory is gone with it.
                        "open_transactions": lambda found: (not topic.in_memory and found) or {},
                    },
                )
                for each in partitions
            ],
            "subscriptions": lambda subscriptions: {
                name: _durable(
                    each,
                    {"views": lambda views: [_view(view, now_ms, outliving) for view in views]},
                )
                for name, each in subscriptions.items()
                if each.durable
            },
        },
    )


def _view(view: PartitionView, now_ms: int, outliving: set[int]) -> Values:
    return _durable(
        view,
        {
            "partition": lambda each: each.number,
            "state": lambda _: _deliveries(view, now_ms, outliving),
        },
    )


def _deliveries(view: PartitionView, now_ms: int, outliving: set[int]) -> Values:
    """What was delivered is ready again; what waits goes on waiting. Of records in memory nothing
    is left."""
    state = view.state
    if view.log.in_memory:
        return {}
    noted: dict[int, tuple[int, State, int]] = {}
    for start, stop, attempts, was, deadline in state.notes(outliving):
        waits = was in (State.WAITING, State.IN_FLIGHT) and deadline > now_ms
        for offset in range(start, stop):
            noted[offset] = (
                (attempts, State.WAITING, deadline) if waits else (attempts, State.READY, 0)
            )
    return {
        "settled": offsets_of(state.settled),
        "end": state.end,
        "depth": (state.depth, state.depth_bytes),
        "delayed": state.delayed,
        "noted": noted,
    }
