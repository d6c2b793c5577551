"""The processes that clients run in: one for each protocol, through all lives of the node."""

import pickle
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

from braidmq.testing.crash import amqp, http, mqtt
from braidmq.testing.crash.clients import ANSWER_S_MAX, Client, World
from braidmq.testing.crash.history import Strand

Protocol = Literal["amqp", "mqtt", "http"]
Clients = Callable[[World], tuple[list[Strand], list[Client]]]

PROTOCOLS: dict[Protocol, Clients] = {
    "amqp": amqp.clients,
    "mqtt": mqtt.clients,
    "http": http.clients,
}


class Progress(NamedTuple):
    unfinished: list[str]
    """Publishers that do not yet know what became of all they sent."""
    silent: list[str]
    """Strands of which nothing was confirmed so far."""
    confirmed: int


def _run(protocol: Protocol, ports: dict[str, int], seed: int, lab: Connection, to: Path) -> None:
    world = World(ports, seed)
    world.publishing.set()
    strands, clients = PROTOCOLS[protocol](world)
    for client in clients:
        client.start()
    lab.send("started")
    while (command := lab.recv()) != "end":
        if command == "finish":
            world.publishing.clear()
        elif command == "pause":
            world.paused.set()
        elif command == "resume":
            world.paused.clear()
        unfinished = [each.name for each in clients if each.publishes and not each.is_finished]
        silent = [strand.name for strand in strands if not strand.confirmed]
        confirmed = sum(strand.confirmed for strand in strands)
        lab.send(Progress(unfinished, silent, confirmed))
    world.ended.set()
    deadline = time.monotonic() + ANSWER_S_MAX + 5
    for client in clients:
        client.join(max(0.0, deadline - time.monotonic()))
        if client.is_alive():
            client.strand.problem(f"{client.name}: still waits for the node")
    to.write_bytes(pickle.dumps(strands))
    lab.send("ended")


class TrafficProcess:
    def __init__(
        self, protocol: Protocol, ports: dict[str, int], seed: int, directory: Path
    ) -> None:
        self.protocol = protocol
        self._to = directory / f"{protocol}.history"
        self._pipe, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(
            target=_run, args=(protocol, ports, seed, theirs, self._to), daemon=True
        )
        self._process.start()
        theirs.close()

    def started(self) -> None:
        assert self._pipe.recv() == "started"

    def finish(self) -> list[str]:
        """No new messages from now on. Who has not yet come to an end?"""
        return self._ask("finish").unfinished

    def pause(self) -> None:
        self._ask("pause")

    def resume(self) -> None:
        self._ask("resume")

    def silent(self) -> list[str]:
        return self._ask("count").silent

    def confirmed(self) -> int:
        return self._ask("count").confirmed

    def _ask(self, command: str) -> Progress:
        self._pipe.send(command)
        answer: Progress = self._pipe.recv()
        return answer

    def end(self) -> list[Strand]:
        self._pipe.send("end")
        assert self._pipe.recv() == "ended"
        self._process.join()
        strands: list[Strand] = pickle.loads(self._to.read_bytes())
        return strands

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
