"""A real node in a real process, for tests that need sockets, signals or ``kill -9``."""

import fcntl
import os
import queue
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import IO

PORT_FLAGS = ("amqp_port", "mqtt_port", "ws_port", "http_port")

START_S_MAX = 60.0
"""A node that is not ready by then hangs: an idle machine with two cores starts one in 0.3 s."""

STOP_S_MAX = 60.0
"""Over the node's own 8 s of draining, under a test's timeout."""

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (debug|info|warning) ")

Flag = str | int | bool | Path


PORTS_FROM, PORT_BLOCKS, PORT_BLOCK = 10_000, 40, 500
"""Below the range from which the kernel takes the ports of outgoing connections (32768 and up):
one of those may belong to somebody's connection by the time a node binds it."""


class _Ports:
    """A block of ports that only this process gives out, in turn: test workers run in parallel."""

    def __init__(self) -> None:
        self._lock, block = self._claim()
        self._turn = cycle(range(block, block + PORT_BLOCK))

    @staticmethod
    def _claim() -> tuple[int, int]:
        for number in range(PORT_BLOCKS):
            path = Path(tempfile.gettempdir()) / f"braidmq-ports-{number}.lock"
            lock = os.open(path, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held until the process ends
            except BlockingIOError:
                os.close(lock)
                continue
            return lock, PORTS_FROM + number * PORT_BLOCK
        raise AssertionError(f"{PORT_BLOCKS} test processes have all blocks of ports")

    def next_free(self) -> int:
        for port in islice(self._turn, PORT_BLOCK):
            with socket.socket() as sock, suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as listeners do
                sock.bind(("127.0.0.1", port))
                return port
        raise AssertionError("no port of this process's block is free")


@cache
def _ports() -> _Ports:
    return _Ports()


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on and no other test process is given; no two are the same."""
    return [_ports().next_free() for _ in range(count)]


def serve_command(
    data_dir: Path, python: str = sys.executable, module: str = "braidmq.cli", /, **flags: Flag
) -> list[str]:
    """``braid serve``: ``http_port=8080`` becomes ``--http-port 8080``, ``dev=True`` ``--dev``."""
    command = [python, "-m", module, "serve", "--data-dir", str(data_dir)]
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not False:
            command += [flag, str(value)]
    return command


@dataclass
class LiveNode:
    process: subprocess.Popen[str]
    ports: dict[str, int]
    lines: list[str] = field(default_factory=list)
    """All it wrote so far, stdout and stderr together."""

    _arrivals: "queue.Queue[str | None]" = field(default_factory=queue.Queue)

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http_port']}"

    def read(self, output: IO[str]) -> None:
        for line in output:
            self._arrivals.put(line.rstrip("\n"))
        self._arrivals.put(None)

    def wait_for_line(self, wanted: str, timeout_s: float = START_S_MAX) -> None:
        """Read on to the line ``wanted``; it must come within ``timeout_s`` of the one before."""
        while True:
            try:
                line = self._arrivals.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(self._without(wanted)) from None
            if line is None:
                raise AssertionError(self._without(wanted))
            self.lines.append(line)
            if line == wanted:
                return

    @property
    def complaints(self) -> list[str]:
        """What it should not have written once it was ready: errors, tracebacks, stray output."""
        while not self._arrivals.empty():
            line = self._arrivals.get()
            if line is None:
                self._arrivals.put(None)
                break
            self.lines.append(line)
        later = self.lines[self.lines.index("ready") + 1 :]
        return [line for line in later if line != "stopped" and not LOG_LINE.match(line)]

    def wait_for_log(self, *words: str, timeout_s: float = START_S_MAX) -> str:
        """Read on to a line that has all these words."""
        while True:
            try:
                line = self._arrivals.get(timeout=timeout_s)
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(self._without(" … ".join(words)))
            self.lines.append(line)
            if all(word in line for word in words):
                return line

    def stop(self) -> int:
        """SIGTERM, then the exit code."""
        self.process.terminate()
        return self._ended()

    def kill(self) -> int:
        """SIGKILL, then the exit code."""
        self.process.kill()
        return self._ended()

    def _ended(self) -> int:
        code = self.process.wait(STOP_S_MAX)
        while (line := self._arrivals.get(timeout=STOP_S_MAX)) is not None:
            self.lines.append(line)
        self._arrivals.put(None)  # stop() after kill(), or twice, finds the end again
        return code

    def _without(self, wanted: str) -> str:
        said = "\n  ".join(self.lines) or "(nothing)"
        return f"the node did not say {wanted!r}; it said:\n  {said}"


@contextmanager
def live_node(data_dir: Path, python: str = sys.executable, /, **flags: Flag) -> Iterator[LiveNode]:
    """A node that is ready. Ports not given in ``flags`` are free ones; it is killed on leaving.
    ``python`` may be that of another installation."""
    with starting_node(data_dir, python, **flags) as node:
        node.wait_for_line("ready")
        yield node


@contextmanager
def starting_node(
    data_dir: Path, python: str = sys.executable, module: str = "braidmq.cli", /, **flags: Flag
) -> Iterator[LiveNode]:
    """A node that was started and may not even live to be ready. ``module`` is what is run instead
    of ``braid``."""
    ports = dict(zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)), strict=True))
    ports.update({name: int(str(flags[name])) for name in PORT_FLAGS if name in flags})
    process = subprocess.Popen(
        serve_command(data_dir, python, module, **{**ports, **flags}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    node = LiveNode(process, ports)
    reader = threading.Thread(target=node.read, args=(process.stdout,), daemon=True)
    reader.start()
    try:
        yield node
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
