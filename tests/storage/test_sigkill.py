"""kill -9 at random moments: every record that was confirmed is there, byte for byte."""

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from sigkill_child import SETTINGS, checksum
from worlds import read_all

from braidmq.record.batch import Record
from braidmq.storage import journal, snapshot
from braidmq.storage.disk import RealDisk
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.store import Store

KILLS = 30
LINES_MAX = 1000
CHILD = Path(__file__).with_name("sigkill_child.py")

pytestmark = pytest.mark.crash


class Confirmed(NamedTuple):
    lsn: int
    partition: int
    first: int
    stop: int
    checksum: int


def run_and_kill(directory: Path, rng: random.Random) -> list[Confirmed]:
    """Let a child append until it has confirmed some batches, kill it; what it had confirmed."""
    command = [sys.executable, str(CHILD), str(directory), str(rng.getrandbits(32))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        wanted = rng.randint(1, LINES_MAX)
        lines = [child.stdout.readline() for _ in range(wanted)]
        child.send_signal(signal.SIGKILL)
        # What it said between our last line and the signal counts as well; a line cut short, too,
        # was confirmed, but can't be checked.
        rest, _ = child.communicate()
        lines += [line for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
    assert child.returncode == -signal.SIGKILL, "it died by itself"
    return [Confirmed(*map(int, line.split())) for line in lines]


def read_span(log: PartitionLog, first: int, stop: int) -> list[Record]:
    records: list[Record] = []
    offset = first
    while offset < stop:
        run = log.read(offset, 64 * 1024)[0]
        count = min(run.stop - run.first, stop - offset)
        records += [run.batch.record(run.first + n) for n in range(count)]
        offset += count
    return records


def check(store: Store, each: Confirmed) -> None:
    records = read_span(store.logs[each.partition], each.first, each.stop)
    assert [record.offset for record in records] == list(range(each.first, each.stop))
    assert checksum(records) == each.checksum, each


def test_nothing_confirmed_is_lost_however_often_it_is_killed(tmp_path: Path) -> None:
    rng = random.Random()
    confirmed: list[Confirmed] = []
    for _ in range(KILLS):
        now = run_and_kill(tmp_path, rng)
        assert now[0].lsn > max((each.lsn for each in confirmed), default=0), "an LSN came twice"
        store = Store.open(RealDisk(tmp_path), SETTINGS)
        for each in now + rng.sample(confirmed, min(20, len(confirmed))):
            check(store, each)
        store.close()
        confirmed += now
    store = Store.open(RealDisk(tmp_path), SETTINGS)
    for each in confirmed:
        check(store, each)
    for log in store.logs.values():
        # Without a hole, and nothing twice: not even among what was never confirmed.
        offsets = [record.offset for record in read_all(log, 1 << 20)]
        assert offsets == list(range(log.next_offset))
    # The kills met checkpoints, not only appends.
    assert len(snapshot.names(store.disk)) >= snapshot.KEPT
    # Where they cut some short, snapshots and journal files are left behind, until others finish.
    for _ in range(snapshot.KEPT):
        store.checkpoint()
    assert len(snapshot.names(store.disk)) == snapshot.KEPT
    assert journal.journal_epochs(store.disk)[0] > KILLS
    assert all(log.segments for log in store.logs.values())
    store.close()
