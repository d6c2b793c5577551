"""Bytes that are no packet, sent by a client that is connected."""

from typing import Any

from tests.differential.mqtt.client import Observation, Stage
from tests.differential.mqtt.scenarios import scenario

BYTES = {
    "kind_0": b"\x00\x00",
    "kind_15_with_flags": b"\xf1\x00",
    "remaining_length_of_five_bytes": b"\x30\xff\xff\xff\xff\x7f",
    "publish_without_topic": b"\x30\x00",
    "publish_topic_longer_than_packet": b"\x30\x03\x00\x09a",
    "publish_without_packet_id": b"\x32\x03\x00\x01a",
    "puback_of_one_byte": b"\x40\x01\x00",
    "puback_empty": b"\x40\x00",
    "puback_id_0": b"\x40\x02\x00\x00",
    "puback_with_flags": b"\x41\x02\x00\x01",
    "pubrel_with_wrong_flags": b"\x60\x02\x00\x01",
    "pubrel_id_0": b"\x62\x02\x00\x00",
    "pubrec_with_flags": b"\x52\x02\x00\x01",
    "pubcomp_with_flags": b"\x72\x02\x00\x01",
    "subscribe_empty": b"\x82\x00",
    "subscribe_of_one_byte": b"\x82\x01\x00",
    "unsubscribe_empty": b"\xa2\x00",
    "pingreq_with_flags": b"\xc1\x00",
    "pingreq_with_a_body": b"\xc0\x01\x00",
    "pingresp_from_a_client": b"\xd0\x00",
    "suback_from_a_client": b"\x90\x04\x00\x01\x00\x00",
    "unsuback_from_a_client": b"\xb0\x04\x00\x01\x00\x00",
    "disconnect_with_flags": b"\xe1\x00",
}


def sent(data: bytes) -> Any:
    def act(s: Stage) -> Observation:
        bystander = s.on("bystander")
        c = s.on()
        c.raw(data)
        return [c.rest(), bystander.rest()]

    return act


TABLE = {name: scenario(sent(data)) for name, data in BYTES.items()}
