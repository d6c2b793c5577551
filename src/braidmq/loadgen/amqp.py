"""AMQP's workloads on any broker that speaks AMQP 0-9-1."""

from contextlib import ExitStack

from braidmq.client.address import parse_address
from braidmq.loadgen.amqp_client import CHANNEL, Client
from braidmq.loadgen.amqp_load import Consumer, Publisher
from braidmq.loadgen.amqp_peers import AmqpConsuming, AmqpProducing
from braidmq.loadgen.amqp_workloads import TOPIC_BINDINGS, AmqpWorkload
from braidmq.loadgen.driver import OnProgress, Run
from braidmq.loadgen.link import LoadFailed
from braidmq.loadgen.result import Latency, Result
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


class AmqpRun(Run):
    def __init__(self, workload: AmqpWorkload, url: str, on_progress: OnProgress) -> None:
        self._address = parse_address(url)
        super().__init__(workload, self._address.port, on_progress)
        self._work = workload
        self._new_arrivals()

    # --- set-up ---

    def _set_up(self, stack: ExitStack) -> str:
        admin = Client(self._address)
        stack.callback(admin.close)
        stack.callback(self._take_down, admin)
        self._declare(admin)
        self._connect(stack)
        return admin.server

    def _queue(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def _declare(self, admin: Client) -> None:
        work = self._work
        for number in range(work.queues):
            admin.call(QueueDeclare(self._queue(number), durable=True))
        if work.topic_keys:
            admin.call(ExchangeDeclare(self._prefix, "topic", durable=True))
            for number in range(TOPIC_BINDINGS):
                admin.call(QueueBind(self._queue(0), self._prefix, f"site.*.unit{number}.#"))

    def _take_down(self, admin: Client) -> None:
        try:
            for number in range(self._work.queues):
                admin.call(QueueDelete(self._queue(number)))
            if self._work.topic_keys:
                admin.call(ExchangeDelete(self._prefix))
        except (OSError, LoadFailed):
            pass  # the run has failed already, and says why

    def _connect(self, stack: ExitStack) -> None:
        work = self._work
        if not work.backlog:
            self._connect_consumers(stack)
        for number in range(work.producers):
            client = Client(self._address)
            stack.callback(client.close)
            if work.window:
                client.call(ConfirmSelect())
            self._add(producer := AmqpProducing(client, self._publisher(number)))
            self._producers.append(producer)

    def _publisher(self, number: int) -> Publisher:
        work = self._work
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
        work = self._work
        for number in range(work.queues):
            client = Client(self._address)
            stack.callback(client.close)
            if work.ack_every:
                client.call(BasicQos(0, work.prefetch))
            consumer = AmqpConsuming(client, Consumer(CHANNEL, work.ack_every), self._arrivals[0])
            self._consumers.append(consumer)
            # Registered before it is asked for: deliveries may come with the answer.
            self._add(consumer)
            client.send_method(BasicConsume(self._queue(number), "c", no_ack=work.ack_every == 0))

    # --- phases ---

    def _run(self, seconds: float, result: Result) -> None:
        if self._work.backlog:
            self._run_backlog(result)
        else:
            super()._run(seconds, result)

    def _run_backlog(self, result: Result) -> None:
        total = self._work.backlog
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
            for consumer in self._consumers:
                assert isinstance(consumer, AmqpConsuming)
                consumer.acknowledge_rest()
        drained = end.received - middle.received
        result.measured = drained
        result.rate = drained / (end.at - middle.at)
        result.end_to_end_ms = None
        if self._broker is not None:
            result.drain_cpu_us_per_message = (end.cpu_s - middle.cpu_s) / max(drained, 1) * 1e6

    def _count(self, result: Result) -> None:
        super()._count(result)
        result.blocked = any(each.is_blocked for each in self._producers)


def run(
    workload: AmqpWorkload, url: str, seconds: float, on_progress: OnProgress = lambda _: None
) -> Result:
    return AmqpRun(workload, url, on_progress).go(seconds)
