"""MQTT's workloads on any broker that speaks MQTT 3.1.1 or 5.0."""

from contextlib import ExitStack, suppress

from braidmq.loadgen.driver import OnProgress, Run
from braidmq.loadgen.mqtt_client import MqttAddress, MqttClient, parse_mqtt_address
from braidmq.loadgen.mqtt_load import Publisher, Subscriber
from braidmq.loadgen.mqtt_workloads import MqttWorkload
from braidmq.loadgen.peers import Consuming, Producing
from braidmq.loadgen.result import Result
from braidmq.model.errors import BraidError


class MqttProducing(Producing):
    def __init__(self, client: MqttClient, publisher: Publisher) -> None:
        super().__init__(client, publisher)
        self._client, self._publisher = client, publisher

    def _receive(self) -> None:
        self._client.receive(self._publisher, None)
        if self._publisher.qos == 2:
            self._client.send(self._publisher.answers())

    def go_on_with(self, client: MqttClient) -> "MqttProducing":
        """The same account on another connection, when nothing is unanswered."""
        other = MqttProducing(client, self._publisher)
        other.limit = self.limit
        return other


class MqttConsuming(Consuming):
    def __init__(self, client: MqttClient, subscriber: Subscriber) -> None:
        super().__init__(client)
        self._client, self._subscriber = client, subscriber

    @property
    def strange(self) -> int:
        return self._subscriber.strange

    def read(self) -> None:
        self._client.receive(None, self._subscriber)
        answers = self._subscriber.answers()
        if answers:
            self._client.send(answers)

    def go_on_with(self, client: MqttClient, *, kept: bool) -> "MqttConsuming":
        """The same account on another connection, with what came with its CONNACK. A client whose
        session is not ``kept`` knows no packet ids of the old one."""
        subscriber = self._subscriber
        if not kept:
            subscriber = Subscriber(subscriber.arrivals, subscriber.version)
        client.read_rest(subscriber)
        client.send(subscriber.answers())
        return MqttConsuming(client, subscriber)


class MqttRun(Run):
    def __init__(self, workload: MqttWorkload, url: str, on_progress: OnProgress) -> None:
        self._address: MqttAddress = parse_mqtt_address(url)
        super().__init__(workload, self._address.port, on_progress)
        self._work = workload

    def _set_up(self, stack: ExitStack) -> str:
        work = self._work
        admin = MqttClient(self._address, f"{self._prefix}-admin", work.version)
        stack.callback(admin.close)
        for number in range(work.subscribers):
            client = self._client(stack, f"{self._prefix}-s{number}")
            self._subscribe(client)
            subscriber = Subscriber(self._new_arrivals(), work.version)
            self._add(consumer := MqttConsuming(client, subscriber))
            self._consumers.append(consumer)
        for number in range(work.producers):
            client = self._client(stack, f"{self._prefix}-p{number}")
            publisher = Publisher(
                self._topic.encode(),
                work.qos,
                work.version,
                work.body_bytes,
                self._id,
                number,
                work.window,
                self._confirm_latency,
            )
            self._add(producer := MqttProducing(client, publisher))
            self._producers.append(producer)
        return admin.server()

    @property
    def _topic(self) -> str:
        return f"{self._prefix}/load"

    def _subscribe(self, client: MqttClient) -> None:
        client.subscribe(self._topic, self._work.qos)

    def _client(self, stack: ExitStack, client_id: str) -> MqttClient:
        work = self._work
        client = MqttClient(self._address, client_id, work.version, clean=not work.persistent)
        if work.persistent:
            stack.callback(self._forget, client_id)
        stack.callback(client.close)
        return client

    def _forget(self, client_id: str) -> None:
        """A clean session takes the place of the one that was kept."""
        # A run that failed has said why already.
        with suppress(OSError, BraidError):
            MqttClient(self._address, client_id, self._work.version).close()


def run(
    workload: MqttWorkload, url: str, seconds: float, on_progress: OnProgress = lambda _: None
) -> Result:
    return MqttRun(workload, url, on_progress).go(seconds)
