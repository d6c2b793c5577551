"""What the clients of every protocol have in common: they go on until told, whatever becomes of the
node, and write down what they did."""

import random
import socket
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from braidmq.testing.crash.history import Reader, Strand

ANSWER_S_MAX = 30.0
"""Whoever waits longer for an answer of a node that is up has found something."""

RECONNECT_S = 0.05
BACKLOG_MAX = 3000
"""A publisher this far ahead of its readers waits: the lab wants many restarts of full queues, not
one long drain."""


class Gone(Exception):
    """The node hung up, or is not there."""


class NoAnswer(Exception):
    """The node is there and says nothing."""


@dataclass
class World:
    ports: Mapping[str, int]
    seed: int
    publishing: threading.Event = field(default_factory=threading.Event)
    """Clear: nothing new; what is under way is brought to its end."""
    paused: threading.Event = field(default_factory=threading.Event)
    """Set: nothing new for a while, so that consumers can be seen to come to the end."""
    ended: threading.Event = field(default_factory=threading.Event)
    _door: threading.Lock = field(default_factory=threading.Lock)

    def wait_for_node(self) -> None:
        """Until it takes connections. One thread asks at a time: a crowd of clients that hammer at
        a node that is starting would take the processor it starts on."""
        with self._door:
            while not self.ended.is_set():
                with (
                    suppress(OSError),
                    socket.create_connection(("127.0.0.1", self.ports["http_port"]), ANSWER_S_MAX),
                ):
                    return
                time.sleep(RECONNECT_S)

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http_port']}"


class Client(threading.Thread, ABC):
    gone: tuple[type[Exception], ...] = (Gone, ConnectionError)
    """What it is to lose the node, for this client."""
    publishes = False
    """It comes to an end by itself once nothing new is to be published."""

    def __init__(self, world: World, strand: Strand, name: str) -> None:
        super().__init__(name=f"{strand.name} {name}", daemon=True)
        self.world = world
        self.strand = strand
        self.random = random.Random(f"{world.seed} {self.name}")
        self.connection = 0
        self.is_finished = False
        """It will publish nothing more, and knows what became of all it did."""

    def run(self) -> None:
        while not self.world.ended.is_set():
            self.world.wait_for_node()
            self.connection += 1
            try:
                self.work()
                if self.is_finished:
                    return
            except self.gone:
                pass
            except NoAnswer as error:
                self.strand.problem(f"{self.name}: no answer for {ANSWER_S_MAX:.0f} s: {error}")
            except Exception:
                if not self.world.ended.is_set():
                    self.strand.problem(f"{self.name}: {traceback.format_exc(limit=-3)}")
            finally:
                self.disconnect()
            time.sleep(0.01)  # one that is refused at once does not take the processor either

    @abstractmethod
    def work(self) -> None:
        """Connect and go on until ``is_finished`` or ``world.ended``."""

    @abstractmethod
    def disconnect(self) -> None:
        """Whatever state the connection is in."""

    def wait_for_turn(self, *readers: Reader) -> None:
        """Before something new: while all publishers pause, or a reader is too far behind."""
        while self.world.publishing.is_set() and (
            self.world.paused.is_set()
            or any(self.strand.backlog(reader) > BACKLOG_MAX for reader in readers)
        ):
            time.sleep(0.01)


class Link:
    """A socket and what came from it."""

    def __init__(self, port: int) -> None:
        try:
            self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_S_MAX)
        except OSError as error:
            raise Gone from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(ANSWER_S_MAX)
        self.input = bytearray()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except TimeoutError as error:
            raise NoAnswer("it does not read") from error
        except OSError as error:
            raise Gone from error

    def receive(self, wait_s: float = ANSWER_S_MAX) -> bool:
        """Take in more. False after ``wait_s`` without anything."""
        try:
            self.socket.settimeout(wait_s)
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return False
        except OSError as error:
            raise Gone from error
        finally:
            self.socket.settimeout(ANSWER_S_MAX)
        if not data:
            raise Gone
        self.input += data
        return True

    def close(self) -> None:
        self.socket.close()
