"""What test_sigkill kills: a store with its two threads, appending for as long as it lives.

Usage: sigkill_child.py DIRECTORY SEED. Each line on stdout is a batch that was confirmed:
``lsn partition first-offset stop-offset crc32``.
"""

import asyncio
import os
import random
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

from braidmq.model.limits import KIB, MIB
from braidmq.record.batch import Record, RecordBatch
from braidmq.storage.disk import RealDisk
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.storage.workers import Workers

SETTINGS = StorageSettings(
    segment_bytes_max=256 * KIB,
    index_interval_bytes=4 * KIB,
    journal_file_bytes=1 * MIB,
    tail_bytes_max=512 * KIB,
)
PARTITIONS = 3
IN_FLIGHT = 8


def checksum(records: Iterable[Record]) -> int:
    """Of everything in them but their offsets."""
    return zlib.crc32(repr([tuple(record[1:]) for record in records]).encode())


def random_batch(rng: random.Random) -> RecordBatch:
    batch = RecordBatch()
    for _ in range(rng.randint(1, 20)):
        batch.append(
            rng.randbytes(rng.randint(0, 1200)),
            key=rng.randbytes(8) if rng.random() < 0.5 else None,
            envelope=rng.randbytes(rng.randint(0, 30)),
            priority=rng.randint(0, 9),
            timestamp_ms=rng.randint(0, 10**12),
        )
    return batch


def main(directory: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = Store.open(RealDisk(directory), SETTINGS)
    loop = asyncio.new_event_loop()
    workers = Workers(store, loop)
    while len(store.logs) < PARTITIONS:
        store.create_partition(f"topic/{len(store.logs)}")
    logs = list(store.logs.values())

    def publish() -> None:
        batch = random_batch(rng)
        targets = rng.sample(logs, rng.choice((1, 1, 2, 3)))
        total = checksum(batch.records())
        spans = [(log, log.next_offset, log.next_offset + batch.count) for log in targets]
        lsn = store.append(batch, targets)
        store.wait(lsn, lambda failure: confirmed(lsn, spans, total, failure))

    def confirmed(
        lsn: int, spans: list[tuple[PartitionLog, int, int]], total: int, failure: object
    ) -> None:
        assert failure is None, failure
        lines = [f"{lsn} {log.id} {first} {stop} {total}\n" for log, first, stop in spans]
        os.write(1, "".join(lines).encode())
        publish()
        workers.wake()

    for _ in range(IN_FLIGHT):
        publish()
    workers.wake()
    loop.run_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
