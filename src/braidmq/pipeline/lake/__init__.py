"""A lake of Parquet files with a Delta log, as DataFrames."""

from braidmq.pipeline.lake.frames import identity, pinned, read, stream, version, write

__all__ = ["identity", "pinned", "read", "stream", "version", "write"]
