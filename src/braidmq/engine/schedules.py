"""Recurring schedules: a message that is published again and again, by cron or interval.

A schedule is a row of the catalogue. A run is two entries of the journal, one behind the other: the
row, with the next time and where the message will stand, and the message. If a crash comes between
them the log has not come that far, and the run is done again; so every run happens once. Runs that
were missed while the node was down, or while the clock jumped, happen once together.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from braidmq.engine import cron
from braidmq.engine.effects import Level
from braidmq.engine.envelope import encode_headers
from braidmq.engine.errors import BadSchedule, TooManySchedules, UnknownSchedule
from braidmq.engine.hooks import Hooks
from braidmq.engine.limits import check_place
from braidmq.engine.pressure import Pressure
from braidmq.engine.publishing import Publishing
from braidmq.engine.state import EngineState, TimerKind
from braidmq.engine.timers import Timers
from braidmq.engine.topics import Topic, TopicPartition
from braidmq.model.errors import BraidError, StorageFailed
from braidmq.model.ids import PartitionId
from braidmq.record.batch import RecordBatch

logger = logging.getLogger(__name__)

SCHEDULES: Final = "schedules"
SCHEDULES_MAX: Final = 10_000
"""Of a node: they are in memory, and in every snapshot."""
INTERVAL_MS_MIN: Final = 1000
INTERVAL_MS_MAX: Final = 400 * 24 * 3600 * 1000
MESSAGE_BYTES_MAX: Final = 65_536
LOOK_MS: Final = 60_000
"""The wall clock decides a schedule's times: so often it is looked at whether that was set."""

BLOCKED_LOOK_MS: Final = 1000
"""So often it is looked at whether publishers are blocked no longer."""
RUNS_PER_TURN: Final = 100
"""Ten thousand that are due together must not stop the loop."""

CRON_STEP_MS: Final = 60_000

Allows = Callable[[str, str, str, str], bool]
"""User, namespace, verb, name."""


class ScheduleRecord(msgspec.Struct, frozen=True):
    """A schedule in the catalogue; its key there is its namespace, topic and name."""

    namespace: str
    topic: str
    name: str
    user: str
    created_ms: int
    value: bytes = b""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    cron: str = ""
    every_ms: Annotated[int, msgspec.Meta(ge=0)] = 0
    zone: str = "UTC"
    partition: int | None = None
    """Whatever its key."""
    paused: bool = False
    next_ms: int = 0
    """By the wall clock."""
    runs: int = 0
    last_ms: int = 0
    placed: tuple[int, int] | None = None
    """Partition and offset of its last message, if the log has come that far."""
    error: str = ""
    """Why the last run did not take place."""


@dataclass(slots=True)
class RunCounts:
    """Of a namespace, since the node started."""

    runs: int = 0
    missed: int = 0
    """Times that passed and were made up for with the run before them. Those of cron count as one:
    each of thousands would have to be looked for, when a node has been down for long."""
    failures: int = 0


@dataclass(slots=True)
class Schedule:
    number: int
    record: ScheduleRecord
    cron: cron.Cron | None
    zone: ZoneInfo


class Schedules:
    def __init__(
        self,
        state: EngineState,
        timers: Timers,
        hooks: Hooks,
        pressure: Pressure,
        publishing: Publishing,
    ) -> None:
        self._state = state
        self._pressure = pressure
        self._publishing = publishing
        self._allows: Allows = lambda user, namespace, verb, name: True
        self._schedules: dict[tuple[str, str, str], Schedule] = {}
        self._by_number: dict[int, Schedule] = {}
        self._next_number = 1
        self._turn_ms = self._runs_of_turn = 0
        self.counts: dict[str, RunCounts] = {}
        """By namespace; they never go back."""
        timers.register(TimerKind.SCHEDULE, self._due)
        hooks.topic_deleted.append(self._topic_deleted)

    def enforce(self, allows: Allows) -> None:
        """Who makes a schedule needs the right to write as long as it runs."""
        self._allows = allows

    def restore(self, now_ms: int) -> None:
        for _, value in self._state.store.catalogue.items(SCHEDULES):
            record = msgspec.msgpack.decode(value, type=ScheduleRecord)
            try:
                schedule = self._add(record)
            except BadSchedule as error:
                # Time zones come and go with the system's data: that must not keep a node down.
                self._add_paused(record, str(error))
                continue
            if self._was_cut_off(record):
                schedule.record = msgspec.structs.replace(record, runs=record.runs - 1)
                self._run(schedule, record.last_ms, now_ms)
            self._arm(schedule, now_ms)

    def _was_cut_off(self, record: ScheduleRecord) -> bool:
        """Whether its last run is noted, and its message never came to the log."""
        if record.placed is None:
            return False
        partition, offset = record.placed
        log = self._state.store.logs.get(PartitionId(partition))
        return log is not None and log.next_offset <= offset

    # --- what there is ---

    def __len__(self) -> int:
        return len(self._schedules)

    def count_by_namespace(self) -> Counter[tuple[str, bool]]:
        """By namespace and whether they are paused."""
        every = self._schedules.values()
        return Counter((each.record.namespace, each.record.paused) for each in every)

    def of(self, namespace: str, topic: str | None = None) -> list[ScheduleRecord]:
        return [
            each.record
            for (here, name, _), each in sorted(self._schedules.items())
            if here == namespace and topic in (None, name)
        ]

    def get(self, namespace: str, topic: str, name: str) -> ScheduleRecord:
        return self._find(namespace, topic, name).record

    def upcoming(self, record: ScheduleRecord, count: int) -> list[int]:
        """Its next times, by the wall clock; none while it is paused."""
        schedule = self._find(record.namespace, record.topic, record.name)
        found: list[int] = []
        at: int | None = record.next_ms
        while at and len(found) < count and not record.paused:
            found.append(at)
            at = self._following(schedule, at)
        return found

    def _find(self, namespace: str, topic: str, name: str) -> Schedule:
        found = self._schedules.get((namespace, topic, name))
        if found is None:
            raise UnknownSchedule(f"topic {topic!r} has no schedule {name!r}")
        return found

    # --- making and changing them ---

    def put(self, record: ScheduleRecord, now_ms: int) -> ScheduleRecord:
        """Make one, or put it in the place of another of its name. Raises BadSchedule, and what
        a publish would for its partition."""
        key = (record.namespace, record.topic, record.name)
        topic = self._state.topic(record.namespace, record.topic)
        size = len(record.value) + len(record.key or b"")
        size += sum(len(name) + len(value) for name, value in record.headers)
        _place(topic, record)
        if size > min(MESSAGE_BYTES_MAX, topic.policy.message_bytes_max):
            raise BadSchedule(f"its message has {size} bytes, and may have {MESSAGE_BYTES_MAX}")
        rule, zone = _rule(record)
        if key not in self._schedules and len(self._schedules) >= SCHEDULES_MAX:
            raise TooManySchedules(f"the node has {SCHEDULES_MAX} schedules")
        schedule = Schedule(0, record, rule, zone)
        following = self._following(schedule, self._state.wall_ms(now_ms))
        if following is None:
            raise BadSchedule(f"{record.cron!r} never comes")
        before = self._schedules.get(key)
        if before is not None:
            self._drop(before)
        record = msgspec.structs.replace(record, next_ms=following)
        self._keep(self._add(record), record)
        self._arm(self._schedules[key], now_ms)
        return record

    def pause(self, namespace: str, topic: str, name: str, *, paused: bool, now_ms: int) -> None:
        """Runs that come while it is paused are not made up for."""
        schedule = self._find(namespace, topic, name)
        if schedule.record.paused == paused:
            return
        if not paused:
            schedule.cron, schedule.zone = _rule(schedule.record)
        following = 0 if paused else self._following(schedule, self._state.wall_ms(now_ms)) or 0
        self._keep(
            schedule,
            msgspec.structs.replace(schedule.record, paused=paused, next_ms=following, placed=None),
        )
        self._arm(schedule, now_ms)

    def delete(self, namespace: str, topic: str, name: str) -> None:
        schedule = self._find(namespace, topic, name)
        self._drop(schedule)
        self._state.store.change([(SCHEDULES, _key(schedule.record), None)])

    def _topic_deleted(self, topic: Topic) -> None:
        if self._state.topics.get((topic.namespace, topic.name)) is not None:
            return  # another of its name is there already
        for (namespace, name, _), schedule in list(self._schedules.items()):
            if (namespace, name) == (topic.namespace, topic.name):
                self._drop(schedule)
                self._state.store.change([(SCHEDULES, _key(schedule.record), None)])

    def _add(self, record: ScheduleRecord) -> Schedule:
        rule, zone = _rule(record)
        return self._enter(record, rule, zone)

    def _add_paused(self, record: ScheduleRecord, error: str) -> None:
        logger.error(
            "a schedule is paused: its times can't be told any more",
            extra={
                "namespace": record.namespace,
                "topic": record.topic,
                "schedule": record.name,
                "reason": error,
            },
        )
        record = msgspec.structs.replace(record, paused=True, next_ms=0, error=error)
        self._enter(record, None, ZoneInfo("UTC"))

    def _enter(self, record: ScheduleRecord, rule: cron.Cron | None, zone: ZoneInfo) -> Schedule:
        schedule = Schedule(self._next_number, record, rule, zone)
        self._next_number += 1
        self._schedules[record.namespace, record.topic, record.name] = schedule
        self._by_number[schedule.number] = schedule
        return schedule

    def _drop(self, schedule: Schedule) -> None:
        record = schedule.record
        del self._schedules[record.namespace, record.topic, record.name]
        del self._by_number[schedule.number]

    def _keep(self, schedule: Schedule, record: ScheduleRecord) -> None:
        schedule.record = record
        value = msgspec.msgpack.encode(record)
        self._state.store.change([(SCHEDULES, _key(record), value)])

    # --- time ---

    def _following(self, schedule: Schedule, wall_ms: int) -> int | None:
        if schedule.cron is not None:
            return schedule.cron.after(wall_ms, schedule.zone)
        record = schedule.record
        passed = max(wall_ms - record.created_ms, 0) // record.every_ms
        return record.created_ms + (passed + 1) * record.every_ms

    def _arm(self, schedule: Schedule, now_ms: int) -> None:
        record = schedule.record
        if record.paused or not record.next_ms:
            return
        wait_ms = max(record.next_ms - self._state.wall_ms(now_ms), 0)
        due_ms = now_ms + min(wait_ms, LOOK_MS)
        self._state.wheel.schedule(due_ms, TimerKind.SCHEDULE, schedule.number, record.next_ms)

    def _due(self, owner: int, planned_ms: int, _b: int, now_ms: int) -> None:
        schedule = self._by_number.get(owner)
        if schedule is None or schedule.record.paused or schedule.record.next_ms != planned_ms:
            return  # deleted, paused or changed since
        if self._state.wall_ms(now_ms) >= planned_ms:
            if wait_ms := self._wait_ms(now_ms):
                at_ms = now_ms + wait_ms
                self._state.wheel.schedule(at_ms, TimerKind.SCHEDULE, owner, planned_ms)
                return
            self._run(schedule, planned_ms, now_ms)
        self._arm(schedule, now_ms)

    def _wait_ms(self, now_ms: int) -> int:
        """How long one that is due has to wait. While publishers are blocked its runs are missed,
        as while the node is down: in the end they happen once."""
        if self._pressure.level is Level.BLOCKED:
            return BLOCKED_LOOK_MS
        if self._turn_ms != now_ms:
            self._turn_ms, self._runs_of_turn = now_ms, 0
        self._runs_of_turn += 1
        return int(self._runs_of_turn > RUNS_PER_TURN)

    def _run(self, schedule: Schedule, planned_ms: int, now_ms: int) -> None:
        record, wall_ms = schedule.record, self._state.wall_ms(now_ms)
        following = self._following(schedule, max(wall_ms, planned_ms)) or 0
        advanced = msgspec.structs.replace(
            record, next_ms=following, last_ms=planned_ms, placed=None, error=""
        )
        counts = self.counts.setdefault(record.namespace, RunCounts())
        counts.missed += self._missed(schedule, planned_ms, wall_ms)
        try:
            self._publish(schedule, advanced, now_ms)
            counts.runs += 1
        except StorageFailed:
            raise
        except BraidError as error:
            counts.failures += 1
            logger.warning(
                "a scheduled message was not published",
                extra={
                    "namespace": record.namespace,
                    "topic": record.topic,
                    "schedule": record.name,
                    "reason": str(error),
                },
            )
            self._keep(schedule, msgspec.structs.replace(advanced, error=str(error)))

    def _missed(self, schedule: Schedule, planned_ms: int, wall_ms: int) -> int:
        if schedule.cron is None:
            return max(wall_ms - planned_ms, 0) // schedule.record.every_ms
        if wall_ms - planned_ms < CRON_STEP_MS:
            return 0
        following = schedule.cron.after(planned_ms, schedule.zone)
        return int(following is not None and following <= wall_ms)

    def _publish(self, schedule: Schedule, advanced: ScheduleRecord, now_ms: int) -> None:
        if not self._allows(advanced.user, advanced.namespace, "write", advanced.topic):
            raise BadSchedule(f"user {advanced.user!r} may not write to it any more")
        topic = self._state.topic(advanced.namespace, advanced.topic)
        partition = _place(topic, advanced)
        batch = RecordBatch()
        batch.append(
            advanced.value,
            key=advanced.key,
            envelope=encode_headers(
                [
                    *advanced.headers,
                    ("schedule", advanced.name.encode()),
                    ("scheduled-for", str(advanced.last_ms).encode()),
                ]
            ),
            timestamp_ms=now_ms,
        )
        log = partition.log
        # First where it will be, then the message: a crash between them is noticed.
        self._keep(
            schedule,
            msgspec.structs.replace(
                advanced, placed=(log.id, log.next_offset), runs=schedule.record.runs + 1
            ),
        )
        try:
            self._publishing.publish(topic, batch, now_ms, partition=partition.number)
            topic.round_robin = (partition.number + 1) % topic.width
        except BraidError:
            schedule.record = msgspec.structs.replace(
                schedule.record, runs=schedule.record.runs - 1
            )
            raise


def _key(record: ScheduleRecord) -> str:
    return f"{record.namespace}\0{record.topic}\0{record.name}"


def _place(topic: Topic, record: ScheduleRecord) -> TopicPartition:
    """Where its next message goes. Raises what a publish would."""
    if record.partition is not None:
        return topic.open_partition(record.partition)
    check_place(topic)
    return topic.partition_of(record.key)


def _rule(record: ScheduleRecord) -> tuple[cron.Cron | None, ZoneInfo]:
    """Raises BadSchedule."""
    try:
        zone = ZoneInfo(record.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadSchedule(f"there is no time zone {record.zone!r}") from None
    if bool(record.cron) == bool(record.every_ms):
        raise BadSchedule("a schedule has either cron or every_ms")
    if not record.cron:
        if not INTERVAL_MS_MIN <= record.every_ms <= INTERVAL_MS_MAX:
            raise BadSchedule(f"every_ms is {INTERVAL_MS_MIN} to {INTERVAL_MS_MAX}")
        return None, zone
    try:
        return cron.parse(record.cron), zone
    except cron.BadCron as error:
        raise BadSchedule(f"cron: {error}") from None
