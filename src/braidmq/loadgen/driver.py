"""Runs a workload on a broker and checks it: what all protocols have in common."""

import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from braidmq.loadgen.arrivals import Arrivals, Histogram
from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.loadgen.peers import Consuming, Peer, Producing
from braidmq.loadgen.result import Latency, Result

WARM_UP_S = 1.0
UNDER_WAY_MAX = 50_000
"""Published and not yet received, where no window says less: more than sockets hold, so it does not
slow a broker, but a bound on what one that accepts faster than it delivers must hold."""
SILENCE_S_MAX = 30.0
"""A broker that has sent nothing for so long has lost what is missing."""
PROGRESS_S = 0.25
POLL_S_MAX = 0.05
UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Workload:
    """What every protocol's workloads have."""

    name: str
    about: str
    producers: int = 1
    body_bytes: int = 128
    window: int = 1000
    """Publishes a producer has unconfirmed; 0: no confirms."""
    per_second: float = 0
    """Publishes of each producer; 0: as many as the broker takes."""


@dataclass(frozen=True)
class Progress:
    phase: str
    elapsed_s: float
    published: int
    confirmed: int
    received: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class _Mark:
    """Counters at one moment; the difference of two is a rate."""

    at: float
    published: int
    received: int
    cpu_s: float
    own_cpu_s: float


class Run(ABC):
    """One workload on one broker. ``go`` once, then it is spent. A protocol connects producers and
    consumers and says how to take down what it set up."""

    def __init__(self, workload: Workload, port: int, on_progress: OnProgress) -> None:
        self._workload = workload
        self._port = port
        self._on_progress = on_progress
        self._id = int.from_bytes(os.urandom(4), "big")
        self._prefix = f"braid-bench-{self._id:08x}"
        self._confirm_latency = Histogram()
        self._latency = Histogram()
        self._arrivals: list[Arrivals] = []
        """One for each place where every message is to arrive."""
        self._producers: list[Producing] = []
        self._consumers: list[Consuming] = []
        self._peers: dict[int, Peer] = {}
        self._masks: dict[int, int] = {}
        self._poll = select.epoll()
        self._schedule_s = 0.0
        self._paced = 0
        self._phase = "setting up"
        self._unthrottled = False
        """Publishing with no window, or a very large one: deliveries say how far."""
        self._shown = self._began = 0.0

    @abstractmethod
    def _set_up(self, stack: ExitStack) -> str:
        """Connect everybody, and have ``stack`` take it down; returns the broker's name."""

    def go(self, seconds: float) -> Result:
        with ExitStack() as stack:
            stack.callback(self._poll.close)
            name = self._set_up(stack)
            self._broker = BrokerProcess.listening_on(self._port)
            result = Result(self._workload.name, self._workload.about, name)
            if self._broker is None:
                result.notes.append("no process of this machine listens there: no processor time")
            self._began = time.perf_counter()
            self._run(seconds, result)
            self._count(result)
            return result

    def _new_arrivals(self) -> Arrivals:
        self._arrivals.append(Arrivals(self._id, self._workload.producers, self._latency))
        return self._arrivals[-1]

    def _add(self, peer: Peer) -> None:
        peer.client.start()
        fd = peer.client.socket.fileno()
        self._peers[fd] = peer
        self._masks[fd] = select.EPOLLIN
        self._poll.register(fd, select.EPOLLIN)

    # --- phases ---

    def _run(self, seconds: float, result: Result) -> None:
        warm_up = min(WARM_UP_S, seconds / 4)
        self._phase = "warming up"
        self._let_publish()
        self._turn_until(time.perf_counter() + warm_up)
        self._phase = "measuring"
        self._latency.clear()
        self._confirm_latency.clear()
        start = self._mark()
        self._turn_until(start.at + seconds)
        self._measured(start, result)
        # Taken here: what drains from a backlog later is not what the workload is about.
        result.end_to_end_ms = Latency.of(self._latency)
        result.confirm_ms = Latency.of(self._confirm_latency)
        self._phase = "draining"
        self._unthrottled = False
        for producer in self._producers:
            producer.limit = producer.publisher.published
        self._paced = -1
        self._turn_while(lambda: not self._all_settled())

    def _let_publish(self) -> None:
        if self._workload.per_second:
            self._schedule_s = time.perf_counter()
            return
        self._unthrottled = not 0 < self._workload.window * len(self._producers) < UNDER_WAY_MAX
        for producer in () if self._unthrottled else self._producers:
            producer.limit = UNLIMITED
            producer.publish()

    def _mark(self) -> _Mark:
        return _Mark(
            time.perf_counter(),
            sum(each.publisher.published for each in self._producers),
            self._received(),
            self._broker.cpu_s() if self._broker else 0.0,
            time.process_time(),
        )

    def _measured(self, start: _Mark, result: Result) -> None:
        end = self._mark()
        result.seconds = end.at - start.at
        result.measured = end.received - start.received
        result.rate = result.measured / result.seconds
        result.publish_rate = (end.published - start.published) / result.seconds
        result.generator_busy = (end.own_cpu_s - start.own_cpu_s) / result.seconds
        if self._broker is not None:
            used = end.cpu_s - start.cpu_s
            moved = result.measured or end.published - start.published
            result.broker_cpus = used / result.seconds
            result.cpu_us_per_message = used / max(moved, 1) * 1e6
            result.broker_rss_bytes = self._broker.rss_bytes()

    def _count(self, result: Result) -> None:
        publishers = [each.publisher for each in self._producers]
        arrivals = self._arrivals
        result.published = sum(each.published for each in publishers)
        result.confirmed = sum(each.confirmed for each in publishers)
        result.nacked = sum(each.nacked for each in publishers)
        result.received = self._received()
        result.lost = result.published * len(arrivals) - result.received
        result.duplicated = sum(each.duplicated for each in arrivals)
        result.reordered = sum(each.reordered for each in arrivals)
        result.redelivered = sum(each.redelivered for each in arrivals)
        result.strange = sum(each.foreign for each in arrivals)
        result.strange += sum(each.strange for each in publishers)
        result.strange += sum(each.strange for each in self._consumers)

    # --- the loop ---

    def _turn_until(self, deadline: float) -> None:
        while (now := time.perf_counter()) < deadline:
            self._turn(now)

    def _turn_while(self, condition: Callable[[], bool]) -> None:
        seen, since = -1, time.perf_counter()
        while condition():
            now = time.perf_counter()
            self._turn(now)
            moved = self._received() + self._confirmed()
            if moved != seen:
                seen, since = moved, now
            elif now - since > SILENCE_S_MAX:
                return

    def _turn(self, now: float) -> None:
        if now - self._shown > PROGRESS_S:
            self._shown = now
            self._show(now)
        timeout = self._pace(now) if self._workload.per_second else POLL_S_MAX
        if self._unthrottled and self._follow():
            timeout = 0.0
        if timeout < POLL_S_MAX:
            # epoll waits whole milliseconds, select microseconds: C publishes every 500 µs.
            select.select([self._poll], [], [], timeout)
            timeout = 0.0
        for fd, events in self._poll.poll(timeout):
            peer = self._peers[fd]
            if events & select.EPOLLOUT:
                peer.write()
            if events & ~select.EPOLLOUT:
                peer.read()
            self._watch(fd, peer)

    def _watch(self, fd: int, peer: Peer) -> None:
        mask = select.EPOLLIN | select.EPOLLOUT if peer.client.unsent else select.EPOLLIN
        if mask != self._masks[fd]:
            self._masks[fd] = mask
            self._poll.modify(fd, mask)

    def _follow(self) -> bool:
        """Publish on as far as deliveries allow; whether more would go now."""
        slowest = min(each.received for each in self._arrivals)
        limit = (slowest + UNDER_WAY_MAX) // len(self._producers)
        more = False
        for producer in self._producers:
            producer.limit = limit
            if not producer.client.unsent:
                producer.publish()
                self._watch(producer.client.socket.fileno(), producer)
                more |= producer.could_publish
        return more

    def _pace(self, now: float) -> float:
        """Publish what is due, producers evenly in turn; how long until the next is."""
        if self._paced < 0:
            return POLL_S_MAX
        count = len(self._producers)
        gap = 1 / (self._workload.per_second * count)
        while (due := self._schedule_s + self._paced * gap) <= now:
            producer = self._producers[self._paced % count]
            self._paced += 1
            producer.limit += 1
            if not producer.client.unsent:
                producer.publish()
        return min(due - now, POLL_S_MAX)

    def _received(self) -> int:
        return sum(each.received for each in self._arrivals)

    def _confirmed(self) -> int:
        return sum(each.publisher.confirmed for each in self._producers)

    def _all_settled(self) -> bool:
        published = sum(each.publisher.published for each in self._producers)
        if self._received() < published * len(self._arrivals):
            return False
        return not any(each.publisher.outstanding for each in self._producers)

    def _show(self, now: float) -> None:
        self._on_progress(
            Progress(
                self._phase,
                now - self._began,
                sum(each.publisher.published for each in self._producers),
                self._confirmed(),
                self._received() // max(len(self._arrivals), 1),
            )
        )
