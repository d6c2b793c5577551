"""Upkeep of a lake, without Spark and without a broker: small files into large ones, and what no
version needs any more out of the way."""

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from braidmq.model.errors import BadRequest
from braidmq.pipeline.lake import table
from braidmq.pipeline.lake.frames import STAGING
from braidmq.pipeline.lake.options import LakeOptions
from braidmq.pipeline.lake.syncing import sync_files, sync_log

RETENTION_HOURS = 168
"""Delta's own: a reader or a writer that takes longer than a week is not expected."""

HOUR_S = 3600


def facts(options: LakeOptions) -> dict[str, Any]:
    opened = table.open_table(options)
    found = table.active_files(opened)
    return {
        "path": options.path,
        "version": opened.version(),
        "files": len(found),
        "bytes": sum(each.size for each in found),
        "rows": opened.count(),
        "partitioned_by": list(opened.metadata().partition_columns),
        "columns": table.schema_of(opened).names,
    }


@dataclass(frozen=True)
class Optimized:
    removed: int
    added: int
    version: int


def optimize(options: LakeOptions, file_bytes: int) -> Optimized:
    """Small files of a partition become larger ones, in one commit that changes no row."""
    opened = _writable(options)
    before, version = _paths(opened), opened.version()
    with table.reaching(options):
        done = opened.optimize.compact(target_size=file_bytes)
    # Only a vacuum removes what they replace: until then a power cut loses no row.
    sync_files(options, sorted(_paths(opened) - before))
    sync_log(options, version + 1)
    return Optimized(done["numFilesRemoved"], done["numFilesAdded"], opened.version())


def _paths(opened: DeltaTable) -> set[str]:
    return {each.path for each in table.active_files(opened)}


def vacuum(
    options: LakeOptions,
    retention_hours: int | None = None,
    *,
    short: bool = False,
    dry_run: bool = False,
) -> list[str]:
    """Remove files that no version within the retention lists: those replaced before it, and those
    of writers that failed before it. Their paths. Without a retention it is the table's own."""
    opened = _writable(options)
    hours = RETENTION_HOURS if retention_hours is None else retention_hours
    if hours > RETENTION_HOURS:
        raise BadRequest(
            f"a retention of {hours} h is above {RETENTION_HOURS} h, for which the log knows what"
            " was removed",
            remedy="Set the table's property delta.deletedFileRetentionDuration, and none here",
        )
    if hours < RETENTION_HOURS and not short:
        raise BadRequest(
            f"a retention of {hours} h is below {RETENTION_HOURS} h",
            remedy="Readers and writers that run for longer would lose their files: make sure that"
            " there are none, and say so with --short",
        )
    with table.reaching(options):
        gone = opened.vacuum(
            retention_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )
    return sorted([*gone, *_old_staging(options, hours, dry_run)])


def _writable(options: LakeOptions) -> DeltaTable:
    opened = table.open_table(options)
    table.check_writable(opened)
    return opened


def _old_staging(options: LakeOptions, hours: int, dry_run: bool) -> Iterator[str]:
    """Of drivers that died: no log ever names what is in there."""
    root = Path(options.path) / STAGING
    if not options.is_local or not root.is_dir():
        return
    before_s = time.time() - hours * HOUR_S
    for folder in sorted(root.iterdir()):
        newest_s = max(each.stat().st_mtime for each in (folder, *folder.rglob("*")))
        if newest_s <= before_s:
            if not dry_run:
                shutil.rmtree(folder)
            yield f"{STAGING}/{folder.name}"
