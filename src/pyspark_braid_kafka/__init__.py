"""Spark looks for packages named ``pyspark_…``: ``format("braid_kafka")`` needs no more."""

from braidmq.pipeline.source import BraidKafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
