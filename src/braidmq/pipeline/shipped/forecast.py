"""When a subscription will have caught up, or be too far behind: the trend of its lag so far.

A look is a row for each subscription and time. Trends are medians of the slopes between all pairs
of looks (Theil and Sen): one stall or one burst does not turn them.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOOKS_MAX = 200
"""Of a subscription, spread over the time that counts: pairs are its square."""

SUBSCRIPTIONS_MAX = 1000
"""Those with most lag: so many are judged here."""

STEADY = 0.01
"""A lag that would change by less than this share of itself, or of one message, within the time
that counts is steady."""

HORIZON_MAX = 4
"""The plot goes on for at most a fourth of the time it shows."""

LOOK = "topic STRING, subscription STRING, at TIMESTAMP, lag BIGINT, end BIGINT, committed BIGINT"
FORECAST = (
    "name STRING, lag BIGINT, looks INT, arriving_per_s DOUBLE, settled_per_s DOUBLE,"
    " trend_per_s DOUBLE, verdict STRING, at TIMESTAMP,"
    " points ARRAY<STRUCT<at: TIMESTAMP, lag: DOUBLE>>,"
    " expected ARRAY<STRUCT<at: TIMESTAMP, lag: DOUBLE>>"
)


class Look(NamedTuple):
    at: datetime
    lag: int
    end: int
    committed: int


class Forecast(NamedTuple):
    name: str
    lag: int
    looks: int
    arriving_per_s: float | None
    settled_per_s: float | None
    trend_per_s: float | None
    verdict: str
    at: datetime | None
    """When it is drained, or reaches the limit."""
    points: list[tuple[datetime, float]]
    expected: list[tuple[datetime, float]]


def look(lag: "DataFrame") -> "DataFrame":
    """The table ``lag``, by subscription and with the time: asked for once, however often it is
    used."""
    rows = (
        lag.groupBy("topic", "subscription")
        .agg({"lag": "sum", "end": "sum", "committed": "sum"})
        .selectExpr(
            *("topic", "subscription", "now() AS at"),
            *("`sum(lag)` AS lag", "`sum(end)` AS end", "`sum(committed)` AS committed"),
        )
    )
    return lag.sparkSession.createDataFrame(rows.collect(), LOOK)


def with_history(now: "DataFrame", history: str) -> "DataFrame":
    """This look and those before it; the first time there are none."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(history):
        return now
    earlier = now.sparkSession.read.format("braid_lake").option("path", history).load()
    return earlier.select(*now.columns).unionByName(now)


def forecast(looks: "DataFrame", hours: str = "24", limit: str = "0") -> "DataFrame":
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    mine = Window.partitionBy("topic", "subscription")
    recent = looks.where(
        f.expr(f"at > now() - make_interval(0, 0, 0, 0, {int(hours)})")
    ).dropDuplicates(["topic", "subscription", "at"])
    numbered = recent.withColumn("number", f.row_number().over(mine.orderBy(f.desc("at"))))
    spread = numbered.withColumn("step", f.ceil(f.count("*").over(mine) / f.lit(LOOKS_MAX))).where(
        "(number - 1) % step = 0"
    )
    of_each = spread.groupBy("topic", "subscription").agg(
        f.sort_array(f.collect_list(f.struct("at", "lag", "end", "committed"))).alias("looks")
    )
    worst = of_each.orderBy(f.desc(f.expr("looks[size(looks) - 1].lag")), "topic", "subscription")
    rows = [
        judge(f"{row[0]} › {row[1]}", [Look(*each) for each in row[2]], int(limit))
        for row in worst.limit(SUBSCRIPTIONS_MAX).collect()
    ]
    return looks.sparkSession.createDataFrame(rows, FORECAST)


def judge(name: str, looks: Sequence[Look], limit: int = 0) -> Forecast:
    """``looks`` by time; a limit of 0 is none."""
    now = looks[-1]
    points = [(each.at, float(each.lag)) for each in looks]
    known = [Forecast(name, now.lag, len(looks), None, None, None, "one look", None, points, [])]
    seconds = [(each.at - looks[0].at).total_seconds() for each in looks]
    if not seconds[-1]:
        return known[0]
    trend = slope(seconds, [each.lag for each in looks])
    arriving = slope(seconds, [each.end for each in looks])
    settled = slope(seconds, [each.committed for each in looks])
    verdict, in_s = _verdict(now.lag, trend, limit, seconds[-1])
    horizon_s = seconds[-1] / HORIZON_MAX
    ahead_s = horizon_s if in_s is None else min(in_s, horizon_s)
    expected = [
        (now.at, float(now.lag)),
        (now.at + timedelta(seconds=ahead_s), max(now.lag + trend * ahead_s, 0.0)),
    ]
    when = None if in_s is None else _later(now.at, in_s)
    return Forecast(
        *(name, now.lag, len(looks), round(arriving, 3), round(settled, 3), round(trend, 3)),
        *(verdict, when, points, expected),
    )


def _verdict(lag: int, trend: float, limit: int, seconds: float) -> tuple[str, float | None]:
    """In a word, and in how many seconds."""
    if not lag:
        return "drained", None
    if limit and lag >= limit:
        return "over the limit", None
    if abs(trend) * seconds <= STEADY * max(lag, 1):
        return "steady", None
    if trend < 0:
        return "drained at", lag / -trend
    return ("limit at", (limit - lag) / trend) if limit else ("growing", None)


def _later(at: datetime, seconds: float) -> datetime | None:
    """None: not in the time that a calendar has."""
    try:
        return at + timedelta(seconds=seconds)
    except OverflowError:
        return None


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The median of those between every two looks; per second."""
    import numpy as np

    at, value = np.asarray(times, dtype=float), np.asarray(values, dtype=float)
    first, second = np.triu_indices(len(at), 1)
    apart = at[second] - at[first]
    rises = (value[second] - value[first])[apart > 0] / apart[apart > 0]
    return float(np.median(rises)) if len(rises) else 0.0
