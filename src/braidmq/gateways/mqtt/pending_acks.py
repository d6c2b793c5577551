"""What a client is told, in order (docs/adr/0018). PUBACK and PUBREC have to be in the order of
their PUBLISH (MQTT-4.6.0-2), though some wait for the disk."""

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from braidmq.gateways.mqtt.errors import translate
from braidmq.model.errors import StorageError
from braidmq.model.ids import Lsn
from braidmq.runtime.answers import Answer, Answers, Reply
from braidmq.wire.mqtt.constants import Kind, Reason, Version
from braidmq.wire.mqtt.packets import PubAck, PubRec, encode
from braidmq.wire.mqtt.properties import Properties
from braidmq.wire.mqtt.render import render_acks

if TYPE_CHECKING:
    from braidmq.gateways.mqtt.connection import MqttConnection


class PublishAnswer(Answer):
    """PUBACK or PUBREC of a run."""

    __slots__ = ("kind", "packet_ids", "reason", "text")

    def __init__(self, kind: Kind, packet_ids: "array[int]") -> None:
        super().__init__()
        self.kind = kind
        self.packet_ids = packet_ids
        self.reason = Reason.SUCCESS
        self.text = ""

    def encoded(self, version: int, text_bytes_max: int) -> bytes:
        """With its text where no packet gets larger by that than the client takes."""
        if self.text and version == Version.V5:
            packet = PubAck if self.kind == Kind.PUBACK else PubRec
            properties = Properties(reason_string=self.text)
            told = [encode(packet(each, self.reason, properties)) for each in self.packet_ids]
            if all(len(each) <= text_bytes_max for each in told):
                return b"".join(told)
        return render_acks(self.kind, self.packet_ids, version, self.reason)


class PendingAcks(Answers[Answer]):
    def __init__(self, connection: "MqttConnection") -> None:
        super().__init__(connection.send)
        self._connection = connection
        self.open_acks = 0
        """Publishes of QoS 1 that wait for their PUBACK."""

    def expect(self, kind: Kind, packet_ids: "array[int]") -> PublishAnswer:
        answer = PublishAnswer(kind, packet_ids)
        self.waiting.append(answer)
        if kind == Kind.PUBACK:
            self.open_acks += len(packet_ids)
        return answer

    def reply(self, data: bytes, lsn: Lsn | None, then: Callable[[], None] | None = None) -> None:
        """Send once an entry is on disk, and after what is owed already; then go on."""
        if self.is_over:
            return
        if lsn is not None or self.waiting:
            self.give_once_durable(self._connection.node_loop, lsn, Reply(data, then))
            return
        if data:
            self._send(data)
        if then is not None:
            then()

    def encode(self, answer: Answer) -> bytes:
        if isinstance(answer, Reply):
            return answer.data
        assert isinstance(answer, PublishAnswer)
        if answer.kind == Kind.PUBACK:
            self.open_acks -= len(answer.packet_ids)
        connection = self._connection
        limit = connection.packet_bytes_max if connection.with_reasons else 0
        return answer.encoded(connection.version, limit)

    def fail(self, failure: StorageError) -> None:
        self._connection.fail(translate(failure))
