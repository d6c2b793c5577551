"""Kills the driver, the executors and the broker of an exactly-once stream, at random, and looks
whether every message came through once and in the order of its key.

    python scripts/spark_crash.py --messages 200000 --kills 20 --master 'local-cluster[2,1,1024]'

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
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from braidmq.model.errors import BraidError
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.options import BrokerOptions, parse_options
from braidmq.testing.live import free_ports, serve_command

KEYS = 97
KINDS = ("driver", "executor", "broker")
READY_S_MAX = 120.0
TO_BE_CONTINUED = 75
"""Exit status of a run that ended for lack of time: EX_TEMPFAIL."""

EXECUTOR = ("CoarseGrainedExecutorBackend", "pyspark.daemon", "pyspark/daemon")


# --- the stream: runs as a process of its own ---


def drive(arguments: argparse.Namespace) -> None:
    from braidmq.pipeline.session import make_session

    spark = make_session("crash", arguments.master)
    source = spark.readStream.format("braid").options(
        url=arguments.url,
        topic="source",
        startingOffsets="earliest",
        maxRecordsPerTrigger=arguments.per_batch,
        splitBytes="1000g",
    )
    frame = source.load().selectExpr(
        "key", "concat('derived ', decode(value, 'utf-8')) AS value", "headers"
    )
    sink = frame.writeStream.format("braid").options(url=arguments.url, topic="target")
    # Not as fast as it can: there has to be time to kill something.
    query = (
        sink.option("checkpointLocation", f"{arguments.directory}/checkpoint")
        .trigger(processingTime=f"{arguments.every} seconds")
        .start()
    )
    query.processAllAvailable()
    query.stop()


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
    spent_s: float = 0.0
    """In parts of this run that came before."""

    @property
    def _state(self) -> Path:
        return self.directory / "state.json"

    def resume(self) -> bool:
        """Whether there is something to go on with."""
        if not self._state.exists():
            return False
        state = json.loads(self._state.read_text())
        self.kills, self.spent_s = Counter(state["kills"]), state["seconds"]
        self.drivers = state["drivers"]
        return True

    def note(self, spent_s: float) -> None:
        state = {"kills": self.kills, "seconds": spent_s, "drivers": self.drivers}
        self._state.write_text(json.dumps(state))

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

    def end(self) -> None:
        if self.driver is not None and self.driver.poll() is None:
            os.killpg(self.driver.pid, signal.SIGKILL)
            self.driver.wait()
        if self.broker is not None:
            self.broker.kill()
            self.broker.wait()


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
            broker.send("PUT", "topics", topic, body={"settings": {"partitions": 3}})
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
    path = world.directory / "checkpoint" / "commits"
    return len([each for each in path.iterdir() if each.name.isdecimal()]) if path.is_dir() else 0


def torment(world: World, deadline: float) -> bool:
    """Whether the stream came to its end before the deadline."""
    given = world.arguments
    verbs = {
        "driver": world.kill_driver,
        "executor": world.kill_executor,
        "broker": world.kill_broker,
    }
    last = 0
    while world.driver is not None and world.driver.poll() != 0:
        time.sleep(random.uniform(0, 2 * given.pause))
        if time.monotonic() > deadline:
            return False
        if world.driver.poll() not in (None, 0):
            print(f"the driver gave up with {world.driver.poll()}; another begins", flush=True)
            world.start_driver()
            continue
        left = [name for name in verbs if world.kills[name] < given.kills]
        now = committed(world)
        # Something has to get done in between, or the time is spent on starting Spark.
        if not left or now == last or world.driver.poll() == 0:
            continue
        name = random.choice(left)
        if verbs[name]():
            world.kills[name] += 1
            print(f"{now} batches; killed {dict(world.kills)}", flush=True)
            last = now
    return True


def verify(world: World, messages: int) -> str:
    """What is wrong; empty: nothing."""
    from braidmq.pipeline.source import BatchReader

    reader = BatchReader(parse_options({"url": world.url, "topic": "target"}))
    rows = sorted(
        (row["partition"], row["offset"], row["key"], row["value"])
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    )
    values = Counter(value for _, _, _, value in rows)
    lost = messages - len(values)
    twice = sum(count > 1 for count in values.values())
    order: dict[bytes, bytes] = {}
    disordered = 0
    for _, _, key, value in rows:
        disordered += order.get(key, b"") > value
        order[key] = value
    if lost or twice or disordered:
        return f"{lost} lost, {twice} twice, {disordered} out of order"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--per-batch", type=int, default=0, help="messages of one batch")
    parser.add_argument("--every", type=float, default=1.0, help="seconds a batch takes at least")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between kills, about")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, help="a directory to go on in, and to leave behind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--directory", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        drive(arguments)
        return
    random.seed(arguments.seed)
    arguments.per_batch = arguments.per_batch or max(
        arguments.messages // (max(arguments.kills, 1) * 12), 1
    )
    with scratch(arguments.keep) as directory:
        world = World(Path(directory), free_ports(1), arguments)
        began = time.monotonic()
        wrong = ""
        try:
            resumed = world.resume()
            world.start_broker()
            if not resumed:
                publish(world, arguments.messages)
            world.start_driver()
            finished = torment(world, began + arguments.seconds)
            if finished:
                wrong = verify(world, arguments.messages)
        except BaseException:
            sys.stderr.write((world.directory / "driver.log").read_text()[-4000:])
            raise
        finally:
            world.end()
        took_s = world.spent_s + time.monotonic() - began
        world.note(took_s)
    if not finished:
        print(f"{dict(world.kills)} in {took_s:.0f} s so far: to be continued")
        sys.exit(TO_BE_CONTINUED)
    if not wrong and min((world.kills[name] for name in KINDS), default=0) < arguments.kills:
        wrong = "done before all were killed: give it more messages, or fewer in a batch"
    print(f"{arguments.messages} messages, {dict(world.kills)}, {took_s:.0f} s: {wrong or 'once'}")
    sys.exit(1 if wrong else 0)


def scratch(kept: Path | None) -> AbstractContextManager[Path | str]:
    if kept is None:
        return tempfile.TemporaryDirectory(prefix="braid-crash-")
    kept.mkdir(parents=True, exist_ok=True)
    return nullcontext(kept)


if __name__ == "__main__":
    main()
