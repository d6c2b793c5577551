"""Recurring schedules: made, listed, paused, deleted."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from braidmq.api.context import (
    ApiContext,
    InNamespace,
    ListInNamespace,
    MillisecondsSinceEpoch,
)
from braidmq.api.endpoints import Body, Call, operation
from braidmq.api.messages import Partition
from braidmq.api.paging import Page, cursor_of, first_of, place_in
from braidmq.engine.errors import (
    BadSchedule,
    PartitionRequired,
    TooManySchedules,
    UnknownPartition,
    UnknownSchedule,
    UnknownTopic,
)
from braidmq.engine.schedules import INTERVAL_MS_MAX, INTERVAL_MS_MIN, ScheduleRecord
from braidmq.model.errors import NotFound
from braidmq.security.records import check_name
from braidmq.security.rights import any_right, listing, write
from braidmq.security.token_logins import require_account

UPCOMING = 5


class NewSchedule(Body, frozen=True):
    value: Annotated[str, Meta(description="What is published")] = ""
    key: str | UnsetType = UNSET
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    cron: Annotated[
        str,
        Meta(
            max_length=200,
            description="minute hour day-of-month month day-of-week",
            examples=["*/15 9-17 * * mon-fri"],
        ),
    ] = ""
    every_ms: (
        Annotated[int, Meta(ge=INTERVAL_MS_MIN, le=INTERVAL_MS_MAX, description="Instead of cron")]
        | UnsetType
    ) = UNSET
    zone: Annotated[str, Meta(max_length=64, description="Of cron", examples=["Europe/Berlin"])] = (
        "UTC"
    )
    partition: Annotated[Partition, Meta(description="Whatever the key")] | UnsetType = UNSET
    paused: bool = False


class ScheduleInfo(msgspec.Struct, frozen=True):
    namespace: str
    topic: str
    name: str
    user: Annotated[str, Meta(description="Who made it, and needs the right to write to the topic")]
    created_ms: MillisecondsSinceEpoch
    value: str
    headers: dict[str, str]
    cron: str
    every_ms: int
    zone: str
    paused: bool
    next_runs_ms: Annotated[
        list[MillisecondsSinceEpoch], Meta(description="The next five; none while it is paused")
    ]
    runs: Annotated[int, Meta(description="Messages it has published")]
    last_run_ms: Annotated[int, Meta(description="When that was planned for; 0: never")]
    error: Annotated[str, Meta(description="Why the last run published nothing")]
    key: str | UnsetType = UNSET
    partition: int | UnsetType = UNSET


class SchedulesResource:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/schedules",
        right=listing("schedules of topics that the caller may read, write or configure"),
        tag="schedules",
        errors=(NotFound,),
    )
    async def list_schedules(self, call: Call, query: ListInNamespace) -> list[ScheduleInfo] | Page:
        """List the schedules of a namespace, by topic and name."""
        found = self._context.engine().schedules.of(query.namespace)
        return await self._page([each for each in found if call.grants.sees(each.topic)], query)

    @operation(
        "GET",
        "/v1/topics/{topic}/schedules",
        right=any_right("topic"),
        tag="schedules",
        errors=(UnknownTopic,),
    )
    async def list_topic_schedules(
        self, call: Call, topic: str, query: ListInNamespace
    ) -> list[ScheduleInfo] | Page:
        """List the schedules of a topic, by name."""
        self._context.topic(call, topic)
        return await self._page(self._context.engine().schedules.of(query.namespace, topic), query)

    @operation(
        "GET",
        "/v1/topics/{topic}/schedules/{name}",
        right=any_right("topic"),
        tag="schedules",
        errors=(UnknownSchedule,),
    )
    async def get_schedule(
        self, call: Call, topic: str, name: str, query: InNamespace
    ) -> ScheduleInfo:
        """Describe a schedule, with its next runs."""
        return self._described(self._context.engine().schedules.get(query.namespace, topic, name))

    @operation(
        "PUT",
        "/v1/topics/{topic}/schedules/{name}",
        right=write("topic").noting("as long as the schedule is to run"),
        tag="schedules",
        errors=(UnknownTopic, BadSchedule, TooManySchedules, PartitionRequired, UnknownPartition),
        examples=({"value": "tick", "cron": "*/15 9-17 * * mon-fri", "zone": "Europe/Berlin"},),
    )
    async def put_schedule(
        self, call: Call, topic: str, name: str, query: InNamespace, body: NewSchedule
    ) -> ScheduleInfo:
        """Publish a message again and again, by cron or interval.

        One of that name is replaced. Runs that were missed while the node was down happen once,
        together.
        """
        check_name(name, "schedule")
        require_account(call.user, "in whose name it could run once that has ended")
        now_ms = self._context.now_ms
        engine = self._context.engine()
        record = ScheduleRecord(
            query.namespace,
            topic,
            name,
            call.grants.user,
            engine.state.wall_ms(now_ms),
            value=body.value.encode(),
            key=None if body.key is UNSET else body.key.encode(),
            headers=tuple((field, value.encode()) for field, value in body.headers.items()),
            cron=body.cron,
            every_ms=0 if body.every_ms is UNSET else body.every_ms,
            zone=body.zone,
            partition=None if body.partition is UNSET else body.partition,
            paused=body.paused,
        )
        made = engine.schedules.put(record, now_ms)
        await self._context.done()
        return self._described(made)

    @operation(
        "POST",
        "/v1/topics/{topic}/schedules/{name}/pause",
        right=write("topic"),
        tag="schedules",
        errors=(UnknownSchedule,),
    )
    async def pause_schedule(
        self, call: Call, topic: str, name: str, query: InNamespace
    ) -> ScheduleInfo:
        """Let it rest. What it would have published meanwhile is not made up for."""
        return await self._pause(query.namespace, topic, name, paused=True)

    @operation(
        "POST",
        "/v1/topics/{topic}/schedules/{name}/resume",
        right=write("topic"),
        tag="schedules",
        errors=(UnknownSchedule,),
    )
    async def resume_schedule(
        self, call: Call, topic: str, name: str, query: InNamespace
    ) -> ScheduleInfo:
        """Go on, with the next run that is due from now on."""
        return await self._pause(query.namespace, topic, name, paused=False)

    @operation(
        "DELETE",
        "/v1/topics/{topic}/schedules/{name}",
        right=write("topic"),
        tag="schedules",
        statuses=(204,),
        errors=(UnknownSchedule,),
    )
    async def delete_schedule(self, call: Call, topic: str, name: str, query: InNamespace) -> None:
        """Delete a schedule. What it has published stays."""
        self._context.engine().schedules.delete(query.namespace, topic, name)
        await self._context.done()

    async def _pause(self, namespace: str, topic: str, name: str, *, paused: bool) -> ScheduleInfo:
        schedules = self._context.engine().schedules
        schedules.pause(namespace, topic, name, paused=paused, now_ms=self._context.now_ms)
        found = self._described(schedules.get(namespace, topic, name))
        await self._context.done()
        return found

    async def _page(self, records: Sequence[ScheduleRecord], query: ListInNamespace) -> Page:
        """Next times of cron take long to find: others have their turn after each."""
        after = place_in(query.cursor, tuple[str, str], ("", ""))
        later = [each for each in records if (each.topic, each.name) > after]
        chosen, more = first_of(later, query.limit)
        found: list[ScheduleInfo] = []
        for each in chosen:
            try:
                found.append(self._described(each))
            except UnknownSchedule:
                continue  # deleted meanwhile
            await asyncio.sleep(0)
        return Page(found, cursor_of([chosen[-1].topic, chosen[-1].name]) if more else "")

    def _described(self, record: ScheduleRecord) -> ScheduleInfo:
        return ScheduleInfo(
            namespace=record.namespace,
            topic=record.topic,
            name=record.name,
            user=record.user,
            created_ms=record.created_ms,
            value=record.value.decode(),
            headers={name: value.decode() for name, value in record.headers},
            cron=record.cron,
            every_ms=record.every_ms,
            zone=record.zone,
            paused=record.paused,
            next_runs_ms=self._context.engine().schedules.upcoming(record, UPCOMING),
            runs=record.runs,
            last_run_ms=record.last_ms,
            error=record.error,
            key=UNSET if record.key is None else record.key.decode(),
            partition=UNSET if record.partition is None else record.partition,
        )
