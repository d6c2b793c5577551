"""A node under a steady moderate load, with everything at its limit, for as long as asked.

    python -m braidmq.testing.soak --minutes 60

Every protocol publishes and consumes at a steady rate; kept sessions are offline and full, queues
are full, consumers are slow, connections come and go. Memory, open files and disk use of the node
are sampled, and the latency of a probe. After the first minute none of them may grow: exits with 1
when one does, or when a client met an error.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx

from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.model.limits import MIB
from braidmq.testing.crash.amqp_link import AmqpLink, content
from braidmq.testing.crash.clients import Link, NoAnswer
from braidmq.testing.crash.mqtt_link import MqttLink
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.tables import Table
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
)

LIMIT = 500
"""Messages that full queues, offline sessions and kept topics hold: reached within seconds."""

SMALL_LIMITS = f"""\
[storage]
journal_file_bytes = 1048576
segment_bytes_max = 262144
tail_bytes_max = 8388608

[mqtt]
session_messages_max = {LIMIT}

[log]
level = "warning"
"""

STEPS_PER_S = 10
"""Each worker does its share so often a second."""
RATE = 100
"""Messages a second of each publisher."""
OFFLINE = 4
RETAINED = 50
BODY = b"s" * 200
GUEST = ("guest", "guest")

WARM_S = 60.0
"""Caches fill and limits are reached in the first minute."""
SAMPLE_S = 2.0

QUICK, FULL, SLOW, TX = "soak-quick", "soak-full", "soak-slow", "soak-tx"
TOPIC, DURABLE, PROBE = "soak/topic", "soak/durable", "soak-probe"
LOG, GROUP = "soak-log", "soak-group"


# --- what is measured ---


class Sample(NamedTuple):
    at_s: float
    rss_bytes: int
    open_files: int
    disk_bytes: int
    p99_ms: float


class Bar(NamedTuple):
    """Growth is judged from the first to the last third of what comes after warming up."""

    field: str
    ratio_max: float
    growth_max: float
    """Growth below this is noise, whatever the ratio."""


BARS = (
    Bar("rss_bytes", 1.10, 16 * MIB),
    Bar("open_files", 1.10, 8),
    Bar("disk_bytes", 1.25, 16 * MIB),
    Bar("p99_ms", 2.0, 20.0),
)


class Verdict(NamedTuple):
    field: str
    early: float
    late: float
    is_flat: bool

    @property
    def ratio(self) -> float:
        return self.late / self.early if self.early else 1.0


def judge(samples: Sequence[Sample], warm_s: float, bars: Sequence[Bar] = BARS) -> list[Verdict]:
    """Medians of the first and the last third after ``warm_s``."""
    counted = [sample for sample in samples if sample.at_s >= warm_s]
    third = len(counted) // 3
    if not third:
        raise ValueError(f"{len(counted)} samples after the first {warm_s:.0f} s are too few")
    verdicts = []
    for field, ratio_max, growth_max in bars:
        values = [float(getattr(sample, field)) for sample in counted]
        early, late = statistics.median(values[:third]), statistics.median(values[-third:])
        is_flat = late <= early * ratio_max or late - early <= growth_max
        verdicts.append(Verdict(field, early, late, is_flat))
    return verdicts


class Sampler:
    def __init__(self, node: LiveNode, data_dir: Path, probe: "Probe") -> None:
        self._process = BrokerProcess(node.process.pid)
        self._data_dir = data_dir
        self._probe = probe
        self._began = time.monotonic()
        self.samples: list[Sample] = []

    def sample(self) -> Sample:
        files = len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))
        sample = Sample(
            time.monotonic() - self._began,
            self._process.rss_bytes(),
            files,
            _disk_bytes(self._data_dir),
            self._probe.take_p99_ms(),
        )
        self.samples.append(sample)
        return sample


def _disk_bytes(directory: Path) -> int:
    found = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # files come and go meanwhile
            found += path.stat().st_blocks * 512
    return found


# --- the load ---


@dataclass
class Load:
    ports: dict[str, int]
    stopped: threading.Event

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http_port']}"

    def amqp(self) -> AmqpLink:
        return AmqpLink(self.ports["amqp_port"])

    def mqtt(self, client_id: str, *, version: int = Version.V5, is_kept: bool = True) -> MqttLink:
        return MqttLink(self.ports["mqtt_port"], version, client_id, is_kept=is_kept)


Closing = TypeVar("Closing", bound=Link | httpx.Client)


class Worker(threading.Thread, ABC):
    """One client: set up once, then a step ten times a second. An error of its is the soak's."""

    def __init__(self, load: Load, name: str = "") -> None:
        super().__init__(name=name or type(self).__name__, daemon=True)
        self.load = load
        self.done = 0
        self.error = ""
        self._at_end = ExitStack()

    def keep(self, connection: Closing) -> Closing:
        """Closed when the worker ends."""
        self._at_end.callback(connection.close)
        return connection

    def run(self) -> None:
        with self._at_end:
            self._run()

    def _run(self) -> None:
        try:
            self.set_up()
            due = time.monotonic()
            while not self.load.stopped.wait(max(0.0, due - time.monotonic())):
                # One that fell behind does not catch up: the rate is an upper bound.
                due = max(due + 1 / STEPS_PER_S, time.monotonic() - 1)
                self.step()
        except Exception:
            if not self.load.stopped.is_set():
                self.error = traceback.format_exc(limit=-3)

    @abstractmethod
    def set_up(self) -> None: ...

    @abstractmethod
    def step(self) -> None: ...


PER_STEP = RATE // STEPS_PER_S


class ConfirmLink(AmqpLink):
    """Publishes and waits for all confirms."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.call(m.ConfirmSelect())
        self._published = self._confirmed = 0

    def publish(self, messages: Sequence[bytes]) -> None:
        self.send(b"".join(messages))
        self._published += len(messages)
        while self._confirmed < self._published:
            for method, _ in self.events():
                if isinstance(method, m.BasicAck):
                    count = method.delivery_tag - self._confirmed if method.multiple else 1
                    self._confirmed += count
                elif isinstance(method, m.BasicNack):
                    raise RuntimeError("a publish was refused")
            if self._confirmed < self._published and not self.receive():
                raise NoAnswer("confirms did not come")


class AmqpPublisher(Worker):
    """To a queue that is read, and to two that are not or hardly: those drop their oldest."""

    def set_up(self) -> None:
        self._link = self.keep(ConfirmLink(self.load.ports["amqp_port"]))

    def step(self) -> None:
        messages = [content("", queue, BODY) for queue in (QUICK, FULL, SLOW)] * PER_STEP
        self._link.publish(messages)
        self.done += len(messages)


class AmqpConsumer(Worker):
    def __init__(self, load: Load, queue: str, prefetch: int, answers_max: int) -> None:
        super().__init__(load, f"consumer of {queue}")
        self._queue = queue
        self._prefetch = prefetch
        self._answers_max = answers_max
        self._unanswered: list[int] = []

    def set_up(self) -> None:
        self._link = self.keep(self.load.amqp())
        self._link.call(m.BasicQos(0, self._prefetch))
        self._link.call(m.BasicConsume(self._queue, "soak"))

    def step(self) -> None:
        self._link.receive(0.01)
        for method, _ in self._link.events():
            if isinstance(method, m.BasicDeliver):
                self._unanswered.append(method.delivery_tag)
        answered = self._unanswered[: self._answers_max]
        if answered:
            del self._unanswered[: len(answered)]
            self._link.tell(m.BasicAck(answered[-1], multiple=True))
            self.done += len(answered)


class TxPublisher(Worker):
    def set_up(self) -> None:
        self._link = self.keep(self.load.amqp())
        self._link.call(m.TxSelect())

    def step(self) -> None:
        for end in (m.TxCommit(), m.TxRollback()):
            self._link.send(content("", TX, BODY) * 5)
            self._link.call(end)
        self.done += 5


class MqttPublisher(Worker):
    """To subscribers that are there, slow, and away; some of it retained, some for the queue."""

    def __init__(self, load: Load, qos: int, version: int) -> None:
        super().__init__(load, f"MQTT publisher of QoS {qos}")
        self._qos = qos
        self._version = version

    def set_up(self) -> None:
        self._link = self.keep(self.load.mqtt(f"soak-publisher-{self._qos}", version=self._version))
        self._ids = itertools.cycle(range(1, 60_000))
        self._retained = itertools.cycle(range(RETAINED))

    def step(self) -> None:
        packets = [self._packet(TOPIC) for _ in range(PER_STEP)]
        packets += [self._packet(f"$queue/{DURABLE}") for _ in range(PER_STEP)]
        packets.append(self._packet(f"soak/retained/{next(self._retained)}", retain=True))
        self._link.write(*packets)
        left = {packet.packet_id for packet in packets}
        while left:
            answers: list[Packet] = []
            for packet in self._link.packets():
                if isinstance(packet, PubRec):
                    answers.append(PubRel(packet.packet_id))
                elif isinstance(packet, (PubAck, PubComp)):
                    left.discard(packet.packet_id)
            if answers:
                self._link.write(*answers)
            if left and not self._link.receive():
                raise NoAnswer("PUBACKs did not come")
        self.done += len(packets)

    def _packet(self, topic: str, *, retain: bool = False) -> Publish:
        return Publish(topic, BODY, self._qos, retain=retain, packet_id=next(self._ids))


class MqttSubscriber(Worker):
    """Takes all, or answers only so many in a step."""

    def __init__(self, load: Load, name: str, pattern: str, qos: int, answers_max: int) -> None:
        super().__init__(load, f"MQTT subscriber {name}")
        self._client_id = f"soak-{name}"
        self._pattern = pattern
        self._qos = qos
        self._answers_max = answers_max
        self._unanswered: list[Publish] = []

    def set_up(self) -> None:
        is_kept = not self._pattern.startswith("$queue")
        self._link = self.keep(
            self.load.mqtt(self._client_id, version=Version.V3_1_1, is_kept=is_kept)
        )
        self._unanswered += subscribe(self._link, self._pattern, self._qos)

    def step(self) -> None:
        self._link.receive(0.01)
        answers: list[Packet] = []
        for packet in self._link.packets():
            if isinstance(packet, Publish):
                self._unanswered.append(packet)
            elif isinstance(packet, PubRel):
                answers.append(PubComp(packet.packet_id))
        answered = self._unanswered[: self._answers_max]
        del self._unanswered[: len(answered)]
        for message in answered:
            kind = PubAck if message.qos == 1 else PubRec
            answers.append(kind(message.packet_id))
        self.done += len(answered)
        if answers:
            self._link.write(*answers)


def subscribe(link: MqttLink, pattern: str, qos: int) -> list[Publish]:
    """Returns what came ahead of SUBACK, as it may."""
    link.write(Subscribe(0xFFFF, (Request(pattern, qos),)))
    came: list[Publish] = []
    while True:
        for packet in link.packets():
            if isinstance(packet, SubAck):
                return came
            if isinstance(packet, Publish):
                came.append(packet)
        if not link.receive():
            raise NoAnswer("SUBACK did not come")


class HttpWorker(Worker):
    def set_up(self) -> None:
        self._client = self.keep(
            httpx.Client(base_url=self.load.http_url, auth=GUEST, timeout=60, trust_env=False)
        )

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self._client.post(path, json=body or {}, headers=named)
        if response.is_error:
            raise RuntimeError(f"{path}: {response.status_code} {response.text}")
        return response.json() if response.content else None


class HttpPublisher(HttpWorker):
    """Batches by an idempotent producer, and transactions that commit or abort."""

    def set_up(self) -> None:
        super().set_up()
        made = self.post("/v1/producers")
        self._producer = {
            "Braid_Producer_Id": str(made["producer_id"]),
            "Braid_Producer_Epoch": str(made["epoch"]),
        }
        self._sequence = 0

    def step(self) -> None:
        path = f"/v1/topics/{LOG}/messages/batch"
        messages = {"messages": [{"value": BODY.decode()}] * PER_STEP}
        self.post(path, messages, Braid_Sequence=str(self._sequence), **self._producer)
        self._sequence += PER_STEP
        name = self.post("/v1/transactions")["name"]
        self.post(path, messages, Braid_Transaction=name)
        end = "abort" if self.done % 3 else "commit"
        self.post(f"/v1/transactions/{name}/{end}")
        self.done += 1


class GroupMember(HttpWorker):
    def set_up(self) -> None:
        super().set_up()
        member = self.post(f"/v1/groups/{GROUP}/members", {"topics": [LOG]})
        self._path = f"/v1/groups/{GROUP}/members/{member['member_id']}"
        self._generation = member["generation"]

    def step(self) -> None:
        generation = {"generation": self._generation}
        polled = self.post(f"{self._path}/poll", {**generation, "limit": 200, "wait_ms": 0})
        messages = polled["messages"]
        if messages:
            end = max(each["offset"] for each in messages) + 1
            offsets = [{"topic": LOG, "partition": 0, "offset": end}]
            self.post(f"{self._path}/commit", {**generation, "offsets": offsets})
            self.done += len(messages)


class Churn(Worker):
    """Connections that come, do one thing and go; every other without saying goodbye."""

    def set_up(self) -> None: ...

    def step(self) -> None:
        amqp = self.load.amqp()
        amqp.call(m.QueueDeclare("", exclusive=True))
        if self.done % 2:
            amqp.tell(m.ChannelClose())
        amqp.close()
        mqtt = self.load.mqtt(f"soak-churn-{self.done % 100}", is_kept=False)
        subscribe(mqtt, TOPIC, self.done % 3)
        mqtt.close()
        with httpx.Client(base_url=self.load.http_url, trust_env=False) as client:
            client.get("/ready").raise_for_status()
        self.done += 1


class Probe(Worker):
    """One message at a time: how long until it is confirmed."""

    def set_up(self) -> None:
        self._link = self.keep(ConfirmLink(self.load.ports["amqp_port"]))
        self._mutex = threading.Lock()
        self._latencies_ms: list[float] = []

    def step(self) -> None:
        began = time.perf_counter()
        self._link.publish([content("", PROBE, b"probe")])
        with self._mutex:
            self._latencies_ms.append((time.perf_counter() - began) * 1000)
        self.done += 1

    def take_p99_ms(self) -> float:
        """Since it was last asked."""
        if not hasattr(self, "_mutex"):
            return 0.0
        with self._mutex:
            found, self._latencies_ms = sorted(self._latencies_ms), []
        return found[min(len(found) - 1, len(found) * 99 // 100)] if found else 0.0


# --- a soak ---


def _set_up(load: Load) -> None:
    link = load.amqp()
    none: Table = {}
    full: Table = {"x-max-length": LIMIT}
    for queue, arguments in ((QUICK, none), (FULL, full), (SLOW, full), (TX, full), (PROBE, full)):
        link.call(m.QueueDeclare(queue, durable=True, arguments=arguments))
    link.close()
    settings = {"partitions": 1, "retention": {"messages": LIMIT}}
    with httpx.Client(base_url=load.http_url, auth=GUEST, trust_env=False) as client:
        client.put(f"/v1/topics/{LOG}", json={"settings": settings}).raise_for_status()
    for number in range(OFFLINE):  # they come once and stay away
        device = load.mqtt(f"soak-offline-{number}", version=Version.V3_1_1)
        subscribe(device, TOPIC, 1 + number % 2)
        device.close()


def _workers(load: Load, probe: Probe) -> list[Worker]:
    everything = 10_000
    return [
        probe,
        AmqpPublisher(load),
        AmqpConsumer(load, QUICK, 1000, everything),
        AmqpConsumer(load, SLOW, 20, 2),
        TxPublisher(load),
        MqttPublisher(load, 1, Version.V3_1_1),
        MqttPublisher(load, 2, Version.V5),
        MqttSubscriber(load, "prompt", TOPIC, 2, everything),
        MqttSubscriber(load, "slow", TOPIC, 1, 2),
        MqttSubscriber(load, "worker-1", f"$queue/{DURABLE}", 1, everything),
        HttpPublisher(load),
        GroupMember(load),
        Churn(load),
    ]


class Soaked(NamedTuple):
    samples: list[Sample]
    verdicts: list[Verdict]
    errors: list[str]
    done: dict[str, int]
    depths: dict[str, int]
    """Of topics, in the end: whether limits were reached."""

    @property
    def is_fine(self) -> bool:
        return not self.errors and all(verdict.is_flat for verdict in self.verdicts)


def soak(
    directory: Path,
    seconds: float,
    *,
    warm_s: float = WARM_S,
    sample_s: float = SAMPLE_S,
    bars: Sequence[Bar] = BARS,
    say: Callable[[str], object] = lambda line: None,
) -> Soaked:
    config = directory / "node.toml"
    config.write_text(SMALL_LIMITS)
    data_dir = directory / "data"
    with live_node(data_dir, config=config) as node:
        load = Load(node.ports, threading.Event())
        _set_up(load)
        probe = Probe(load)
        workers = _workers(load, probe)
        for worker in workers:
            worker.start()
        sampler = Sampler(node, data_dir, probe)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not any(worker.error for worker in workers):
            time.sleep(sample_s)
            say(_line(sampler.sample()))
        with httpx.Client(base_url=load.http_url, auth=GUEST, timeout=60) as client:
            topics = client.get("/v1/topics").raise_for_status().json()
        load.stopped.set()
        for worker in workers:
            worker.join()
        errors = [f"{worker.name}: {worker.error}" for worker in workers if worker.error]
        errors += node.complaints
        done = {worker.name: worker.done for worker in workers}
    verdicts = [] if errors else judge(sampler.samples, warm_s, bars)
    depths = {topic["name"]: topic["depth"] for topic in topics}
    return Soaked(sampler.samples, verdicts, errors, done, depths)


def _line(sample: Sample) -> str:
    return (
        f"{sample.at_s:7.0f} s  memory {sample.rss_bytes / MIB:7.1f} MiB  "
        f"files {sample.open_files:4d}  disk {sample.disk_bytes / MIB:7.1f} MiB  "
        f"p99 {sample.p99_ms:6.1f} ms"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="braidmq.testing.soak")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--dir", type=Path, help="where data goes; never tmpfs")
    parser.add_argument("--json", type=Path, help="all samples and the verdict")
    given = parser.parse_args()
    seconds = given.minutes * 60
    with tempfile.TemporaryDirectory(prefix="soak-", dir=given.dir) as directory:
        told = soak(Path(directory), seconds, warm_s=min(WARM_S, seconds / 3), say=_say)
    for name, count in told.done.items():
        _say(f"  {name:<28} {count:>9}")
    for error in told.errors:
        _say(error)
    for verdict in told.verdicts:
        word = "flat" if verdict.is_flat else "GREW"
        _say(
            f"  {verdict.field:<12} {verdict.early:14.1f} → {verdict.late:14.1f}  "
            f"× {verdict.ratio:.2f}  {word}"
        )
    if given.json is not None:
        rows = {
            "samples": [sample._asdict() for sample in told.samples],
            "verdicts": [verdict._asdict() for verdict in told.verdicts],
            "errors": told.errors,
        }
        given.json.write_text(json.dumps(rows, indent=1))
    return 0 if told.is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
