"""Functions of the example pipelines."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle


def keep_sum(frame: DataFrame, batch: int, path: str) -> None:
    """A file for each batch: a batch that is done again replaces its own."""
    (row,) = frame.selectExpr("sum(amount) AS amount").collect()
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{batch}.txt").write_text(f"{row.amount}\n")


class Count(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key, rows, timer_values) -> Iterator[pd.DataFrame]:  # noqa: N802
        before = self._count.get()[0] if self._count.exists() else 0
        count = before + sum(len(each) for each in rows)
        self._count.update((count,))
        yield pd.DataFrame({"key": [key[0]], "value": [str(count)]})


def count_by_key(clicks: DataFrame) -> DataFrame:
    named = clicks.selectExpr("CAST(key AS STRING) AS key")
    return named.groupBy("key").transformWithStateInPandas(
        statefulProcessor=Count(),
        outputStructType="key STRING, value STRING",
        outputMode="Update",
        timeMode="None",
    )
