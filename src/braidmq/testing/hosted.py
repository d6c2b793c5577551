"""A node in a thread of the test's process, so that the test has its disk in hand.

``CommitGate`` is the disk for tests of what is said when: commits wait at it, or fail.
"""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
import uvloop

from braidmq.alerts.sending import Alerts
from braidmq.config.settings import Config, NodeSettings
from braidmq.engine.engine import Engine
from braidmq.model.clock import Clock, SystemClock
from braidmq.net.settings import ListenerSettings
from braidmq.runtime.node_loop import NodeLoop
from braidmq.server import Node, Service
from braidmq.storage.disk import Disk, MemoryContent
from braidmq.storage.settings import StorageSettings
from braidmq.testing.faulty_disk import FaultyDisk
from braidmq.testing.live import PORT_FLAGS, free_ports

START_S_MAX = 20.0
STOP_S_MAX = 20.0
COMMITTER = "braid-commit"
"""The thread whose syncs answers wait for."""

SMALL = StorageSettings(journal_file_bytes=1 << 20)


class CommitGate(FaultyDisk):
    """Open at first. While it is shut no commit gets through; once it is broken each one fails."""

    def __init__(self) -> None:
        super().__init__()
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()
        self._broken = False

    def shut(self) -> None:
        self._reached.clear()
        self._open.clear()

    def wait_for_commit(self) -> None:
        """Until one stands before it: all is written, and nothing of it synced."""
        assert self._reached.wait(START_S_MAX), "nothing is committed"

    def let_through(self) -> None:
        self._open.set()

    def break_down(self) -> None:
        """What waits fails too."""
        self._broken = True
        self._open.set()

    def sync_contents(self, contents: Sequence[MemoryContent]) -> None:
        if threading.current_thread().name == COMMITTER:
            self._reached.set()
            self._open.wait(STOP_S_MAX)
            if self._broken:
                raise OSError(errno.EIO, "injected fault")
        super().sync_contents(contents)


Answer = TypeVar("Answer")


class HostedNode:
    node_loop: NodeLoop

    def __init__(
        self,
        disk: Disk,
        clock: Clock | None = None,
        config: Config | None = None,
        load: Callable[[], Config] | None = None,
    ) -> None:
        """``load`` is asked when it reads its configuration again."""
        self.ports = dict(zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)), strict=True))
        config = config or Config(
            # Anyone may enter: hashing passwords would take most of a test's time.
            node=NodeSettings(dev=True),
            listeners=msgspec.convert(self.ports, ListenerSettings),
            storage=SMALL,
        )
        clock = clock or SystemClock()
        self.engine = Engine.open(disk, clock.now_ms(), config.storage, config.limits)
        self._node = Node(config, self.engine, clock, load)
        self.alerts = Alerts(config.alerts)
        self._clock = clock
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._up = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hosted-node", daemon=True)

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http_port']}"

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(START_S_MAX), "the node did not start"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            # As a node does it: all of it is there before the loop runs.
            self.node_loop = NodeLoop(self.engine, self._clock, self._loop)
            self.reloading = self._node.reloading
            self.audit = self._node.audit
            self.service = self._node.build(self.node_loop, self.alerts)
            self._loop.run_until_complete(self._serve(self.service))
        except BaseException as error:
            self._error = error
            self._up.set()
        finally:
            self._loop.close()

    async def _serve(self, service: Service) -> None:
        async for _ in service.start():
            pass
        self._up.set()
        await self._stop.wait()
        await service.stop(0.0)
        self.node_loop.stop()

    def call(self, do: Callable[[], Answer]) -> Answer:
        """Have something done where the node runs, in one step of its loop."""

        async def doing() -> Answer:
            return do()

        return asyncio.run_coroutine_threadsafe(doing(), self._loop).result(START_S_MAX)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_S_MAX)
        assert not self._thread.is_alive(), "the node did not stop"
        self._node.logins.close()
        if self._error is not None:
            raise self._error


@contextmanager
def hosted_node(
    disk: Disk,
    clock: Clock | None = None,
    config: Config | None = None,
    load: Callable[[], Config] | None = None,
) -> Iterator[HostedNode]:
    """A node that is ready. What its disk holds at the end is for the next one to find."""
    node = HostedNode(disk, clock, config, load)
    node.start()
    try:
        yield node
    finally:
        if isinstance(disk, CommitGate):
            disk.let_through()
        node.stop()
