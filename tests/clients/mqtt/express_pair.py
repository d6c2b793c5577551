"""A publisher and a subscriber between whom the short way is open, and how to see that it is."""

from collections.abc import Sequence

from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.packets import Packet, PubAck, Publish, encode
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

FIRST_ID, STOP_ID = 0x8000, 0x8040
"""Packet ids of messages that came the short way, and of no others."""
IDS = STOP_ID - FIRST_ID
TRIES = 300
"""Any message may find the broker busy and take the long way: of so many, one does not."""


def is_short(message: Publish) -> bool:
    return FIRST_ID <= message.packet_id < STOP_ID


class Pair:
    def __init__(
        self,
        node: LiveNode,
        topic: str,
        version: int,
        qos: int = 1,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """``qos`` is what messages are published at, and ``properties`` are the subscriber's."""
        self.node = node
        self.topic = topic
        self.version = version
        self.qos = qos
        self.publisher = RawMqtt(node, version)
        self.subscriber = RawMqtt(node, version)
        try:
            self.publisher.connect(f"{topic}-publisher")
            self.subscriber.connect(f"{topic}-subscriber", properties=properties)
            self.subscriber.subscribe(topic, qos=1)
            self.opens()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.publisher.sock.close()
        self.subscriber.sock.close()

    # --- saying ---

    def say(self, payload: bytes, qos: int | None = None, **fields: object) -> Publish:
        """A message of its own, and nothing of its answer."""
        qos = self.qos if qos is None else qos
        return self.publisher.publish(self.topic, payload, qos, **fields)

    def said(self, payload: bytes, qos: int | None = None, **fields: object) -> None:
        """A message of its own, and all of its answer."""
        sent = self.say(payload, qos, **fields)
        if sent.qos:
            assert self.publisher.answer(sent) == 0

    def numbered(self, *payloads: bytes, **fields: object) -> list[Publish]:
        """Messages of QoS 1 that are not sent yet."""
        return [
            Publish(self.topic, each, 1, packet_id=self.publisher.next_id(), **fields)  # type: ignore[arg-type]
            for each in payloads
        ]

    # --- hearing ---

    def heard(self, qos: int | None = None) -> Publish:
        """The next message, answered for."""
        got = self.subscriber.message()
        assert (got.topic, got.qos) == (self.topic, self.qos if qos is None else qos)
        assert not got.dup
        return got

    def passes(self, payload: bytes, qos: int | None = None) -> Publish:
        """A message that gets there."""
        self.said(payload, qos)
        got = self.heard(qos)
        assert (got.payload, got.retain, got.properties) == (payload, False, NO_PROPERTIES)
        return got

    def opens(self) -> Publish:
        """Messages take the short way, if not at once."""
        for number in range(TRIES):
            if is_short(got := self.passes(b"opens %d" % number, 1)):
                return got
            self.pauses()
        raise AssertionError("no message took the short way")

    def pauses(self) -> None:
        """Until the broker is done with all that was said: who is read right behind others is taken
        for one of many, and many go the long way."""
        self.subscriber.ping()
        self.publisher.ping()

    def stays_closed(self) -> None:
        """Messages get there, and none of them on the short way."""
        for number in range(20):
            assert not is_short(self.passes(b"closed %d" % number, 1))
            self.pauses()

    def settled(self) -> list[Packet]:
        """All that comes to the subscriber of what was said so far, by it and to it: what it makes
        room for comes behind the answer to a ping that was read together with that."""
        return self.subscriber.ping() + self.subscriber.ping()

    def unanswered(self, count: int) -> list[Publish]:
        """So many that came the short way, and whose PUBACK the subscriber owes."""
        found: list[Publish] = []
        for number in range(TRIES):
            if len(found) == count:
                return found
            self.said(b"unanswered %d" % number, 1)
            got = self.subscriber.expect(Publish)
            if is_short(got):
                found.append(got)
            else:
                self.subscriber.send(PubAck(got.packet_id))
                self.pauses()
        raise AssertionError("too few took the short way")


def publishes(packets: Sequence[Packet]) -> list[Publish]:
    """The packets, which are all messages."""
    found = [each for each in packets if isinstance(each, Publish)]
    assert len(found) == len(packets), packets
    return found


def encoded(packets: Sequence[Packet], version: int) -> bytes:
    return b"".join(encode(each, version) for each in packets)
