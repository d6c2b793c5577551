"""Storage against the bare machine: ``python -m bench.storage``.

A "bare" pass is the least any store could do with the same bytes: pwrite and fdatasync, or one copy
and one CRC32C in C. bench/README.md says what each bar compares.
"""

import gc
import json
import mmap
import os
import random
import select
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from bench.harness import (
    Context,
    Measure,
    alternate,
    at_least,
    at_most,
    in_fresh_process,
    main,
    paired_ratio,
    percentile,
    timed,
)
from braidmq.model.errors import StorageFailed
from braidmq.model.ids import PartitionId, SubscriptionId
from braidmq.model.limits import GIB, KIB, MIB
from braidmq.record.batch import RecordBatch
from braidmq.record.crc32c import copy_and_crc32c, crc32c
from braidmq.storage import journal
from braidmq.storage.disk import RealDisk
from braidmq.storage.partition_log import PartitionLog
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store
from braidmq.storage.workers import Committer
from braidmq.testing.recording_disk import RecordingDisk

PIECE = 64 * KIB
TIMESTAMP_MS = 1_700_000_000_000
VALUE_BYTES = 128
IN_FLIGHT = 8
"""Batches of 64 KiB a producer has unconfirmed: 512 KiB, about one window of 3000 messages."""


# --- what the benchmarks are made of ---


def batch_of(count: int, value_bytes: int = VALUE_BYTES) -> RecordBatch:
    batch = RecordBatch()
    batch.extend_values([bytes(value_bytes)] * count, TIMESTAMP_MS)
    return batch


def records_in(size: int, value_bytes: int = VALUE_BYTES) -> int:
    """How many records of this value size fill ``size`` bytes when encoded."""
    return size // batch_of(1, value_bytes).size


class Owner:
    """Stands in for the event loop: the thread that owns a store and is told what was written."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.in_flight = 0
        self._soon: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._readers: dict[int, Callable[[], object]] = {}
        self._poll = select.poll()
        self.committer = Committer(store.journal, store.disk, self)

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> None:
        self._soon.put(callback)

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        self._readers[fd] = callback
        self._poll.register(fd, select.POLLIN)

    def remove_reader(self, fd: int, /) -> None:
        del self._readers[fd]
        self._poll.unregister(fd)

    def append(self, batch: RecordBatch, logs: Sequence[PartitionLog]) -> None:
        lsn = self.store.append(batch, logs)
        self.store.wait(lsn, self._confirmed)
        self.in_flight += 1

    def _confirmed(self, failure: StorageFailed | None) -> None:
        assert failure is None, failure
        self.in_flight -= 1

    def wait_below(self, limit: int) -> None:
        while self.in_flight >= limit:
            if self._soon.empty():
                for fd, _ in self._poll.poll():
                    self._readers[fd]()
            else:
                self._soon.get()()

    def stop(self) -> None:
        self.wait_below(1)
        self.committer.stop()


def presized_file(path: Path, size: int) -> int:
    """An open file whose blocks are all written and synced, as the journal makes its own."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for position in range(0, size, MIB):
        os.pwrite(fd, bytes(min(MIB, size - position)), position)
    os.fsync(fd)
    return fd


def drop_cache(paths: Sequence[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def run_cold(paths: Sequence[Path], call: Callable[[], float]) -> float:
    """Run with nothing of these files in the page cache, and prove it."""
    gc.collect()  # pages of a mapping that still lives are not dropped
    drop_cache(paths)
    before = bytes_read_from_disk()
    elapsed = call()
    size = sum(path.stat().st_size for path in paths)
    came = (bytes_read_from_disk() - before) / size
    assert came > 0.9, f"only {came:.0%} came from the disk: the cache was not cold"
    return elapsed


def bare_mapped_pass(paths: Sequence[Path]) -> None:
    """Copy each piece out of the mapped file and check it."""
    target = bytearray(PIECE)
    for path in paths:
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        for at in range(0, len(view), PIECE):
            copy_and_crc32c(target, view[at : at + PIECE], PIECE)


def bare_read_pass(paths: Sequence[Path]) -> None:
    """The same with read(2) as the copy."""
    target = bytearray(PIECE)
    view = memoryview(target)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while length := file.readinto(target):
                crc32c(view[:length])


BARE_PASSES = {"mapped": bare_mapped_pass, "read": bare_read_pass}


def bare_figure(samples: dict[str, list[float]]) -> tuple[str, list[float]]:
    """Of the bare passes the one with the lower median: the harder to keep up with."""
    name = min(BARE_PASSES, key=lambda each: statistics.median(samples[each]))
    return name, samples[name]


# --- encode and verify ---


def codec(context: Context) -> Iterator[Measure]:
    count, loops = 1000, context.size(50, 10)
    values = [os.urandom(VALUE_BYTES) for _ in range(count)]  # one object would stay in L1
    batch = RecordBatch()
    batch.extend_values(values, TIMESTAMP_MS)
    encoded, target = bytes(batch), bytearray(batch.size)

    def encode() -> None:
        RecordBatch().extend_values(values, TIMESTAMP_MS)

    def per_record(call: Callable[[], object]) -> float:
        return timed(lambda: [call() for _ in range(loops)]) / loops / count * 1e9

    samples = alternate(
        {
            "bare": lambda: per_record(lambda: copy_and_crc32c(target, encoded, PIECE)),
            "encode": lambda: per_record(encode),
            "verify": lambda: per_record(batch.verify),
            "scan": lambda: per_record(lambda: RecordBatch.scan(encoded)),
        },
        context.rounds(31, 9),
    )
    for name, bar, guide, note in (
        ("encode", at_most(5), "100 ns", "extend_values into a new batch"),
        ("verify", at_most(2), "40 ns", "both checksums of each record"),
        ("scan", None, "", "verify and index foreign bytes"),
    ):
        yield Measure(
            f"{name}, 128 B records by 1000",
            statistics.median(samples[name]),
            "ns/record",
            bar=bar,
            ratio=paired_ratio(samples[name], samples["bare"]),
            baseline=statistics.median(samples["bare"]),
            against="copy + CRC32C of the same bytes",
            guide=guide,
            note=note,
        )


# --- group commit ---


def group_commit(context: Context) -> Iterator[Measure]:
    size = context.size(32 * MIB, 8 * MIB)
    per_batch = records_in(PIECE)
    count = size // batch_of(per_batch).size // IN_FLIGHT * IN_FLIGHT
    payload = bytes(batch_of(per_batch))
    commits: dict[int, list[float]] = {}

    def bare(batches: int) -> float:
        path = context.directory() / "bare"
        fd = presized_file(path, size + MIB)
        group = payload * batches

        def loop() -> None:
            for i in range(count // batches):
                os.pwrite(fd, group, i * len(group))
                os.fdatasync(fd)

        elapsed = timed(loop)
        os.close(fd)
        path.unlink()
        return elapsed

    def through_store(window: int) -> float:
        settings = StorageSettings(journal_file_bytes=size + 4 * MIB)
        store = Store.open(RealDisk(context.directory()), settings)
        log = store.create_partition("bench")
        store.commit()
        batches = [batch_of(per_batch) for _ in range(count)]
        owner = Owner(store)
        before = store.journal.commits

        def produce() -> None:
            for batch in batches:
                owner.wait_below(window)
                owner.append(batch, [log])
                owner.committer.wake()
            owner.wait_below(1)

        elapsed = timed(produce)
        owner.stop()
        commits.setdefault(window, []).append(count / (store.journal.commits - before))
        assert not store.journal.has_closed_since(1), "one file was to hold all of it"
        store.close()
        return elapsed

    samples = alternate(
        {
            "bare one": lambda: bare(1),
            "bare several": lambda: bare(IN_FLIGHT),
            "several": lambda: through_store(IN_FLIGHT),
            "one": lambda: through_store(1),
        },
        context.rounds(9),
    )
    total = count * len(payload) / MIB
    for name, window, base, against, bar in (
        ("several", IN_FLIGHT, "bare one", "a sync for each batch", at_least(0.8)),
        ("several", IN_FLIGHT, "bare several", f"a sync for {IN_FLIGHT} batches", None),
        ("one", 1, "bare one", "a sync for each batch", None),
    ):
        yield Measure(
            f"group commit, 64 KiB batches, {window} in flight",
            total / statistics.median(samples[name]),
            "MiB/s",
            bar=bar,
            # Of throughputs: the bare time over the store's.
            ratio=paired_ratio(samples[base], samples[name]),
            baseline=total / statistics.median(samples[base]),
            against=f"pwrite + fdatasync, {against}",
            note=f"{statistics.median(commits[window]):.1f} batches a sync",
        )


def latency(context: Context) -> Iterator[Measure]:
    count = context.size(400, 50)
    store = Store.open(RealDisk(context.directory()))
    log = store.create_partition("bench")
    store.commit()
    owner = Owner(store)
    payload = bytes(batch_of(1))
    fd = presized_file(context.directory() / "bare", 64 * MIB)
    position = 0

    def through_store() -> None:
        owner.append(batch_of(1), [log])
        owner.committer.wake()
        owner.wait_below(1)

    def bare() -> None:
        nonlocal position
        os.pwrite(fd, payload, position)
        os.fdatasync(fd)
        position += len(payload)

    def spaced(call: Callable[[], None]) -> float:
        time.sleep(0.001)  # low load: the one before is long done
        return timed(call) * 1e6

    samples = alternate(
        {"bare": lambda: spaced(bare), "store": lambda: spaced(through_store)}, count
    )
    owner.stop()
    store.close()
    os.close(fd)
    for name, percent in (("p50", 50), ("p99", 99)):
        ours, base = (percentile(samples[side], percent) for side in ("store", "bare"))
        yield Measure(
            f"one record to its confirm, {name}",
            ours,
            "µs",
            ratio=ours / base,
            baseline=base,
            against=f"pwrite + fdatasync, {name}",
            note=f"{count} of them, 1 ms apart",
        )
    yield from append_cost(context)


def append_cost(context: Context) -> Iterator[Measure]:
    count = context.size(20_000, 2_000)
    store = Store.open(RealDisk(context.directory()))
    log = store.create_partition("bench")

    def append_only() -> float:
        batches = [batch_of(1) for _ in range(count)]
        elapsed = timed(lambda: [store.append(batch, [log]) for batch in batches])
        store.commit()
        return elapsed / count * 1e6

    def with_building() -> float:
        value = bytes(VALUE_BYTES)

        def build_and_append() -> None:
            batch = RecordBatch()
            batch.append(value, timestamp_ms=TIMESTAMP_MS)
            store.append(batch, [log])

        elapsed = timed(lambda: [build_and_append() for _ in range(count)])
        store.commit()
        return elapsed / count * 1e6

    samples = alternate({"append": append_only, "built": with_building}, context.rounds(7))
    store.close()
    yield Measure(
        "Store.append of 1 record", statistics.median(samples["append"]), "µs", note="no commit"
    )
    yield Measure("build a batch of 1 and append it", statistics.median(samples["built"]), "µs")


# --- recovery ---


class JournalDirectory:
    """A data directory to open again and again: each open adds a journal file, taken away here."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._names = set(self.files())

    def files(self) -> list[Path]:
        return sorted((self.root / journal.DIRECTORY).iterdir())

    def open(self, settings: StorageSettings | None = None) -> tuple[float, Store]:
        gc.collect()
        started = time.perf_counter()
        store = Store.open(RealDisk(self.root), settings)
        return time.perf_counter() - started, store

    def discard(self, store: Store) -> None:
        store.close()
        for path in set(self.files()) - self._names:
            path.unlink()


def recovery(context: Context) -> Iterator[Measure]:
    size = context.size(GIB, 128 * MIB)
    per_batch = records_in(PIECE)
    root = context.directory()
    fill_journal(root, size, per_batch)
    directory = JournalDirectory(root)
    files = directory.files()

    def recover() -> float:
        elapsed, store = directory.open()
        assert store.recovery.records == size // PIECE * per_batch
        directory.discard(store)
        return elapsed

    bare = {name: lambda p=each: timed(lambda: p(files)) for name, each in BARE_PASSES.items()}
    recover()  # the page cache is warm for all from here on
    samples = alternate({**bare, "open": recover}, context.rounds(9))
    which, base = bare_figure(samples)
    yield Measure(
        f"recovery of {size / GIB:g} GiB of journal",
        statistics.median(samples["open"]),
        "s",
        bar=at_most(3),
        ratio=paired_ratio(samples["open"], base),
        baseline=statistics.median(base),
        against=f"bare {which} + CRC32C pass",
        note="page cache warm; 64 KiB entries of 128 B records",
    )

    samples = alternate(
        {
            name: lambda c=case: run_cold(files, c)
            for name, case in {**bare, "open": recover}.items()
        },
        context.rounds(3, 1),
    )
    which, base = bare_figure(samples)
    yield Measure(
        "the same, page cache dropped",
        statistics.median(samples["open"]),
        "s",
        ratio=paired_ratio(samples["open"], base),
        baseline=statistics.median(base),
        against=f"bare {which} + CRC32C pass",
    )


def fill_journal(root: Path, size: int, per_batch: int) -> None:
    """No checkpoint is taken, so all of it stays in the journal."""
    store = Store.open(RealDisk(root))
    log = store.create_partition("bench")
    for i in range(size // PIECE):
        store.append(batch_of(per_batch), [log])
        if i % 16 == 15:
            store.commit()
    store.close()


# --- Arrow from a cold segment ---


def cold_segment(context: Context) -> Iterator[Measure]:
    from braidmq.storage import reader  # here: the others need no pyarrow

    size = context.size(64 * MIB, 16 * MIB)
    root = context.directory()
    fill_segment(root, size)
    found = reader.find_segments(root)
    assert len(found) == 1, "one segment was to hold all of it"
    rows = 0

    def decode() -> None:
        nonlocal rows
        rows = sum(batch.num_rows for batch in reader.read_segment(found[0]))

    def cold(call: Callable[[], None]) -> float:
        return run_cold([found[0].path], lambda: timed(call))

    def cases(run: Callable[[Callable[[], None]], float]) -> dict[str, Callable[[], float]]:
        passes = {name: lambda p=each: p([found[0].path]) for name, each in BARE_PASSES.items()}
        return {name: lambda c=call: run(c) for name, call in {**passes, "decode": decode}.items()}

    for title, run, bar in (
        ("cold segment to Arrow, 200 B records", cold, at_most(5)),
        ("the same, page cache warm", timed, None),
    ):
        samples = alternate(cases(run), context.rounds(9))
        which, base = bare_figure(samples)
        median = statistics.median(samples["decode"])
        yield Measure(
            title,
            median * 1e3,
            "ms",
            bar=bar,
            ratio=paired_ratio(samples["decode"], base),
            baseline=statistics.median(base) * 1e3,
            against=f"bare {which} + CRC32C pass",
            guide="5 M records/s",
            note=f"{rows / median / 1e6:.2f} M records/s, {found[0].size / MIB:.0f} MiB",
        )


def fill_segment(root: Path, size: int) -> None:
    store = Store.open(RealDisk(root), StorageSettings(segment_bytes_max=2 * size))
    log = store.create_partition("bench")
    per_batch = records_in(PIECE, 200)
    for _ in range(size // PIECE):
        store.append(batch_of(per_batch, 200), [log])
    store.checkpoint()
    store.close()


# --- many partitions ---

MANY_SETTINGS = StorageSettings(journal_file_bytes=8 * MIB)
"""Opening makes and syncs one journal file: a small one, so that it does not flatter the ratio."""


def dirty(store: Store, logs: Sequence[PartitionLog], records: int = 1) -> None:
    for log in logs:
        store.append(batch_of(records), [log])
    store.commit()


def build_partitions(root: Path, count: int) -> None:
    """Three records of each in a segment, one more in the journal."""
    store = Store.open(RealDisk(root), MANY_SETTINGS)
    logs = [store.create_partition(f"tenant/topic-{i}") for i in range(count)]
    dirty(store, logs, 3)
    store.journal.prepare()
    store.checkpoint()
    dirty(store, logs)
    store.close()


class Stages(NamedTuple):
    """Seconds of a checkpoint; the first and the last are spent in the event loop."""

    begin: float
    carry_out: float
    finish: float


def staged_checkpoint(store: Store) -> Stages:
    store.journal.prepare()  # as the checkpointer's thread does beforehand
    gc.collect()
    started = time.perf_counter()
    checkpoint = store.begin_checkpoint()
    begun = time.perf_counter()
    store.commit()
    synced = time.perf_counter()
    checkpoint.carry_out(store.disk, store.journal, store.settings)
    carried = time.perf_counter()
    store.finish_checkpoint(checkpoint)
    return Stages(begun - started, carried - synced, time.perf_counter() - carried)


def partitions(context: Context) -> Iterator[Measure]:
    many = context.size(10_000, 2_000)
    few = many // 10
    directories = {}
    for count in (many, few):
        root = context.directory()
        build_partitions(root, count)
        directories[count] = JournalDirectory(root)

    def open_one(count: int) -> float:
        elapsed, store = directories[count].open(MANY_SETTINGS)
        assert len(store.logs) == count
        directories[count].discard(store)
        return elapsed

    samples = alternate(
        {"many": lambda: open_one(many), "few": lambda: open_one(few)}, context.rounds(7)
    )
    yield Measure(
        f"opening {many:,} partitions",
        statistics.median(samples["many"]),
        "s",
        bar=at_most(12),
        ratio=paired_ratio(samples["many"], samples["few"]),
        baseline=statistics.median(samples["few"]),
        against=f"opening {few:,}",
        guide="3 s",
        note="page cache warm; a segment and a journal entry each",
    )
    yield from idle_memory(context, many)
    yield from checkpoints(context, directories[many].root, many)


def resident_after_open(root: Path) -> tuple[int, int]:
    """Bytes resident before and after opening, of this process."""

    def resident() -> int:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    store = Store.open(RealDisk(root), MANY_SETTINGS)
    after = resident()
    store.close()
    return before, after


def idle_memory(context: Context, count: int) -> Iterator[Measure]:
    """Everything flushed and nothing in the journal, so that only the partitions themselves are
    held."""
    root = context.directory()
    build_partitions(root, count)
    store = Store.open(RealDisk(root), MANY_SETTINGS)
    store.checkpoint()
    store.close()
    empty = context.directory()
    Store.open(RealDisk(empty), MANY_SETTINGS).close()
    used = [
        after - before
        for before, after in (in_fresh_process(resident_after_open, each) for each in (root, empty))
    ]
    yield Measure(
        "memory of an idle partition",
        (used[0] - used[1]) / count,
        "bytes",
        note="resident, beyond an empty store; one segment, freshly opened",
    )


def checkpoints(context: Context, root: Path, count: int) -> Iterator[Measure]:
    cases: dict[str, list[Stages]] = {
        "all dirty, after a restart": [],
        "all dirty": [],
        "none dirty": [],
        "none dirty, one subscription each": [],
    }
    restarted, steady, idle, subscribed = cases.values()
    for _ in range(context.rounds(3, 1)):
        store = Store.open(RealDisk(root), MANY_SETTINGS)
        logs = list(store.logs.values())
        restarted.append(staged_checkpoint(store))
        dirty(store, logs)
        steady.append(staged_checkpoint(store))
        idle.append(staged_checkpoint(store))
        for log in logs:
            offsets = store.offsets_of(SubscriptionId(1), PartitionId(log.id))
            for start in (0, 4, 8):
                offsets.add(start, start + 2)
        subscribed.append(staged_checkpoint(store))
        # Sets that were never journaled would come back from the snapshot.
        store.acknowledged.clear()
        staged_checkpoint(store)
        dirty(store, logs)
        store.close()
    for title, stages in cases.items():
        yield Measure(
            f"begin_checkpoint, {count:,} partitions, {title}",
            statistics.median(each.begin for each in stages) * 1e3,
            "ms",
            note="blocks the loop",
        )
    yield Measure(
        f"finish_checkpoint, {count:,} partitions, all dirty",
        statistics.median(each.finish for each in steady) * 1e3,
        "ms",
        note="blocks the loop",
    )
    yield Measure(
        f"Checkpoint.carry_out, {count:,} partitions, all dirty",
        statistics.median(each.carry_out for each in steady),
        "s",
        note="in the checkpointer's thread",
    )


# --- many topics at once ---


def many_topics(context: Context) -> Iterator[Measure]:
    count = context.size(10_000, 1_000)
    disk = RecordingDisk(RealDisk(context.directory()))
    store = Store.open(disk)
    logs = [store.create_partition(f"tenant/topic-{i}") for i in range(count)]
    store.commit()
    owner = Owner(store)

    def run(append_all: Callable[[], None]) -> tuple[int, float]:
        gc.collect()
        disk.clear()
        elapsed = timed(append_all)
        return disk.count("sync"), elapsed * 1e3

    def one_turn() -> None:
        for log in logs:
            owner.append(batch_of(1), [log])
        owner.committer.wake()
        owner.wait_below(1)

    def woken_each_time() -> None:
        for log in logs:
            owner.append(batch_of(1), [log])
            owner.committer.wake()
        owner.wait_below(1)

    def fan_out() -> None:
        owner.append(batch_of(1), logs)
        owner.committer.wake()
        owner.wait_below(1)

    for title, call, bar in (
        ("in one turn of the loop", one_turn, at_most(5)),
        ("waking the committer each time", woken_each_time, None),
        ("as one message for all", fan_out, None),
    ):
        results = [run(call) for _ in range(context.rounds(5))]
        yield Measure(
            f"fdatasyncs for {count:,} topics, {title}",
            max(syncs for syncs, _ in results),
            "calls",
            bar=bar,
            note=f"to the last confirm {statistics.median(ms for _, ms in results):.1f} ms",
        )
    owner.stop()
    store.close()


# --- compression ---


def order(number: int) -> bytes:
    """What services send each other: names that repeat, values that seldom do."""
    rng = random.Random(number)
    return json.dumps(
        {
            "order_id": f"{rng.getrandbits(64):016x}",
            "customer": rng.randrange(100_000),
            "status": rng.choice(["created", "paid", "shipped", "delivered"]),
            "created_at": TIMESTAMP_MS + number * 37,
            "items": [
                {"sku": f"SKU-{rng.randrange(5000):05d}", "price": rng.randrange(99_999) / 100}
                for _ in range(rng.randint(1, 4))
            ],
        }
    ).encode()


def compression(context: Context) -> Iterator[Measure]:
    count = context.size(100_000, 10_000)
    values = [order(number) for number in range(count)]
    plain = compressed_pass(context, values, compressed=False)
    packed = compressed_pass(context, values, compressed=True)
    mean = sum(map(len, values)) / count
    yield Measure(
        f"bytes in segments, {count:,} JSON messages of {mean:.0f} bytes, zstd",
        packed.size / count,
        "bytes a message",
        ratio=packed.size / plain.size,
        baseline=plain.size / count,
        against="none",
    )
    for what, before, after in (
        ("Checkpoint.carry_out", plain.write, packed.write),
        ("reading all of it", plain.read, packed.read),
        ("reading one message that nobody read before", plain.seek, packed.seek),
    ):
        yield Measure(
            f"{what}, zstd",
            after * 1e6,
            "µs a message",
            ratio=after / before,
            baseline=before * 1e6,
            against="none",
        )


class Compressed(NamedTuple):
    size: int
    write: float
    read: float
    seek: float


def compressed_pass(context: Context, values: list[bytes], *, compressed: bool) -> Compressed:
    store = Store.open(RealDisk(context.directory()), StorageSettings(tail_bytes_max=0))
    log = store.create_partition("t")
    log.compressed = compressed
    for first in range(0, len(values), 100):
        batch = RecordBatch()
        batch.extend_values(values[first : first + 100], TIMESTAMP_MS)
        store.append(batch, [log])
    checkpoint = store.begin_checkpoint()
    store.commit()
    write = timed(lambda: checkpoint.carry_out(store.disk, store.journal, store.settings))
    store.finish_checkpoint(checkpoint)
    log.evict()
    reads = [timed(lambda: read_through(log)) for _ in range(context.rounds(5))]
    offsets = [(at * 7919) % len(values) for at in range(200)]
    log.read(0, 1)

    def seek() -> None:
        for offset in offsets:
            log.read(offset, 1)

    seeks = timed(seek) / len(offsets)
    size = sum(each.size for each in log.segments)
    store.close()
    count = len(values)
    return Compressed(size, write / count, statistics.median(reads) / count, seeks)


def read_through(log: PartitionLog) -> None:
    at = 0
    while runs := log.read(at, MIB):
        run = runs[-1]
        at = run.batch.offset_at(run.stop - 1) + 1


if __name__ == "__main__":
    main(
        "storage",
        {
            "codec": codec,
            "group-commit": group_commit,
            "latency": latency,
            "recovery": recovery,
            "cold-segment": cold_segment,
            "partitions": partitions,
            "many-topics": many_topics,
            "compression": compression,
        },
    )
