"""What is watched while hostile peers talk to a node, whichever protocol they speak."""

import argparse
import json
import random
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from braidmq.testing.live import LiveNode, live_node

NAMESPACE = "fuzz"
WAIT_S = 20.0
BATCH = 200
"""Conversations in one namespace, which is then deleted with all they left in it."""
GROWTH_BYTES_MAX = 48 << 20


class Found(AssertionError):
    """A finding, with what is needed to see it again."""


class Neighbour(Protocol):
    """It uses the node all the while, and must see nothing of the others."""

    def works(self) -> None: ...
    def close(self) -> None: ...


class Session:
    """A node, its neighbour, and what is watched. ``hold`` has the conversation of a seed."""

    def __init__(
        self, node: LiveNode, listener: str, neighbour: Neighbour, hold: Callable[[int], None]
    ) -> None:
        self.node = node
        self.listener = listener
        self.neighbour = neighbour
        self.hold = hold
        self.before = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.neighbour.close()

    def run(self, seed: int, first: int, count: int) -> None:
        for number in range(first, first + count):
            if number % BATCH == 0 or number == first:
                self._renew()
            try:
                self.hold(seed << 32 | number)
                self.neighbour.works()
                self._wait_for_its_end()
                self._look_at_output()
            except Exception as error:
                raise Found(f"--seed {seed} --only {number}: {error}") from error

    def _renew(self) -> None:
        for method, path, body in (
            ("DELETE", f"namespaces/{NAMESPACE}", None),
            ("PUT", f"namespaces/{NAMESPACE}", {}),
            (
                "PUT",
                f"permissions/{NAMESPACE}/guest",
                dict.fromkeys(("configure", "write", "read"), ".*"),
            ),
        ):
            try:
                self._ask(method, path, body)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != 404:
                    raise

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        request = urllib.request.Request(
            f"{self.node.http_url}/v1/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": "Basic " + b64encode(b"guest:guest").decode()},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.read()

    def _wait_for_its_end(self) -> None:
        """Who hangs up may be read late, after the next has come: a CONNECT would then take over
        the next one's session, as it should."""
        deadline = time.monotonic() + WAIT_S
        while self._connections() > 1:  # the neighbour's
            if time.monotonic() > deadline:
                raise Found("a connection outlives its peer")

    def _connections(self) -> int:
        found = json.loads(self._ask("GET", "listeners"))
        return next(each["connections"] for each in found if each["name"] == self.listener)

    def _look_at_output(self) -> None:
        if self.node.process.poll() is not None:
            raise Found("the node is gone")
        said = self.node.complaints
        if said:
            raise Found("the node said: " + " / ".join(said))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.node.process.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    def check_growth(self) -> int:
        """From the first time it is asked; everything the peers left is deleted first."""
        self._renew()
        now = self.resident_bytes()
        self.before = self.before or now
        if now - self.before > GROWTH_BYTES_MAX:
            raise Found(f"memory grew from {self.before >> 20} to {now >> 20} MiB")
        return now


def main(description: str, session_of: Callable[[LiveNode], Session]) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    parser.add_argument("--only", type=int, help="one conversation")
    options = parser.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    with (
        tempfile.TemporaryDirectory() as data,
        live_node(Path(data)) as node,
        session_of(node) as session,
    ):
        if options.only is not None:
            session.run(options.seed, options.only, 1)
            return 0
        number = 0
        while time.monotonic() < deadline:
            session.run(options.seed, number, 5 * BATCH)
            number += 5 * BATCH
            memory = session.check_growth()
            sys.stdout.write(f"seed {options.seed}: {number} held, {memory >> 20} MiB\n")
            sys.stdout.flush()
        session.neighbour.close()
        return node.stop()
