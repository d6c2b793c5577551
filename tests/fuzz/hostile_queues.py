"""Durable queues over MQTT as no client should use them: ``$queue/…``, ``$admin/…``, properties.

Message ids are guessed as the broker makes them, so that some answers are to messages that are
open, some to those of others, and some are given twice.
"""

import json
import random

from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import (
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    Request,
    Subscribe,
    Unsubscribe,
)
from braidmq.wire.mqtt.properties import Properties

NAMES = ("q", "q", "q/deep", "é", "ordered")
BAD_NAMES = ("", "/", "+", "#", "q/+", "$ack", "dlq/", "q/$ack/$ack", "q//$nack", "$x/y", "q" * 300)
VERBS = ("$ack", "$ack", "$nack", "$reject", "$reply")
GROUPS = ("g", "g", "h", "", "é", "x" * 200)
NUMBERS = (
    "0",
    "1",
    "3",
    "255",
    "256",
    "-1",
    "1e3",
    "١",
    "9" * 19,
    "9" * 25,
    "9007199254740992",
    "",
)
KEYS = ("k", "l", "", "é", "x" * 200)
QUEUE_IDS = (0x8000, 0x8001, 0x8002, 0xFFFF)
Pairs = tuple[tuple[str, str], ...]


def queue_packet(source: random.Random, version: int) -> Packet:
    """Anything that has to do with queues; 3.1.1 has no properties to say it with."""
    make = source.choice((put, put, put, answer, answer, confirm, join, leave, administrate))
    return make(source, version)


def put(source: random.Random, version: int) -> Packet:
    given: list[tuple[str, str]] = []
    for name, values in (
        ("partition-key", KEYS),
        ("priority", NUMBERS),
        ("delay-ms", NUMBERS),
        ("message-id", ("m", "0-0", "", "x" * 200)),
        ("user-id", ("guest", "somebody")),
        ("delivery-count", NUMBERS),
        ("x-death-reason", ("rejected", "")),
    ):
        if source.random() < 0.15:
            given.append((name, source.choice(values)))
    body = source.randbytes(source.choice((0, 1, 20, 5000)))
    return _publish(source, version, name_of(source), body, tuple(given))


def answer(source: random.Random, version: int) -> Packet:
    given = [("message-id", message_id(source)) for _ in range(source.choice((0, 1, 1, 1, 5)))]
    for name, values in (
        ("consumer-group", GROUPS),
        ("delay-ms", NUMBERS),
        ("reason", ("", "broken", "é" * 500)),
    ):
        if source.random() < 0.3:
            given.append((name, source.choice(values)))
    topic = f"{name_of(source)}/{source.choice(VERBS)}"
    return _publish(source, version, topic, source.choice((b"", b"done")), tuple(given))


def confirm(source: random.Random, _version: int) -> Packet:
    return source.choice((PubAck, PubAck, PubRec, PubComp))(source.choice(QUEUE_IDS))


def join(source: random.Random, version: int) -> Packet:
    pattern = name_of(source, dead=0.2)
    if source.random() < 0.3:
        pattern = f"$share/{source.choice(GROUPS) or 'g'}/{pattern}"
    given: list[tuple[str, str]] = []
    if source.random() < 0.6:
        given.append(("consumer-group", source.choice(GROUPS)))
    if source.random() < 0.4:
        given.append(("ack-mode", source.choice(("explicit", "puback", "", "sometimes"))))
    properties = Properties(
        user_properties=tuple(given),
        subscription_identifiers=source.choice(((), (1,), (268_435_455,))),
    )
    return Subscribe(
        source.randrange(1, 5),
        (Request(pattern, source.randrange(3)),),
        properties if version == Version.V5 else Properties(),
    )


def leave(source: random.Random, _version: int) -> Packet:
    return Unsubscribe(source.randrange(1, 5), (name_of(source, dead=0.2),))


def administrate(source: random.Random, version: int) -> Packet:
    topic = source.choice(
        (
            "$admin/queue/create",
            "$admin/queue/create",
            f"$admin/queue/{source.choice(NAMES)}/config",
            f"$admin/queue/{source.choice(NAMES)}/stats",
            f"$admin/queue/{source.choice(BAD_NAMES).strip('+#')}/stats",
            "$admin/else",
        )
    )
    payload = settings(source)
    if source.random() < 0.3:
        payload = source.choice(
            (b"", b"{", b"[]", b"\xff", b"[" * 5000, payload[: len(payload) // 2])
        )
    response = source.choice((None, "answers", "$queue/q", "$admin/queue/create", "$SYS/x"))
    return _publish(source, version, topic, payload, (), response)


def settings(source: random.Random) -> bytes:
    duration = ("1ms", "1s", "7d", "0s", "", "s", "1h30m", "9999999999999999d", 5)
    small = (0, 1, 2, 7, -1, 1.5, 1 << 70, "1", None)
    sections: dict[str, object] = {
        "name": source.choice((*NAMES, *BAD_NAMES, 5)),
        "partitions": source.choice((1, 3, 3, *small)),
        "ordering": source.choice(("none", "partition", "strict", "", 1)),
        "retry_policy": {
            "max_retries": source.choice(small),
            "initial_backoff": source.choice(duration),
            "backoff_multiplier": source.choice((0, 0.5, 2, 1e308, -1)),
        },
        "dlq_config": {
            "enabled": source.random() < 0.5,
            "topic": source.choice((*NAMES, "$queue/q", "$queue/other")),
        },
        "limits": {
            "max_message_size": source.choice((*small, 100)),
            "max_queue_depth": source.choice((*small, 3)),
            "message_ttl": source.choice(duration),
        },
        "performance": {"delivery_timeout": "1ms", "batch_size": source.choice(small)},
        "strange": 1,
    }
    chosen = source.sample(list(sections), source.randrange(4))
    return json.dumps({name: sections[name] for name in ("name", *chosen)}).encode()


def name_of(source: random.Random, dead: float = 0.0) -> str:
    if source.random() < 0.1:
        return "$queue/" + source.choice(BAD_NAMES).replace("+", "").replace("#", "")
    return "$queue/" + ("dlq/" if source.random() < dead else "") + source.choice(NAMES)


def message_id(source: random.Random) -> str:
    guess = f"{source.randrange(4)}-{source.randrange(6)}"
    return guess if source.random() < 0.8 else source.choice(("m", "", "0-", "x" * 200, "-1-0"))


def _publish(
    source: random.Random,
    version: int,
    topic: str,
    payload: bytes,
    given: Pairs,
    response: str | None = None,
) -> Packet:
    properties = Properties()
    if version == Version.V5:
        properties = Properties(
            user_properties=given,
            response_topic=response or source.choice((None, None, "answers", "$queue/q")),
            correlation_data=source.choice((None, b"", b"c" * 300)),
            message_expiry_interval=source.choice((None, None, 0, 1, 60, 0xFFFFFFFF)),
        )
    qos = source.randrange(3)
    number = source.randrange(1, 5) if qos else 0
    return Publish(topic, payload, qos, False, False, number, properties)
