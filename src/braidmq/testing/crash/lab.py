"""An episode: one directory, many lives of a node, clients of every protocol through all."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from braidmq.testing.crash import amqp, http, own_client
from braidmq.testing.crash.checker import Finding, check
from braidmq.testing.crash.faults import Fault, draw
from braidmq.testing.crash.history import Life, Reader, Strand, place_of
from braidmq.testing.crash.node import ENVIRONMENT
from braidmq.testing.crash.traffic import PROTOCOLS, Protocol, TrafficProcess
from braidmq.testing.live import PORT_FLAGS, LiveNode, free_ports, starting_node

MODULE = "braidmq.testing.crash.node"
SMALL_FILES = """\
[storage]
journal_file_bytes = 262144
segment_bytes_max = 65536
tail_bytes_max = 2097152

[retention]
check_interval_s = 0.5

[log]
level = "warning"
"""
"""Journals roll and checkpoints are taken several times a second."""

PLACED_EXTRA_S = 1.0
"""What a placed fault may take beyond the traffic's time before it counts as not reached."""

START_S_MAX = 60.0
BLOCKED_S = 15.0
"""A queue that has consumers and does not get shorter for so long is blocked."""
DRAIN_EVERY = 6
"""Lives after which publishers pause until all is consumed, if that life's end is not placed."""
DRAIN_S_MAX = 120.0
"""Then it is given up; between the two it may still turn out that nothing was lost."""

NOT_CONSUMED = {amqp.MARKS, *(log for logs in amqp.LOGS.values() for log in logs)}
LOGS = {**amqp.LOGS, **http.LOGS, **own_client.LOGS}
"""By strand, or strand and reader: the topics that are read in the end."""
TOPIC_PLACE = 56
"""Bit of a place from which on it says which of a strand's logs it is in."""


class NodeBroken(Exception):
    """The node does not start, or died without being told to."""


class Episode(NamedTuple):
    seed: int
    lives: list[Life]
    strands: list[Strand]
    findings: list[Finding]
    faults: Counter[str]
    seconds: float


@dataclass
class Lab:
    directory: Path
    seed: int
    lives_count: int
    traffic_s: float = 1.5
    protocols: tuple[Protocol, ...] = tuple(PROTOCOLS)
    say: Callable[[str], object] = lambda line: None
    findings: list[Finding] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    _traffic: list[TrafficProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._ports = dict(zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)), strict=True))
        self._data = self.directory / "data"
        self._data.mkdir(parents=True)
        self._config = self.directory / "node.toml"
        self._config.write_text(SMALL_FILES)
        url = f"http://127.0.0.1:{self._ports['http_port']}"
        self._http = httpx.Client(base_url=url, auth=http.GUEST, timeout=30, trust_env=False)

    def run(self) -> Episode:
        began = time.monotonic()
        strands: list[Strand] = []
        try:
            for number in range(self.lives_count):
                fault = draw(self._random, self.traffic_s)
                if number == 0:  # it must live long enough to be set up
                    fault = msgspec.structs.replace(fault, operation=None, in_start=False)
                self._live(number, fault)
            strands = self._last_life()
        except NodeBroken as broken:
            self._found("node", "problem", str(broken))
        finally:
            for process in self._traffic:
                process.kill()
            self._http.close()
        for strand in strands:
            self.findings += check(strand, self.lives)
        seconds = time.monotonic() - began
        return Episode(self.seed, self.lives, strands, self.findings, self.faults, seconds)

    def _found(self, strand: str, kind: Any, text: str) -> None:
        self.findings.append(Finding(strand, kind, text))

    # --- a life ---

    def _live(self, number: int, fault: Fault) -> None:
        started_ns = time.monotonic_ns()
        ready_ns = 0
        kind = fault.kind
        with self._starting(fault) as node:
            if self._is_ready(node, fault):
                ready_ns = time.monotonic_ns()
                if number == 0:
                    self._set_up()
                elif number % DRAIN_EVERY == 0 and fault.operation is None:
                    self._drain()
                if not self._work(node, fault):
                    kind = "power cut at random" if fault.is_power_cut else "kill at random"
            self._check_end(node, fault)
        self.faults[kind] += 1
        ended_ns = time.monotonic_ns()
        self.lives.append(Life(started_ns, ended_ns, kind))
        lived = f"ready after {(ready_ns - started_ns) / 1e9:.1f} s, " if ready_ns else ""
        lived += f"{(ended_ns - started_ns) / 1e9:.1f} s in all"
        self.say(f"life {number}: {kind}, {lived}, {self._confirmed()} confirmed so far")

    def _drain(self) -> None:
        """While publishers pause, consumers come to the end: nothing is blocked by what the last
        life left behind."""
        for process in self._traffic:
            process.pause()
        self._wait_for_consumers()
        self._wait_for_transactions()
        for process in self._traffic:
            process.resume()

    def _starting(self, fault: Fault) -> Any:
        os.environ[ENVIRONMENT] = msgspec.json.encode(fault).decode()
        return starting_node(self._data, sys.executable, MODULE, config=self._config, **self._ports)

    def _is_ready(self, node: LiveNode, fault: Fault) -> bool:
        try:
            node.wait_for_line("ready", START_S_MAX)
        except AssertionError as error:
            if fault.in_start and node.process.wait(10) == -signal.SIGKILL:
                return False
            raise NodeBroken(f"{self._after()}: {error}") from None
        return True

    def _after(self) -> str:
        ended = next((life.fault for life in reversed(self.lives) if life.ended_ns), "nothing yet")
        return f"after {len(self.lives)} lives, the last ended by {ended}"

    def _work(self, node: LiveNode, fault: Fault) -> bool:
        """True if the placed moment came before the traffic's time was over."""
        is_placed = fault.operation is not None and not fault.in_start
        with suppress(subprocess.TimeoutExpired):
            node.process.wait(fault.traffic_s + (PLACED_EXTRA_S if is_placed else 0))
            return True
        node.process.send_signal(signal.SIGUSR1 if fault.is_power_cut else signal.SIGKILL)
        return fault.operation is None

    def _check_end(self, node: LiveNode, fault: Fault) -> None:
        code = node.process.wait(START_S_MAX)
        old = self._data.with_name(self._data.name + ".old")
        if code != -signal.SIGKILL or (fault.is_power_cut and not old.exists()):
            raise NodeBroken(f"it ended by itself with {code}: {_last(node)}")
        self._note_complaints(node)
        if old.exists():
            shutil.rmtree(old)

    def _note_complaints(self, node: LiveNode) -> None:
        if "ready" in node.lines and (complaints := node.complaints):
            text = "\n".join(complaints[:30])
            self._found("node", "problem", f"in life {len(self.lives)} it wrote: {text}")

    def _confirmed(self) -> int:
        return sum(process.confirmed() for process in self._traffic)

    # --- the first and the last ---

    def _set_up(self) -> None:
        for topic in (own_client.IN, own_client.OUT):
            self._call("PUT", f"/v1/topics/{topic}", {"settings": {"partitions": 1}})
        for name, settings in http.topics().items():
            self._call("PUT", f"/v1/topics/{name}", {"settings": settings})
        for topic, name in http.subscriptions():
            self._call("PUT", f"/v1/topics/{topic}/subscriptions/{name}", {})
        amqp.declare(self._ports["amqp_port"])
        for protocol in self.protocols:
            self._traffic.append(TrafficProcess(protocol, self._ports, self.seed, self.directory))
        for process in self._traffic:
            process.started()
        # What has not begun can't be hit by a fault.
        deadline = time.monotonic() + START_S_MAX
        while any(process.silent() for process in self._traffic):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)

    def _call(self, verb: str, path: str, body: Any = None) -> Any:
        return self._http.request(verb, path, json=body).raise_for_status().json()

    def _last_life(self) -> list[Strand]:
        started_ns = time.monotonic_ns()
        harmless = Fault(is_power_cut=False, traffic_s=0, seed=0)
        with self._starting(harmless) as node:
            if not self._is_ready(node, harmless):
                raise NodeBroken("it was not to end")
            self.lives.append(Life(started_ns, 0, "last"))
            self._wait_for_publishers()
            self._wait_for_consumers()
            self._wait_for_transactions()
            self._look_for_dead_letters()
            strands = [strand for process in self._traffic for strand in process.end()]
            for strand in strands:
                self._read_logs(strand)
            node.process.terminate()
            code = node.process.wait(START_S_MAX)
            if code:
                self._found("node", "problem", f"it stopped with {code}: {_last(node)}")
            self._note_complaints(node)
        return strands

    def _wait_for_publishers(self) -> None:
        deadline = time.monotonic() + DRAIN_S_MAX
        while unfinished := [name for each in self._traffic for name in each.finish()]:
            if time.monotonic() > deadline:
                for name in unfinished:
                    self._found(name.partition(" ")[0], "blocked", f"{name} got no answer")
                return
            time.sleep(0.05)

    def _wait_for_consumers(self) -> None:
        """Every queue with consumers is to become empty."""
        began = time.monotonic()
        least: dict[str, int] = {}
        since: dict[str, float] = {}
        told: set[str] = set()
        while left := self._lags():
            now = time.monotonic()
            for name, lag in left.items():
                if lag < least.get(name, lag + 1):
                    least[name], since[name] = lag, now
                if now - since[name] > BLOCKED_S and name not in told:
                    told.add(name)
                    text = f"{name} kept {lag} messages for {BLOCKED_S:.0f} s {self._after()}"
                    self._found("node", "blocked", text)
            if now - began > DRAIN_S_MAX:
                return
            time.sleep(0.1)

    def _lags(self) -> dict[str, int]:
        return {
            f"{each['topic']} of {each['name']}": each["lag"]
            for each in self._call("GET", "/v1/subscriptions")
            if each["lag"] and each["topic"] not in NOT_CONSUMED
        }

    def _wait_for_transactions(self) -> None:
        """What nobody will end must be decided soon, and not stand in the way."""
        began = time.monotonic()
        told: set[str] = set()
        while open_ones := self._call("GET", "/v1/transactions"):
            waited = time.monotonic() - began
            for each in open_ones if waited > BLOCKED_S else ():
                if each["name"] not in told:
                    told.add(each["name"])
                    text = f"a transaction is open {BLOCKED_S:.0f} s {self._after()}: {each}"
                    self._found("node", "blocked", text)
            if waited > DRAIN_S_MAX:
                return
            time.sleep(0.1)

    def _look_for_dead_letters(self) -> None:
        """Nobody gave up on a message where no strand meant it to."""
        for topic in self._call("GET", "/v1/topics"):
            if not topic["name"].endswith(".dlq"):
                continue
            path = f"/v1/topics/{quote(topic['name'].removesuffix('.dlq'), safe='')}/dead-letters"
            letters = self._call("GET", path)["letters"]
            if letters:
                text = f"{topic['name']} has {len(letters)} or more, such as {letters[0]}"
                self._found("node", "problem", text)

    def _read_logs(self, strand: Strand) -> None:
        for name, topics in LOGS.items():
            of_strand, _, reader_name = name.partition("/")
            if of_strand == strand.name:
                reader = strand.readers[reader_name or "log"]
                self._read_topics(strand, reader, topics)

    def _read_topics(self, strand: Strand, reader: Reader, topics: tuple[str, ...]) -> None:
        for index, topic in enumerate(topics):
            for partition in range(http.PARTITIONS.get(topic, 1)):
                at, end = 0, 1
                while at < end:
                    path = f"/v1/topics/{topic}/partitions/{partition}/messages"
                    page = self._call("GET", f"{path}?limit=1000&bytes_max=4194304&start={at}")
                    for each in page["messages"]:
                        place = index << TOPIC_PLACE | place_of(partition, each["offset"])
                        value = each["value"] or ""
                        reader.arrived(strand.name, value.encode(), place=place)
                    if page["next_offset"] <= at:
                        break
                    at, end = page["next_offset"], page["end_offset"]


def _last(node: LiveNode) -> str:
    with suppress(ValueError):
        node.complaints  # noqa: B018 - reads what it wrote to the end
    return "\n  ".join(node.lines[-30:])
