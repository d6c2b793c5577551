"""Files set aside: what the state does not know, or what somebody decided to go on without.

    aside/segments/0000002a-00000000000000001000.segment        under its own name, or with .2, .3 …

Nothing here is read again, and nothing is removed from here: who runs the node looks at it, moves a
file back or deletes it.
"""

from braidmq.storage.disk import Disk, parent

DIRECTORY = "aside"


def move(disk: Disk, path: str) -> str:
    """Set a file aside, durably; returns where it is now."""
    target = free_name(disk, path)
    disk.make_directory(parent(target))
    disk.rename(path, target)
    disk.sync_directory(parent(target))
    disk.sync_directory(parent(path))
    return target


def free_name(disk: Disk, path: str) -> str:
    """Where ``move`` would put it."""
    target = f"{DIRECTORY}/{path}"
    number = 2
    while disk.exists(target):
        target = f"{DIRECTORY}/{path}.{number}"
        number += 1
    return target


def found(disk: Disk) -> list[tuple[str, int]]:
    """Paths and sizes of all that was set aside."""
    paths = [
        f"{DIRECTORY}/{folder}/{name}"
        for folder in disk.list(DIRECTORY)
        for name in disk.list(f"{DIRECTORY}/{folder}")
    ]
    return [(path, disk.size(path)) for path in paths]
