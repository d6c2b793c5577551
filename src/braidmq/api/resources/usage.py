"""What was published and delivered, by namespace, protocol and hour."""

import asyncio
import csv
import io
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from braidmq.api.context import ApiContext, MillisecondsSinceEpoch
from braidmq.api.endpoints import Call, operation
from braidmq.api.paging import NEXT_HEADER, CursorText, Page, cursor_of, first_of, place_in
from braidmq.api.problems import NO_STORE
from braidmq.runtime.usage import HOUR_MS, UsageRow
from braidmq.security.rights import MONITORING

LIST_MAX = 10_000
DAY_MS = 24 * HOUR_MS
TIME_MS_MAX = 1 << 53

ROWS_PER_TURN = 1000
"""About two milliseconds."""


class UsageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Annotated[str, Meta(description="Only this one")] | UnsetType = UNSET
    protocol: Annotated[str, Meta(description="Only amqp, mqtt or http")] | UnsetType = UNSET
    from_ms: Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="From this time on")] = 0
    to_ms: Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="Before this time")] = TIME_MS_MAX
    by: Annotated[Literal["hour", "day"], Meta(description="Days are those of UTC")] = "hour"
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX, description="Rows at most")] = 1000
    cursor: CursorText = ""


class ExportQuery(UsageQuery, frozen=True):
    format: Literal["csv", "ndjson"] = "csv"


class UsageInfo(msgspec.Struct, frozen=True):
    start_ms: MillisecondsSinceEpoch
    namespace: str
    protocol: str
    published: Annotated[int, Meta(description="Messages that clients published")]
    published_bytes: Annotated[int, Meta(description="Bytes of their bodies")]
    delivered: Annotated[int, Meta(description="Messages sent to clients: each copy and attempt")]
    delivered_bytes: int


class UsagePage(msgspec.Struct, frozen=True):
    rows: list[UsageInfo]


Place = tuple[int, str, str]


class UsageResource:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation("GET", "/v1/usage", right=MONITORING, tag="statistics")
    async def list_usage(self, call: Call, query: UsageQuery) -> UsagePage | Page:
        """List what was published and delivered, by hour or day, namespace and protocol.

        Counted as it happens, whatever retention removed since; the hour that is not over is in it.
        """
        rows, following = await self._page(query)
        return Page(UsagePage(rows), following)

    @operation("GET", "/v1/usage/export", right=MONITORING, tag="statistics", binary=True)
    async def export_usage(self, call: Call, query: ExportQuery) -> Response:
        """Give the same as CSV, or as a JSON object a line."""
        rows, following = await self._page(query)
        return _written(rows, query.format, following)

    async def _page(self, query: UsageQuery) -> tuple[list[UsageInfo], str]:
        """Rows, and the cursor of those that follow."""
        after = place_in(query.cursor, Place, (-1, "", ""))
        found: dict[Place, list[int]] = {}
        begins_ms = _start_of(max(query.from_ms, after[0]), query)
        for number, row in enumerate(self._context.node_loop.usage.rows(begins_ms)):
            if number % ROWS_PER_TURN == ROWS_PER_TURN - 1:
                await asyncio.sleep(0)
            place = (_start_of(row.start_ms, query), row.namespace, row.protocol)
            if place <= after or not _is_wanted(row, query):
                continue
            if len(found) > query.limit and place[0] > next(reversed(found))[0]:
                break
            counts = found.setdefault(place, [0, 0, 0, 0])
            for index, count in enumerate(row[3:]):
                counts[index] += count
        listed, more = first_of(sorted(found), query.limit)
        rows = [UsageInfo(*place, *found[place]) for place in listed]
        return rows, cursor_of(listed[-1]) if more else ""


def _start_of(time_ms: int, query: UsageQuery) -> int:
    return time_ms - time_ms % DAY_MS if query.by == "day" else time_ms


def _is_wanted(row: UsageRow, query: UsageQuery) -> bool:
    return (
        query.from_ms <= row.start_ms < query.to_ms
        and query.namespace in (UNSET, row.namespace)
        and query.protocol in (UNSET, row.protocol)
    )


def _written(rows: list[UsageInfo], form: Literal["csv", "ndjson"], following: str) -> Response:
    if form == "csv":
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(UsageInfo.__struct_fields__)
        writer.writerows(msgspec.structs.astuple(row) for row in rows)
        data, kind = text.getvalue().encode(), "text/csv; charset=utf-8"
    else:
        data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        kind = "application/x-ndjson"
    headers = {**NO_STORE, "content-type": kind}
    if following:
        headers[NEXT_HEADER] = following
    return Response(data, headers=headers)
