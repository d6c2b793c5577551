"""A client of durable queues, of a few lines over the raw one."""

import json
from collections import defaultdict
from typing import Any

from raw_mqtt import RawMqtt

from braidmq.wire.mqtt.packets import Packet, PubAck, Publish
from braidmq.wire.mqtt.properties import Properties


def user(**properties: str) -> Properties:
    """User properties; ``message_id`` is ``message-id``."""
    return Properties(
        user_properties=tuple((name.replace("_", "-"), text) for name, text in properties.items())
    )


def said(message: Publish) -> dict[str, str]:
    return dict(message.properties.user_properties)


def quiet(client: RawMqtt) -> bool:
    """Whether nothing comes. Deliveries of the turn that answers a ping may follow the answer."""
    return not client.ping() and not client.ping()


class Worker(RawMqtt):
    """Packets of other kinds than the one it waits for are kept for later."""

    _kept: "defaultdict[type[Packet], list[Packet]]"

    def join(self, queue: str, group: str, qos: int = 1, **properties: str) -> tuple[int, ...]:
        given = user(consumer_group=group, **properties)
        return self.subscribe(f"$queue/{queue}", qos=qos, properties=given)

    def expect(self, kind: type[Any]) -> Any:
        kept = self.__dict__.setdefault("_kept", defaultdict(list))
        if kept[kind]:
            return kept[kind].pop(0)
        while not isinstance(packet := self.packet(), kind):
            kept[type(packet)].append(packet)
        return packet

    def put(self, queue: str, payload: bytes = b"", qos: int = 1, **properties: str) -> int:
        return self.answer(
            self.publish(f"$queue/{queue}", payload, qos, properties=user(**properties))
        )

    def say(self, queue: str, verb: str, message: Publish, **properties: str) -> PubAck:
        """Answer for a message, and wait for the answer to that."""
        given = user(message_id=said(message)["message-id"], **properties)
        sent = self.publish(f"$queue/{queue}/${verb}", b"", 1, properties=given)
        answer: PubAck = self.expect(PubAck)
        assert answer.packet_id == sent.packet_id
        return answer

    def ack(self, queue: str, message: Publish) -> None:
        assert self.say(queue, "ack", message).reason == 0

    def take(self, queue: str) -> Publish:
        message = self.message()
        self.ack(queue, message)
        return message

    def ask(self, request: str, **body: Any) -> dict[str, Any]:
        """A request to ``$admin/queue/…`` and its answer."""
        topic = f"answers/{id(self)}"
        if not self.__dict__.setdefault("_asks", False):
            self.subscribe(topic)
            self.__dict__["_asks"] = True
        properties = Properties(response_topic=topic, correlation_data=b"17")
        payload = json.dumps(body).encode() if body else b""
        self.publish(f"$admin/queue/{request}", payload, properties=properties)
        answer = self.expect(Publish)
        assert (answer.topic, answer.properties.correlation_data) == (topic, b"17")
        found: dict[str, Any] = json.loads(answer.payload)
        return found
