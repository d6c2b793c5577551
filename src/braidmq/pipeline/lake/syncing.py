"""Files of a lake are on disk before a commit names them, and the commit before anybody is told.

deltalake and Spark leave both to the operating system, which takes half a minute: whoever
acknowledges what it has archived would lose it to a power cut. Object stores see to it themselves.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from braidmq.pipeline.lake.options import LakeOptions

LOG = "_delta_log"
AT_ONCE = 8
"""Disks take several at a time."""


def sync(path: Path) -> None:
    """A file, or the names in a directory. Raises OSError: then nothing may be promised."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(options: LakeOptions, paths: Sequence[str]) -> None:
    """Files below the table, and all directories between."""
    if not options.is_local or not paths:
        return  # who has written nothing may be first, and there is no table yet
    root = Path(options.path)
    files = [root / each for each in paths]
    folders = {root}
    for file in files:
        folders.update(each for each in file.parents if root in each.parents)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(sync, files))
    for each in sorted(folders):
        sync(each)


def sync_log(options: LakeOptions, since: int = 0) -> None:
    """What was committed after version ``since - 1``, by whomever, with what sums up the log."""
    if not options.is_local:
        return
    root = Path(options.path)
    log = root / LOG
    for path in sorted(log.iterdir()):
        version = path.name.partition(".")[0]
        if path.is_file() and (not version.isdigit() or int(version) >= since):
            with suppress(FileNotFoundError):  # somebody cleans up, or has not ended writing it
                sync(path)
    sync(log)
    sync(root)
    if since == 0:
        for above in root.parents:
            # Made with the table, maybe. What we may not read, we have not made.
            with suppress(PermissionError):
                sync(above)
