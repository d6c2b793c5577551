"""A producer and a consumer: what each does when its socket is ready."""

import time
from abc import ABC, abstractmethod
from typing import Protocol

from braidmq.loadgen.link import Link

CHUNK_MESSAGES = 1000
"""Rendered at once at most, so that the other sockets get their turn."""


class Account(Protocol):
    """A protocol's publisher: what it rendered and what was answered."""

    @property
    def published(self) -> int: ...
    @property
    def confirmed(self) -> int: ...
    @property
    def nacked(self) -> int: ...
    @property
    def strange(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def outstanding(self) -> int: ...
    def render(self, count: int, now_ns: int) -> bytes: ...


class Producing(ABC):
    """A producer. ``limit`` is the sequence number it stops at."""

    def __init__(self, client: Link, publisher: Account) -> None:
        self.client = client
        self.publisher = publisher
        self.limit = 0

    @property
    def is_blocked(self) -> bool:
        """The broker said that it takes nothing now."""
        return False

    @abstractmethod
    def _receive(self) -> None: ...

    def read(self) -> None:
        self._receive()
        if not self.client.unsent:
            self.publish()

    def write(self) -> None:
        if self.client.send():
            self.publish()

    @property
    def could_publish(self) -> bool:
        return not self.client.unsent and self._allowed > 0

    @property
    def _allowed(self) -> int:
        publisher = self.publisher
        count = min(self.limit - publisher.published, CHUNK_MESSAGES)
        return min(count, publisher.room) if publisher.window else count

    def publish(self) -> None:
        count = self._allowed
        if count > 0:
            self.client.send(self.publisher.render(count, time.perf_counter_ns()))


class Consuming(ABC):
    def __init__(self, client: Link) -> None:
        self.client = client

    @property
    @abstractmethod
    def strange(self) -> int: ...

    @abstractmethod
    def read(self) -> None: ...

    def write(self) -> None:
        self.client.send()


Peer = Producing | Consuming
