"""Kills the driver, the executors and the broker of an exactly-once stream, at random, and looks
whether every message came through once and in the order of its key.

    python scripts/spark_crash.py --sink topic --kills 20 --master 'local-cluster[2,1,1024]'

The stream goes to a topic, to a lake, and as it is to another lake (a copy, whose files our own
tasks write), or to some of them, each by a query of its own. Three of four kills
are aimed at commits and aborts: whoever ends a batch on the driver says so and stalls there, before
it does it or after; for an abort a commit is made to fail. Meanwhile somebody uses the target as
others would. On the topic: publishes and consumes, and may never wait longer than ``WAIT_S_MAX``.
On the lake: every version that is found has all of its files, and those of the version before.

Everything it starts runs in a directory of its own, and is ended with it. A long run can be done in
parts: with ``--keep`` the directory stays, with ``--seconds`` all is killed after that time and the
exit status is 75; the same command again goes on with what is there.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from braidmq.model.errors import BraidError
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.options import BrokerOptions, parse_options
from braidmq.testing.live import free_ports, serve_command

KEYS = 97
PARTITIONS = 3
AIMS = ("abort", "commit", "commit", "")
"""What is done to a batch when something is killed, in turn; empty: whatever it is."""

AIM_S_MAX = 30.0
"""Then it is killed anyway."""

STALL_S = 1.5
"""A commit or abort that is aimed at takes so much longer, before the broker is asked or after."""

WAIT_S_MAX = 20.0
"""Of a consumer, for what is published while the stream runs; a broker that is away not counted."""

OTHERS = "of others"
"""What they publish to the target."""

SINKS = ("topic", "lake", "copy")
LAKES = frozenset({"lake", "copy"})
DERIVED = "derived "
"""What the stream puts before a value, but for a copy."""

KINDS = ("driver", "executor", "broker")
READY_S_MAX = 120.0
TO_BE_CONTINUED = 75
"""Exit status of a run that ended for lack of time: EX_TEMPFAIL."""

EXECUTOR = ("CoarseGrainedExecutorBackend", "pyspark.daemon", "pyspark/daemon")


# --- the stream: runs as a process of its own ---


@dataclass(frozen=True)
class Ends:
    """Of batches: each takes longer, before it takes effect or after, and says so meanwhile. What
    becomes of it follows from the seed."""

    sink: str
    directory: Path
    seed: str
    """Of one driver: the next has better luck with the same batch."""

    def commit(self, batch: int, act: Callable[[], None]) -> None:
        chance = random.Random(f"{self.seed} {self.sink} commit {batch}")
        first = chance.random() < 0.5
        if not self._fails():
            self._late("commit", first, act)
            return
        if not first:
            act()
        raise ConnectionError("a commit fails, and who asked for it can't know how far it came")

    def abort(self, batch: int, act: Callable[[], None]) -> None:
        chance = random.Random(f"{self.seed} {self.sink} abort {batch}")
        self._late("abort", chance.random() < 0.5, act)

    def _fails(self) -> bool:
        try:
            fail_mark(self.directory).unlink()
        except FileNotFoundError:
            return False
        return True

    def _late(self, kind: str, first: bool, act: Callable[[], None]) -> None:
        if not first:
            act()
        if not calm_mark(self.directory).exists():
            with (self.directory / "ends").open("a") as ends:
                ends.write(f"{kind}\n")
            mark = end_mark(self.directory, self.sink)
            mark.write_text(kind)
            time.sleep(STALL_S)
            mark.write_text("")
        if first:
            act()


def end_mark(directory: Path, sink: str) -> Path:
    """What is done to a batch that is just being ended."""
    return directory / f"ending-{sink}"


def checkpoint(directory: Path, sink: str) -> Path:
    return directory / f"checkpoint-{sink}"


def fail_mark(directory: Path) -> Path:
    """There when the next commit has to fail; it takes it away."""
    return directory / "fail"


def calm_mark(directory: Path) -> Path:
    """There when nothing is left to be killed."""
    return directory / "calm"


def to_topic(frame: Any, ends: Ends, given: Mapping[str, object]) -> Any:
    from braidmq.pipeline.sink import StreamWriter
    from braidmq.pipeline.source import BraidDataSource

    class Writer(StreamWriter):
        def commit(self, messages, batchId) -> None:  # type: ignore[no-untyped-def]  # noqa: N803
            ends.commit(batchId, lambda: StreamWriter.commit(self, messages, batchId))

        def abort(self, messages, batchId) -> None:  # type: ignore[no-untyped-def]  # noqa: N803
            ends.abort(batchId, lambda: StreamWriter.abort(self, messages, batchId))

    class Stalling(BraidDataSource):
        @classmethod
        def name(cls) -> str:
            return "braid_stalling"

        def streamWriter(self, schema, overwrite):  # type: ignore[no-untyped-def]  # noqa: N802
            return Writer(self._sink_options(schema))

    frame.sparkSession.dataSource.register(Stalling)
    rows = derived(frame).select("key", "value", "headers")
    return rows.writeStream.format("braid_stalling").options(url=given["url"], topic="target")


def to_lake(frame: Any, ends: Ends, given: Mapping[str, object]) -> Any:
    from braidmq.pipeline import lake

    rows = derived(frame).select("partition", "offset", "key", "value", "timestamp")
    return lake.stream(rows, str(late(ends)))


def to_copy(frame: Any, ends: Ends, given: Mapping[str, object]) -> Any:
    from braidmq.pipeline import lake

    def told(batch: int, rows: int) -> None:
        print(f"batch {batch}: {rows} rows copied", flush=True)

    return lake.copy_stream(frame.sparkSession, given, frame.schema, str(late(ends)), told)


def derived(frame: Any) -> Any:
    value = f"CAST(concat('{DERIVED}', decode(value, 'utf-8')) AS BINARY)"
    return frame.selectExpr("* EXCEPT (value)", f"{value} AS value")


def late(ends: Ends) -> Path:
    """A sink's lake, whose batches end late from now on: files are below the table when it is
    committed, and Spark's own book follows."""
    from braidmq.pipeline.lake import source

    commit, abort, place = source.commit, source.abort, ends.directory / ends.sink

    def commit_late(options, schema, written, step, mode) -> None:  # type: ignore[no-untyped-def]
        act = partial(commit, options, schema, written, step, mode)
        if options.path == str(place):
            ends.commit(step.number, act)
        else:
            act()

    def abort_late(options, written, step) -> None:  # type: ignore[no-untyped-def]
        act = partial(abort, options, written, step)
        if options.path == str(place):
            ends.abort(step.number, act)
        else:
            act()

    source.commit, source.abort = commit_late, abort_late
    return place


def drive(arguments: argparse.Namespace) -> None:
    from braidmq.pipeline.session import make_session

    spark = make_session("crash", arguments.master)
    given = {
        "url": arguments.url,
        "topic": "source",
        "startingOffsets": "earliest",
        "maxRecordsPerTrigger": arguments.per_batch,
        "splitBytes": "1000g",
        "readMode": arguments.read_mode,
    }
    source = spark.readStream.format("braid").options(**given)
    directory = Path(arguments.directory)
    queries = []
    for sink in arguments.sink:
        write = {"topic": to_topic, "lake": to_lake, "copy": to_copy}[sink]
        # Not as fast as it can: there has to be time to kill something.
        queries.append(
            write(source.load(), Ends(sink, directory, arguments.ends_seed), given)
            .option("checkpointLocation", str(checkpoint(directory, sink)))
            .trigger(processingTime=f"{arguments.every} seconds")
            .start()
        )
    for query in queries:
        query.processAllAvailable()
        query.stop()
    for sink in LAKES & set(arguments.sink):
        from braidmq.pipeline import lake

        found = lake.read(spark, str(directory / sink))
        found.coalesce(1).write.mode("overwrite").parquet(str(read_by_spark(directory, sink)))


def read_by_spark(directory: Path, sink: str) -> Path:
    return directory / f"{sink}-read-by-spark"


# --- who kills ---


@dataclass
class World:
    directory: Path
    ports: list[int]
    arguments: argparse.Namespace
    kills: Counter[str] = field(default_factory=Counter)
    broker: subprocess.Popen[bytes] | None = None
    driver: subprocess.Popen[bytes] | None = None
    drivers: int = 0
    aimed: Counter[str] = field(default_factory=Counter)
    """Of the kills, those while a batch was committed or aborted."""
    parts: int = 0
    spent_s: float = 0.0
    longest_s: float = 0.0
    """These three: of parts of this run that came before."""

    @property
    def _state(self) -> Path:
        return self.directory / "state.json"

    def resume(self) -> bool:
        """Whether there is something to go on with."""
        if not self._state.exists():
            return False
        state = json.loads(self._state.read_text())
        self.kills, self.aimed = Counter(state["kills"]), Counter(state["aimed"])
        self.drivers, self.parts = state["drivers"], state["parts"]
        self.spent_s, self.longest_s = state["seconds"], state["longest"]
        return True

    def note(self) -> None:
        state: dict[str, object] = {"kills": self.kills, "aimed": self.aimed}
        state |= {"drivers": self.drivers, "parts": self.parts}
        state |= {"seconds": self.spent_s, "longest": self.longest_s}
        self._state.write_text(json.dumps(state))

    @property
    def ended(self) -> Counter[str]:
        """How often a batch was committed or aborted, late."""
        path = self.directory / "ends"
        return Counter(path.read_text().split() if path.exists() else ())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def options(self) -> BrokerOptions:
        return BrokerOptions(url=self.url)

    def start_broker(self) -> None:
        command = serve_command(
            self.directory / "data",
            http_port=self.ports[0],
            amqp_port=0,
            mqtt_port=0,
            ws_port=0,
        )
        log = (self.directory / "broker.log").open("ab")
        self.broker = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_for_broker()

    def _wait_for_broker(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while True:
            try:
                with Broker(self.options) as broker:
                    broker.ask("GET", ("topics",), {}, patient=False)
                return
            except BraidError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def start_driver(self) -> None:
        self.drivers += 1
        given = self.arguments
        command = [
            *(sys.executable, __file__, "--drive", "--url", self.url),
            *("--directory", str(self.directory), "--master", given.master),
            *("--per-batch", str(given.per_batch), "--every", str(given.every)),
            *("--read-mode", given.read_mode, "--sink", *given.sink),
            *("--ends-seed", f"{given.seed} {self.drivers}"),
        ]
        log = (self.directory / "driver.log").open("ab")
        environment = {**os.environ, "SPARK_WORKER_DIR": str(self.directory / "work")}
        self.driver = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=environment
        )

    def kill_broker(self) -> bool:
        assert self.broker is not None
        self.broker.kill()
        self.broker.wait()
        time.sleep(random.uniform(0, 1))
        self.start_broker()
        return True

    def kill_driver(self) -> bool:
        assert self.driver is not None
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.start_driver()
        return True

    def kill_executor(self) -> bool:
        assert self.driver is not None
        found = [
            pid
            for pid in descendants(self.driver.pid)
            if any(word in command_of(pid) for word in EXECUTOR)
        ]
        if not found:
            return False
        try:
            os.kill(random.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def wait_for(self, aim: str) -> bool:
        """Whether that is just being done to a batch, or was a moment ago; False: it took too
        long."""
        if aim == "abort":
            fail_mark(self.directory).touch()
        marks = [end_mark(self.directory, sink) for sink in self.arguments.sink]
        deadline = time.monotonic() + AIM_S_MAX
        while time.monotonic() < deadline:
            if any(mark.exists() and mark.read_text() == aim for mark in marks):
                time.sleep(random.uniform(0, 1.2 * STALL_S))
                return True
            time.sleep(0.02)
        fail_mark(self.directory).unlink(missing_ok=True)
        return False

    def end(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
        if self.broker is not None:
            self.broker.kill()
            self.broker.wait()


# --- who uses the target meanwhile ---


class Others(threading.Thread):
    """Look at the target again and again; how, is for each kind of target to say."""

    def __init__(self, every_s: float) -> None:
        super().__init__(name="others", daemon=True)
        self._every_s = every_s
        self._over = threading.Event()
        self.looks = 0
        self.longest_s = 0.0
        self.wrong = ""

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(self._every_s) and not self.wrong:
            self.look()
            self.looks += 1

    def look(self) -> None:
        raise NotImplementedError


class _Placed(NamedTuple):
    offset: int
    since: float


class OnTopic(Others):
    """Publishes to every partition, and consumes that: an open transaction would be in the way."""

    def __init__(self, world: World) -> None:
        super().__init__(0.1)
        self._broker = Broker(world.options)
        self._waiting: dict[int, _Placed] = {}

    def look(self) -> None:
        try:
            for partition in range(PARTITIONS):
                if partition not in self._waiting:
                    self._waiting[partition] = _Placed(self._publish(partition), time.monotonic())
                self._consume(partition)
        except BraidError:
            self._waiting.clear()  # killed: from when on it would answer, nobody knows
        if self.longest_s > WAIT_S_MAX:
            self.wrong = f"a consumer waited {self.longest_s:.1f} s"

    def _publish(self, partition: int) -> int:
        body = {"messages": [{"value": OTHERS, "partition": partition}]}
        path = ("topics", "target", "messages", "batch")
        answer = json.loads(self._broker.send("POST", *path, body=body, patient=False))
        return int(answer["partitions"][0]["first_offset"])

    def _consume(self, partition: int) -> None:
        offset, since = self._waiting[partition]
        path = ("topics", "target", "partitions", partition, "messages")
        query: dict[str, str | int | None] = {"start": offset, "limit": 1}
        answer = json.loads(self._broker.ask("GET", path, query, patient=False).body)
        self.longest_s = max(self.longest_s, time.monotonic() - since)
        if any(each["offset"] == offset for each in answer["messages"]):
            del self._waiting[partition]


class OnLake(Others):
    """Opens its latest version, as whoever reads it does."""

    def __init__(self, world: World, sink: str) -> None:
        super().__init__(0.5)
        self._path = world.directory / sink
        self._before: set[str] = set()

    def look(self) -> None:
        from deltalake import DeltaTable

        if not (self._path / "_delta_log").is_dir():
            return
        table = DeltaTable(self._path)
        found = set(table.file_uris())
        missing = [each for each in found if not Path(each).exists()]
        if missing or not self._before <= found:
            gone = len(self._before - found)
            self.wrong = f"version {table.version()}: {len(missing)} files missing, {gone} gone"
        self._before = found


def faults(others: Sequence[Others]) -> str:
    return " ".join(each.wrong for each in others if each.wrong)


# --- processes ---


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2]
            except OSError:
                continue
            children.setdefault(int(after_name.split()[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def publish(world: World, messages: int) -> None:
    with Broker(world.options) as broker:
        for topic in ("source", "target"):
            broker.send("PUT", "topics", topic, body={"settings": {"partitions": PARTITIONS}})
        for first in range(0, messages, 5000):
            body = {
                "messages": [
                    {"key": f"key-{at % KEYS}", "value": f"{at:08}"}
                    for at in range(first, min(first + 5000, messages))
                ]
            }
            broker.send("POST", "topics", "source", "messages", "batch", body=body, patient=False)


def committed(world: World) -> int:
    """Batches that the sink has committed, by Spark's own book."""
    paths = [checkpoint(world.directory, sink) / "commits" for sink in world.arguments.sink]
    return sum(each.name.isdecimal() for path in paths if path.is_dir() for each in path.iterdir())


def plan(kills: int, seed: int) -> list[tuple[str, str]]:
    """What is killed, and at what: the same for the same seed."""
    found = [
        (name, AIMS[(turn + at) % len(AIMS)])
        for turn, name in enumerate(KINDS)
        for at in range(kills)
    ]
    random.Random(f"{seed} kills").shuffle(found)
    return found


def torment(world: World, others: Sequence[Others], deadline: float) -> bool:
    """Whether the stream came to its end before the deadline."""
    given = world.arguments
    verbs = {
        "driver": world.kill_driver,
        "executor": world.kill_executor,
        "broker": world.kill_broker,
    }
    left = plan(given.kills, given.seed)[world.kills.total() :]
    last = 0
    while world.driver is not None and world.driver.poll() != 0 and not faults(others):
        time.sleep(random.uniform(0, 2 * given.pause))
        if time.monotonic() > deadline:
            return False
        if world.driver.poll() not in (None, 0):
            print(f"the driver gave up with {world.driver.poll()}; another begins", flush=True)
            world.start_driver()
            continue
        if not left:
            calm_mark(world.directory).touch()
        now = committed(world)
        # Something has to get done in between, or the time is spent on starting Spark.
        if not left or now == last or world.driver.poll() == 0:
            continue
        name, aim = left[0]
        hit = bool(aim) and world.wait_for(aim)
        if verbs[name]():
            del left[0]
            world.kills[name] += 1
            world.aimed[aim] += hit
            print(f"{now} batches; killed {dict(world.kills)}", flush=True)
            last = now
    return True


# --- what came through ---


class Row(NamedTuple):
    partition: int
    offset: int
    key: bytes
    value: bytes


def rows_of(columns: Iterable[Any]) -> list[Row]:
    """Of Arrow tables or batches, without what others published."""
    found = (
        Row(row["partition"], row["offset"], row["key"], row["value"])
        for each in columns
        for row in each.select(list(Row._fields)).to_pylist()
    )
    return [row for row in found if row.value != OTHERS.encode()]


def on_topic(world: World) -> tuple[list[Row], str]:
    """In the order of their partitions."""
    from braidmq.pipeline.source import BatchReader

    reader = BatchReader(parse_options({"url": world.url, "topic": "target"}))
    return sorted(rows_of(batch for part in reader.partitions() for batch in reader.read(part))), ""


def on_lake(world: World, sink: str) -> tuple[list[Row], str]:
    """As who follows the table version by version gets them; deltalake's own engine and Spark must
    find the same in the table as a whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(world.directory / sink)
    whole = QueryBuilder().register("lake", table).execute("SELECT * FROM lake").read_all()
    spark = pq.read_table(read_by_spark(world.directory, sink))
    known: set[str] = set()
    rows: list[Row] = []
    for version in range(table.version() + 1):
        table.load_as_version(version)
        added = sorted(set(table.file_uris()) - known)
        known.update(added)
        rows += rows_of(pq.read_table(each) for each in added)
    wrong = "".join(
        f" {name} reads other rows than its files have"
        for name, read in (("deltalake", pa.table(whole)), ("Spark", spark))
        if sorted(rows_of([read])) != sorted(rows)
    )
    return rows, wrong


def verify(world: World, sink: str) -> str:
    """What is wrong; empty: nothing."""
    messages = world.arguments.messages
    rows, wrong = on_lake(world, sink) if sink in LAKES else on_topic(world)
    values = Counter(row.value for row in rows)
    before_it = "" if sink == "copy" else DERIVED
    lost = sum(f"{before_it}{at:08}".encode() not in values for at in range(messages))
    strange = len(values) - (messages - lost)
    twice = sum(count > 1 for count in values.values())
    disordered = 0
    latest: dict[bytes, Row] = {}
    for row in rows:
        before = latest.get(row.key, row)
        disordered += before.value > row.value or before.offset > row.offset
        latest[row.key] = row
    if lost or strange or twice or disordered:
        wrong += f" {lost} lost, {strange} strange, {twice} twice, {disordered} out of order"
    return f"{sink}:{wrong}" if wrong else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sink", nargs="+", choices=SINKS, default=SINKS)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--per-batch", type=int, default=0, help="messages of one batch")
    parser.add_argument("--every", type=float, default=1.0, help="seconds a batch takes at least")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between kills, about")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--read-mode", default="broker", help="or segments, from its disk")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="a directory to go on in, and to leave behind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    for hidden in ("--url", "--directory", "--ends-seed"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        drive(arguments)
        return
    arguments.seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 32)
    arguments.per_batch = arguments.per_batch or max(
        arguments.messages // (max(arguments.kills, 1) * 12), 1
    )
    with scratch(arguments.keep) as directory:
        world = World(Path(directory), free_ports(1), arguments)
        finished, wrong = run(world, time.monotonic())
        ended = world.ended
    if not finished:
        print(f"{dict(world.kills)} in {world.spent_s:.0f} s so far: to be continued {wrong}")
        sys.exit(1 if wrong else TO_BE_CONTINUED)
    if not wrong and min((world.kills[name] for name in KINDS), default=0) < arguments.kills:
        wrong = "done before all were killed: give it more messages, or fewer in a batch"
    print(
        f"{' and '.join(arguments.sink)}: {arguments.messages} messages, {dict(world.kills)},"
        f" of them at {dict(+world.aimed)} of {dict(ended)}, {world.drivers} drivers,"
        f" seed {arguments.seed}, longest wait {world.longest_s:.1f} s, {world.spent_s:.0f} s:"
        f" {wrong or 'once'}"
    )
    sys.exit(1 if wrong else 0)


def run(world: World, began: float) -> tuple[bool, str]:
    """Whether it came to its end, and what is wrong."""
    given = world.arguments
    wrong = ""
    try:
        resumed = world.resume()
        random.seed(f"{given.seed} {world.parts}")
        world.parts += 1
        world.start_broker()
        if not resumed:
            publish(world, given.messages)
        others: list[Others] = [
            OnLake(world, sink) if sink in LAKES else OnTopic(world) for sink in given.sink
        ]
        for each in others:
            each.start()
        world.start_driver()
        finished = torment(world, others, began + given.seconds)
        for each in others:
            each.stop()
        wrong = faults(others)
        if finished and not wrong:
            wrong = " ".join(filter(None, (verify(world, sink) for sink in given.sink)))
    except BaseException:
        log = world.directory / "driver.log"
        sys.stderr.write(log.read_text()[-4000:] if log.exists() else "")
        raise
    finally:
        world.end()
    world.spent_s += time.monotonic() - began
    world.longest_s = max(world.longest_s, *(each.longest_s for each in others))
    world.note()
    return finished, wrong


def scratch(kept: Path | None) -> AbstractContextManager[Path | str]:
    if kept is None:
        return tempfile.TemporaryDirectory(prefix="braid-crash-")
    kept.mkdir(parents=True, exist_ok=True)
    return nullcontext(kept)


if __name__ == "__main__":
    main()
