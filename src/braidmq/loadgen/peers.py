"""A producer and a consumer: what each does when its socket is ready."""

import time

from braidmq.loadgen.client import Client
from braidmq.wire.amqp.load import Arrivals, Consumer, Publisher

CHUNK_MESSAGES = 1000
"""Rendered at once at most, so that the other sockets get their turn."""


class Producing:
    """A producer. ``limit`` is the sequence number it stops at."""

    def __init__(self, client: Client, publisher: Publisher) -> None:
        self.client = client
        self.publisher = publisher
        self.limit = 0

    @property
    def wants_to_send(self) -> bool:
        """Whether it is worth waking when its socket takes bytes again."""
        return self.client.unsent

    def read(self) -> None:
        self.client.receive(self.publisher, None, None)
        if not self.client.unsent:
            self.publish()

    def write(self) -> None:
        if self.client.send():
            self.publish()

    def publish(self) -> None:
        publisher = self.publisher
        count = min(self.limit - publisher.published, CHUNK_MESSAGES)
        if publisher.window:
            count = min(count, publisher.room)
        if count > 0:
            self.client.send(publisher.render(count, time.perf_counter_ns()))


class Consuming:
    def __init__(self, client: Client, consumer: Consumer, arrivals: Arrivals) -> None:
        self.client = client
        self.consumer = consumer
        self._arrivals = arrivals

    @property
    def wants_to_send(self) -> bool:
        return self.client.unsent

    def read(self) -> None:
        self.client.receive(None, self.consumer, self._arrivals)
        if self.consumer.ack_every:
            acks = self.consumer.acks()
            if acks:
                self.client.send(acks)

    def write(self) -> None:
        self.client.send()

    def acknowledge_rest(self) -> None:
        self.client.send(self.consumer.acks(True))


Peer = Producing | Consuming
