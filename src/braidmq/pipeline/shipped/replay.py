"""Which columns of a lake make messages again: those that it has, and archives had fewer once."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITTEN = ("key", "value", "headers", "partition", "timestamp", "priority", "envelope")


def messages(archived: "DataFrame") -> "DataFrame":
    return archived.select(*(name for name in WRITTEN if name in archived.columns))
