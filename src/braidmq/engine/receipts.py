"""Receipts: the text by which a client without a connection answers for one delivery.

topic:partition:offset:attempts:subscription.nonce.seal

The seal is a keyed hash of the rest. The key is new with every start of the node, so nobody can
make up a receipt, and one of an earlier life is as stale as any other whose delivery is over.
"""

from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from braidmq.engine.errors import BadReceipt, StaleReceipt, UnknownSubscription
from braidmq.engine.state import EngineState
from braidmq.engine.states import State
from braidmq.engine.topics import Consumer, Delivery, PartitionView
from braidmq.model.ids import SubscriptionId

SEAL_BYTES = 12


class Receipt(NamedTuple):
    topic: str
    partition: int
    offset: int
    attempts: int
    """Deliveries of this message, the receipt's included."""
    subscription: int
    nonce: int
    seal: str = ""

    @property
    def named(self) -> str:
        """What it names: all that is sealed."""
        return (
            f"{self.topic}:{self.partition}:{self.offset}:{self.attempts}"
            f":{self.subscription:x}.{self.nonce:x}"
        )

    def __str__(self) -> str:
        return f"{self.named}.{self.seal}"


class Receipts:
    def __init__(self, state: EngineState, key: bytes) -> None:
        self._state = state
        self._key = key

    def of(self, delivery: Delivery) -> list[Receipt]:
        view, found = delivery.view, []
        topic = view.partition.topic
        for index in range(delivery.first_index, delivery.stop_index):
            offset = delivery.batch.offset_at(index)
            entry = view.state.look(offset)
            nonce = entry[3] if entry is not None else 0
            receipt = Receipt(
                topic.name,
                view.partition.number,
                offset,
                delivery.attempts,
                view.subscription.id,
                nonce,
            )
            found.append(receipt._replace(seal=self._seal(receipt, topic.namespace)))
        return found

    def _seal(self, receipt: Receipt, namespace: str) -> str:
        named = f"{namespace}\0{receipt.named}".encode()
        return blake2b(named, key=self._key, digest_size=SEAL_BYTES).hexdigest()

    def redeem(self, text: str, namespace: str) -> tuple[Consumer, PartitionView, int]:
        """Who has what a receipt names. Raises BadReceipt, StaleReceipt or NotFound."""
        receipt = parse(text)
        topic = self._state.topic(namespace, receipt.topic)
        topic.partition(receipt.partition)
        subscription = self._state.subscriptions.get(SubscriptionId(receipt.subscription))
        if subscription is None or subscription.topic is not topic:
            raise UnknownSubscription(f"the subscription of receipt {text!r} is gone")
        if not compare_digest(self._seal(receipt, namespace).encode(), receipt.seal.encode()):
            raise _stale(receipt)
        view = subscription.views[receipt.partition]
        return _holder(receipt, view, self._state.consumers), view, receipt.offset


def parse(text: str) -> Receipt:
    try:
        topic, partition, offset, count, last = text.rsplit(":", 4)
        subscription, nonce, seal = last.split(".")
        receipt = Receipt(
            topic,
            int(partition),
            int(offset),
            int(count),
            int(subscription, 16),
            int(nonce, 16),
            seal,
        )
    except ValueError:
        raise BadReceipt(f"{text!r} is not a receipt") from None
    if not all(0 <= number < 1 << 63 for number in receipt[1:-1]):
        raise BadReceipt(f"{text!r} is not a receipt: its numbers are out of range")
    return receipt


def _holder(receipt: Receipt, view: PartitionView, consumers: dict[int, Consumer]) -> Consumer:
    """Who has the delivery a receipt names; StaleReceipt when that delivery is over."""
    found = view.state.look(receipt.offset)
    if found is not None:
        state, attempts, consumer, nonce, _ = found
        if (state, attempts, nonce) == (State.IN_FLIGHT, receipt.attempts, receipt.nonce):
            owner = consumers.get(consumer)
            if owner is not None:
                return owner
    raise _stale(receipt)


def _stale(receipt: Receipt) -> StaleReceipt:
    return StaleReceipt(
        f"offset {receipt.offset} of {receipt.topic}/{receipt.partition}: "
        f"delivery {receipt.attempts} has ended"
    )
