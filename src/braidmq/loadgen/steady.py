"""Messages one by one at a steady rate, with a reconnect in the middle: all arrive, in order.

Bursts hide what a broker gives back too late or never, because much is given back at once. Here
each message comes alone, and there are more of them than a session has packet ids.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass

from braidmq.loadgen.amqp import AmqpRun
from braidmq.loadgen.amqp_client import CHANNEL, Client
from braidmq.loadgen.amqp_load import Consumer
from braidmq.loadgen.amqp_peers import AmqpConsuming
from braidmq.loadgen.amqp_workloads import AmqpWorkload
from braidmq.loadgen.driver import POLL_S_MAX, Run
from braidmq.loadgen.mqtt import MqttConsuming, MqttProducing, MqttRun
from braidmq.loadgen.mqtt_client import MqttClient
from braidmq.loadgen.mqtt_workloads import MqttWorkload
from braidmq.loadgen.peers import Peer
from braidmq.loadgen.result import Latency, Result
from braidmq.wire.amqp.methods import BasicConsume, BasicQos
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

WINDOW = 1000
"""Unanswered publishes: the rate is set by the clock, not by this."""
PREFETCH = 1000


@dataclass(frozen=True)
class Steady:
    """One case."""

    protocol: str
    """mqtt, amqp, or queue: ``$queue`` over MQTT, of a topic with one partition."""
    qos: int = 1
    version: int = Version.V5
    kept: bool = True
    """Sessions that outlive their connections; otherwise a reconnect waits until all arrived."""
    pairs: int = 1
    """Publishers, and as many subscribers. Of MQTT each gets what all publish."""

    def __str__(self) -> str:
        if self.protocol == "amqp":
            return f"AMQP, {self.pairs}:{self.pairs}"
        version = "v5" if self.version == Version.V5 else "v3.1.1"
        what = "$queue" if self.protocol == "queue" else f"QoS {self.qos}"
        session = "kept" if self.kept else "clean"
        return f"{what}, {version}, {session}, {self.pairs}:{self.pairs}"


def is_right(case: Steady, result: Result) -> bool:
    """Once and in order; what was not acknowledged when a connection ended may come again, but not
    at QoS 2."""
    once = case.protocol == "mqtt" and case.qos == 2
    wrong = result.lost or result.reordered or result.nacked
    return not wrong and not (once and result.duplicated) and result.confirmed == result.published


class SteadyRun(Run):
    """A protocol's run with other phases."""

    messages: int
    _reached = 0

    def _run(self, seconds: float, result: Result) -> None:
        start = self._mark()
        self._publish_to(self.messages // 2)
        self._reconnect()
        self._publish_to(self.messages)
        self._turn_while(lambda: not self._all_settled())
        self._measured(start, result)
        result.end_to_end_ms = Latency.of(self._latency)
        result.confirm_ms = Latency.of(self._confirm_latency)

    def _publish_to(self, total: int) -> None:
        gap = 1 / (self._workload.per_second * len(self._producers))
        self._schedule_s = time.perf_counter() - self._paced * gap
        self._reached = total
        self._turn_while(lambda: self._paced < total)

    def _pace(self, now: float) -> float:
        return super()._pace(now) if self._paced < self._reached else POLL_S_MAX

    def _reconnect(self) -> None:
        raise NotImplementedError

    def _drop(self, peer: Peer) -> None:
        """Its connection ends without a word."""
        self._forget_peer(peer)
        peer.client.socket.close()

    def _forget_peer(self, peer: Peer) -> None:
        fd = peer.client.socket.fileno()
        self._poll.unregister(fd)
        del self._peers[fd], self._masks[fd]


class SteadyMqtt(SteadyRun, MqttRun):
    def __init__(self, case: Steady, url: str, messages: int, per_second: float) -> None:
        workload = MqttWorkload(
            "steady",
            str(case),
            producers=case.pairs,
            subscribers=1 if case.protocol == "queue" else case.pairs,
            window=WINDOW,
            per_second=per_second / case.pairs,
            qos=case.qos,
            persistent=case.kept,
            version=case.version,
        )
        MqttRun.__init__(self, workload, url, lambda _: None)
        self.messages = messages
        self.queue = f"{self._prefix}-queue" if case.protocol == "queue" else ""
        """Its ``$queue``, if that is what it is about: made by the caller."""

    @property
    def _topic(self) -> str:
        return f"$queue/{self.queue}" if self.queue else super()._topic

    @property
    def _options(self) -> Properties:
        if not self.queue or self._work.version != Version.V5:
            return NO_PROPERTIES
        return Properties(user_properties=(("ack-mode", "puback"),))

    def _set_up(self, stack: ExitStack) -> str:
        self._stack = stack
        return super()._set_up(stack)

    def _reconnect(self) -> None:
        if not self._work.persistent:
            self._turn_while(lambda: not self._all_settled())
        for number, consumer in enumerate(self._consumers):
            assert isinstance(consumer, MqttConsuming)
            self._drop(consumer)
            client = self._client(self._stack, f"{self._prefix}-s{number}")
            if not self._work.persistent:
                self._subscribe(client)
            new = consumer.go_on_with(client, kept=self._work.persistent)
            self._consumers[number] = new
            self._add(self._consumers[number])
        self._turn_while(lambda: any(each.publisher.outstanding for each in self._producers))
        for number, producer in enumerate(self._producers):
            assert isinstance(producer, MqttProducing)
            self._drop(producer)
            client = self._client(self._stack, f"{self._prefix}-p{number}")
            self._producers[number] = producer.go_on_with(client)
            self._add(self._producers[number])

    def _subscribe(self, client: MqttClient) -> None:
        client.subscribe(self._topic, self._work.qos, self._options)


class SteadyAmqp(SteadyRun, AmqpRun):
    def __init__(self, case: Steady, url: str, messages: int, per_second: float) -> None:
        workload = AmqpWorkload(
            "steady",
            str(case),
            producers=case.pairs,
            queues=case.pairs,
            window=WINDOW,
            per_second=per_second / case.pairs,
            prefetch=PREFETCH,
            ack_every=1,
        )
        AmqpRun.__init__(self, workload, url, lambda _: None)
        self.messages = messages

    def _set_up(self, stack: ExitStack) -> str:
        self._stack = stack
        return super()._set_up(stack)

    def _reconnect(self) -> None:
        for number, consumer in enumerate(self._consumers):
            # Said and answered: while the broker takes the old one for alive there are two
            # consumers, and of two no order is promised.
            self._forget_peer(consumer)
            assert isinstance(consumer, AmqpConsuming)
            consumer.close()
            client = Client(self._address)
            self._stack.callback(client.close)
            client.call(BasicQos(0, self._work.prefetch))
            new = AmqpConsuming(client, Consumer(CHANNEL, self._work.ack_every), self._arrivals[0])
            self._consumers[number] = new
            self._add(new)
            client.send_method(BasicConsume(self._queue(number), "c"))
