"""A producer and a consumer of AMQP."""

from braidmq.loadgen.amqp_client import Client
from braidmq.loadgen.amqp_load import Consumer, Publisher
from braidmq.loadgen.arrivals import Arrivals
from braidmq.loadgen.peers import Consuming, Producing


class AmqpProducing(Producing):
    def __init__(self, client: Client, publisher: Publisher) -> None:
        super().__init__(client, publisher)
        self._client, self._publisher = client, publisher

    @property
    def is_blocked(self) -> bool:
        return self._client.blocked

    def _receive(self) -> None:
        self._client.receive(self._publisher, None, None)


class AmqpConsuming(Consuming):
    def __init__(self, client: Client, consumer: Consumer, arrivals: Arrivals) -> None:
        super().__init__(client)
        self._client, self._consumer, self._arrivals = client, consumer, arrivals

    @property
    def strange(self) -> int:
        return self._consumer.strange

    def read(self) -> None:
        self._client.receive(None, self._consumer, self._arrivals)
        if self._consumer.ack_every:
            acks = self._consumer.acks()
            if acks:
                self._client.send(acks)

    def close(self) -> None:
        self._client.close()

    def acknowledge_rest(self) -> None:
        self._client.send(self._consumer.acks(True))
