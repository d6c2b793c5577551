"""Sets a workload up on a broker, runs it, checks it, and takes it down again."""

import os
import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from braidmq.client.address import parse_address
from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.loadgen.client import CHANNEL, Client, LoadFailed
from braidmq.loadgen.peers import Consuming, Peer, Producing
from braidmq.loadgen.result import Latency, Result
from braidmq.loadgen.workloads import TOPIC_BINDINGS, Workload
from braidmq.wire.amqp.load import Arrivals, Consumer, Histogram, Publisher
from braidmq.wire.amqp.methods import (
    BasicConsume,
    BasicQos,
    ConfirmSelect,
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueDelete,
)
from braidmq.wire.amqp.properties import Properties, encode_properties

WARM_UP_S = 1.0
UNCONFIRMED_MAX = 50_000
"""Without confirms, published and not yet received: more than sockets hold, so it does not slow a
broker, but a bound on what one that accepts faster than it delivers must hold."""
SILENCE_S_MAX = 30.0
"""A broker that has sent nothing for so long has lost what is missing."""
PROGRESS_S = 0.25
POLL_S_MAX = 0.05
UNLIMITED = 1 << 62


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


class Run:
    """One workload on one broker. ``go`` once, then it is spent."""

    def __init__(self, workload: Workload, url: str, on_progress: OnProgress) -> None:
        self.workload = workload
        self._address = parse_address(url)
        self._on_progress = on_progress
        self._id = int.from_bytes(os.urandom(4), "big")
        self._prefix = f"braid-bench-{self._id:08x}"
        self._confirm_latency = Histogram()
        self._latency = Histogram()
        self._arrivals = Arrivals(self._id, workload.producers, self._latency)
        self._producers: list[Producing] = []
        self._consumers: list[Consuming] = []
        self._peers: dict[int, Peer] = {}
        self._masks: dict[int, int] = {}
        self._poll = select.epoll()
        self._schedule_s = 0.0
        self._paced = 0
        self._phase = "setting up"
        self._unthrottled = False
        """Publishing without confirms: only deliveries say how far."""
        self._shown = self._began = 0.0

    def go(self, seconds: float) -> Result:
        with ExitStack() as stack:
            stack.callback(self._poll.close)
            admin = Client(self._address)
            stack.callback(admin.close)
            self._broker = BrokerProcess.listening_on(self._address.port)
            result = Result(self.workload.name, self.workload.about, admin.server)
            if self._broker is None:
                result.notes.append("no process of this machine listens there: no processor time")
            stack.callback(self._take_down, admin)
            self._declare(admin)
            self._connect(stack)
            self._began = time.perf_counter()
            if self.workload.backlog:
                self._run_backlog(result)
            else:
                self._run_for(seconds, result)
            self._count(result)
            return result

    # --- set-up ---

    def _queue(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def _declare(self, admin: Client) -> None:
        work = self.workload
        for number in range(work.queues):
            admin.call(QueueDeclare(self._queue(number), durable=True))
        if work.topic_keys:
            admin.call(ExchangeDeclare(self._prefix, "topic", durable=True))
            for number in range(TOPIC_BINDINGS):
                admin.call(QueueBind(self._queue(0), self._prefix, f"site.*.unit{number}.#"))

    def _take_down(self, admin: Client) -> None:
        try:
            for number in range(self.workload.queues):
                admin.call(QueueDelete(self._queue(number)))
            if self.workload.topic_keys:
                admin.call(ExchangeDelete(self._prefix))
        except (OSError, LoadFailed):
            pass  # the run has failed already, and says why

    def _connect(self, stack: ExitStack) -> None:
        work = self.workload
        if not work.backlog:
            self._connect_consumers(stack)
        for number in range(work.producers):
            client = Client(self._address)
            stack.callback(client.close)
            if work.window:
                client.call(ConfirmSelect())
            publisher = self._publisher(number)
            self._add(producer := Producing(client, publisher))
            self._producers.append(producer)

    def _publisher(self, number: int) -> Publisher:
        work = self.workload
        if work.topic_keys:
            exchange = self._prefix.encode()
            keys = [f"site.north.unit{i}.heat".encode() for i in range(work.topic_keys)]
        else:
            exchange = b""
            keys = [self._queue(number % work.queues).encode()]
        properties = encode_properties(Properties(delivery_mode=2 if work.persistent else 1))
        return Publisher(
            CHANNEL,
            exchange,
            keys,
            properties,
            work.body_bytes,
            self._id,
            number,
            work.window,
            self._confirm_latency,
        )

    def _connect_consumers(self, stack: ExitStack) -> None:
        work = self.workload
        for number in range(work.queues):
            client = Client(self._address)
            stack.callback(client.close)
            if work.ack_every:
                client.call(BasicQos(0, work.prefetch))
            consumer = Consuming(client, Consumer(CHANNEL, work.ack_every), self._arrivals)
            self._consumers.append(consumer)
            # Registered before it is asked for: deliveries may come with the answer.
            self._add(consumer)
            client.send_method(BasicConsume(self._queue(number), "c", no_ack=work.ack_every == 0))

    def _add(self, peer: Peer) -> None:
        peer.client.start()
        fd = peer.client.socket.fileno()
        self._peers[fd] = peer
        self._masks[fd] = select.EPOLLIN
        self._poll.register(fd, select.EPOLLIN)

    # --- phases ---

    def _run_for(self, seconds: float, result: Result) -> None:
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

    def _run_backlog(self, result: Result) -> None:
        total = self.workload.backlog
        self._phase = "publishing"
        start = self._mark()
        self._producers[0].limit = total
        self._producers[0].publish()
        self._turn_while(lambda: self._confirmed() < total)
        self._measured(start, result)
        result.confirm_ms = Latency.of(self._confirm_latency)
        self._phase = "draining"
        with ExitStack() as stack:
            middle = self._mark()
            self._connect_consumers(stack)
            self._turn_while(lambda: not self._all_settled())
            end = self._mark()
            self._acknowledge_rest()
        drained = end.received - middle.received
        result.measured = drained
        result.rate = drained / (end.at - middle.at)
        result.end_to_end_ms = None
        if self._broker is not None:
            result.drain_cpu_us_per_message = (end.cpu_s - middle.cpu_s) / max(drained, 1) * 1e6

    def _let_publish(self) -> None:
        if self.workload.per_second:
            self._schedule_s = time.perf_counter()
            return
        self._unthrottled = not self.workload.window
        for producer in self._producers if self.workload.window else ():
            producer.limit = UNLIMITED
            producer.publish()

    def _mark(self) -> _Mark:
        return _Mark(
            time.perf_counter(),
            sum(each.publisher.published for each in self._producers),
            self._arrivals.received,
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
        result.received = arrivals.received
        result.lost = result.published - arrivals.received
        result.duplicated = arrivals.duplicated
        result.reordered = arrivals.reordered
        result.redelivered = arrivals.redelivered
        result.strange = arrivals.foreign + sum(each.strange for each in publishers)
        result.strange += sum(each.consumer.strange for each in self._consumers)
        result.blocked = any(each.client.blocked for each in self._producers)

    # --- the loop ---

    def _turn_until(self, deadline: float) -> None:
        while (now := time.perf_counter()) < deadline:
            self._turn(now)

    def _turn_while(self, condition: Callable[[], bool]) -> None:
        seen, since = -1, time.perf_counter()
        while condition():
            now = time.perf_counter()
            self._turn(now)
            moved = self._arrivals.received + self._confirmed()
            if moved != seen:
                seen, since = moved, now
            elif now - since > SILENCE_S_MAX:
                return

    def _turn(self, now: float) -> None:
        if now - self._shown > PROGRESS_S:
            self._shown = now
            self._show(now)
        timeout = self._pace(now) if self.workload.per_second else POLL_S_MAX
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
        """Without confirms: publish on as far as deliveries allow; whether more would go now."""
        limit = self._arrivals.received + UNCONFIRMED_MAX
        more = False
        for producer in self._producers:
            producer.limit = limit
            if not producer.client.unsent:
                producer.publish()
                self._watch(producer.client.socket.fileno(), producer)
                more |= not producer.client.unsent and producer.publisher.published < limit
        return more

    def _pace(self, now: float) -> float:
        """Publish what is due, producers evenly in turn; how long until the next is."""
        if self._paced < 0:
            return POLL_S_MAX
        count = len(self._producers)
        gap = 1 / (self.workload.per_second * count)
        while (due := self._schedule_s + self._paced * gap) <= now:
            producer = self._producers[self._paced % count]
            self._paced += 1
            producer.limit += 1
            if not producer.client.unsent:
                producer.publish()
        return min(due - now, POLL_S_MAX)

    def _confirmed(self) -> int:
        return sum(each.publisher.confirmed for each in self._producers)

    def _all_settled(self) -> bool:
        published = sum(each.publisher.published for each in self._producers)
        if self._arrivals.received < published:
            return False
        return not any(each.publisher.outstanding for each in self._producers)

    def _acknowledge_rest(self) -> None:
        for consumer in self._consumers:
            consumer.acknowledge_rest()

    def _show(self, now: float) -> None:
        self._on_progress(
            Progress(
                self._phase,
                now - self._began,
                sum(each.publisher.published for each in self._producers),
                self._confirmed(),
                self._arrivals.received,
            )
        )


def run(
    workload: Workload, url: str, seconds: float, on_progress: OnProgress = lambda _: None
) -> Result:
    return Run(workload, url, on_progress).go(seconds)
