"""How keys would share partitions: by the broker's own hash, so the answer is what happens."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from braidmq.record.key_hash import partition_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
KEYS_MAX = 1_000_000
"""The heaviest: what the others add is even."""

EVEN = 1.25
"""A partition may have a quarter more than its share before more partitions are not worth it."""

Row = tuple[int, float, int, int, str]


def advise(keys: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions

    heaviest = keys.orderBy(functions.desc("messages")).limit(KEYS_MAX)
    counted = [(bytes(row["key"]), int(row["messages"])) for row in heaviest.collect()]
    schema = "partitions INT, skew DOUBLE, fullest BIGINT, unused INT, advice STRING"
    return keys.sparkSession.createDataFrame(judge(counted), schema)


def judge(keys: Iterable[tuple[bytes, int]]) -> list[Row]:
    """For each number of partitions: the fullest one's share over an even share, how many messages
    that has, how many partitions would have none, and a word."""
    counted = list(keys)
    total = sum(count for _, count in counted)
    loads = {number: [0] * number for number in CANDIDATES}
    for key, count in counted:
        for number, load in loads.items():
            load[partition_for(key, number)] += count
    skews = {number: max(load) * number / total if total else 1.0 for number, load in loads.items()}
    good = [number for number in CANDIDATES if skews[number] <= EVEN]
    best = max(good, default=1)
    return [
        (
            number,
            round(skews[number], 3),
            max(load),
            sum(not each for each in load),
            "the most that are even" if number == best else _word(number, skews[number], best),
        )
        for number, load in loads.items()
    ]


def _word(number: int, skew: float, best: int) -> str:
    if number < best:
        return "even" if skew <= EVEN else "uneven"
    return "a few keys decide"
