"""MQTT's workloads, as a table."""

from dataclasses import dataclass

from braidmq.loadgen.driver import Workload
from braidmq.wire.mqtt.constants import Version


@dataclass(frozen=True)
class MqttWorkload(Workload):
    """Every subscriber gets what all producers publish."""

    qos: int = 0
    subscribers: int = 1
    persistent: bool = False
    """Sessions, of both sides, that outlive their connections."""
    version: int = Version.V3_1_1


WORKLOADS = {
    each.name: each
    for each in (
        MqttWorkload("qos0", "128 B, QoS 0, 1:1", window=0),
        MqttWorkload(
            "qos1", "128 B, QoS 1, 1:1, window 1000, persistent sessions", qos=1, persistent=True
        ),
        MqttWorkload(
            "qos2", "128 B, QoS 2, 1:1, window 1000, persistent sessions", qos=2, persistent=True
        ),
        MqttWorkload("qos1-clean", "128 B, QoS 1, 1:1, window 1000, sessions in memory", qos=1),
        MqttWorkload("qos2-clean", "128 B, QoS 2, 1:1, window 1000, sessions in memory", qos=2),
        MqttWorkload("fan-out", "128 B, QoS 0, 1:50", window=0, subscribers=50),
        MqttWorkload(
            "fan-in",
            "128 B, QoS 1, 50:1, window 1000 each, persistent sessions",
            qos=1,
            producers=50,
            persistent=True,
        ),
        MqttWorkload(
            "fan-in-20",
            "128 B, QoS 1, 50:1, window 20 each, persistent sessions",
            qos=1,
            producers=50,
            window=20,
            persistent=True,
        ),
        MqttWorkload("paced0", "128 B, QoS 0, 1:1, 2000 msg/s", window=0, per_second=2000),
        MqttWorkload(
            "paced1",
            "128 B, QoS 1, 1:1, 2000 msg/s, persistent sessions",
            qos=1,
            per_second=2000,
            persistent=True,
        ),
        MqttWorkload(
            "paced1-clean",
            "128 B, QoS 1, 1:1, 2000 msg/s, sessions in memory",
            qos=1,
            per_second=2000,
        ),
    )
}
