"""Spark looks for packages named ``pyspark_…``: ``format("braid_lake")`` needs no more."""

from braidmq.pipeline.lake.source import LakeDataSource as DefaultSource

__all__ = ["DefaultSource"]
