"""A lake of Parquet files with a Delta log, as DataFrames."""

from braidmq.pipeline.lake.frames import (
    check,
    copy,
    copy_stream,
    identity,
    pinned,
    read,
    sees_files,
    stream,
    version,
    write,
)

__all__ = [
    "check",
    "copy",
    "copy_stream",
    "identity",
    "pinned",
    "read",
    "sees_files",
    "stream",
    "version",
    "write",
]
