"""The broker's process, found by its port, and what /proc says of it."""

import os
from pathlib import Path

LISTEN = "0A"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class BrokerProcess:
    """All its threads, living and ended. RabbitMQ is one process too: its Erlang machine."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.name = Path(f"/proc/{pid}/comm").read_text().strip()

    @classmethod
    def listening_on(cls, port: int) -> "BrokerProcess | None":
        """None when it is on another machine, or not ours to look at."""
        inodes = _listening_inodes(port)
        found: dict[int, BrokerProcess] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            if not _holds(folder / "fd", inodes):
                continue
            try:
                process = cls(int(folder.name))
                found[process.rss_bytes()] = process
            except OSError:
                continue  # it was such a helper, and has ended
        # A helper that was forked meanwhile holds the socket for a moment too; it is small.
        return found[max(found)] if found else None

    def cpu_s(self) -> float:
        # After the name, which may hold blanks; fields 14 and 15 of proc(5) are utime and stime.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES


def _holds(folder: Path, inodes: set[str]) -> bool:
    """Whether a process has one of these sockets open."""
    try:
        links = list(folder.iterdir())
    except OSError:
        return False  # it has ended, or is not ours to look at
    for link in links:
        try:
            name = str(link.readlink())
        except OSError:
            continue  # this one was closed meanwhile; a busy process always has some of those
        if name.startswith("socket:[") and name[8:-1] in inodes:
            return True
    return False


def _listening_inodes(port: int) -> set[str]:
    found = set()
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
