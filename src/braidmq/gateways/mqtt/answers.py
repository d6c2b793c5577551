"""PUBACK and PUBREC in the order of their PUBLISH, though some wait for the disk (MQTT-4.6.0-2)."""

from array import array
from collections import deque

from braidmq.wire.mqtt.constants import Kind, Reason, Version
from braidmq.wire.mqtt.packets import PubAck, PubRec, encode
from braidmq.wire.mqtt.properties import Properties
from braidmq.wire.mqtt.render import render_acks


class Answer:
    __slots__ = ("done", "kind", "packet_ids", "reason", "text")

    def __init__(self, kind: Kind, packet_ids: "array[int]") -> None:
        self.kind = kind
        self.packet_ids = packet_ids
        self.reason = Reason.SUCCESS
        self.text = ""
        self.done = False

    def encoded(self, version: int, text_bytes_max: int) -> bytes:
        """With its text where no packet gets larger by that than the client takes."""
        if self.text and version == Version.V5:
            packet = PubAck if self.kind == Kind.PUBACK else PubRec
            properties = Properties(reason_string=self.text)
            told = [encode(packet(each, self.reason, properties)) for each in self.packet_ids]
            if all(len(each) <= text_bytes_max for each in told):
                return b"".join(told)
        return render_acks(self.kind, self.packet_ids, version, self.reason)


class Answers:
    def __init__(self) -> None:
        self.waiting: deque[Answer] = deque()
        """For the disk, or for those before them."""
        self.open_acks = 0
        """Publishes of QoS 1 that wait for their PUBACK."""

    def expect(self, kind: Kind, packet_ids: "array[int]") -> Answer:
        answer = Answer(kind, packet_ids)
        self.waiting.append(answer)
        if kind == Kind.PUBACK:
            self.open_acks += len(packet_ids)
        return answer

    def ready(self, version: int, text_bytes_max: int) -> bytes:
        """What can be said now, with texts in packets up to this size."""
        parts = []
        while self.waiting and self.waiting[0].done:
            answer = self.waiting.popleft()
            if answer.kind == Kind.PUBACK:
                self.open_acks -= len(answer.packet_ids)
            parts.append(answer.encoded(version, text_bytes_max))
        return b"".join(parts)
