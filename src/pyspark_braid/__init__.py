"""Spark looks for packages named ``pyspark_…``: ``spark.read.format("braid")`` needs no more."""

from braidmq.pipeline.source import BraidDataSource as DefaultSource

__all__ = ["DefaultSource"]
