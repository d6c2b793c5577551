"""Clients that do not read: what waits for them is bounded, and nothing promised is lost."""

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
from raw_mqtt import RawMqtt

from braidmq.model.limits import MIB
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Publish, Request, SubAck, Subscribe, encode

PUBACK_BYTES = 4
UNSENT_BYTES_MAX = 24 * MIB
"""Far above the limit that is set here and what sockets hold."""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    where = tmp_path_factory.mktemp("impatient")
    (where / "braid.toml").write_text("[mqtt]\noutput_bytes_max = 1048576\n")
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node


def test_nothing_is_read_from_who_does_not_read_its_answers(impatient: LiveNode) -> None:
    one = encode(Publish("t", b"", 1, packet_id=1), Version.V3_1_1)
    with RawMqtt(impatient, Version.V3_1_1) as client:
        client.connect()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        client.sock.settimeout(1.0)
        sent = 0
        # A broker that is only slow for a second passes too; one that reads on without end fails.
        with contextlib.suppress(TimeoutError):
            while sent // len(one) * PUBACK_BYTES < UNSENT_BYTES_MAX:
                sent += client.sock.send(one * 20_000)
        answers = sent // len(one) * PUBACK_BYTES
        assert answers < UNSENT_BYTES_MAX
        client.sock.settimeout(30.0)
        received = 0
        while received < answers:
            received += len(client.sock.recv(MIB))
        assert received == answers
        client.send_bytes(one[sent % len(one) :] if sent % len(one) else b"")
        assert len(client.ping()) == (1 if sent % len(one) else 0)


def test_retained_messages_wait_until_those_before_are_read(impatient: LiveNode) -> None:
    payload = bytes(3 * MIB)
    with RawMqtt(impatient) as lazy, RawMqtt(impatient) as sender:
        sender.connect()
        for number in range(3):
            sent = sender.publish(f"kept/{number}", payload, 1, retain=True)
            assert sender.answer(sent) == Reason.NO_MATCHING_SUBSCRIBERS
        lazy.connect()
        filters = ["kept/#", "kept/0", "kept/1", "kept/+", "kept/2"]
        for number, pattern in enumerate(filters, 1):
            lazy.send(Subscribe(number, (Request(pattern),)))
        got = Counter(type(lazy.packet()) for _ in range(len(filters) + 9))
        assert got == {SubAck: len(filters), Publish: 9}
        assert lazy.ping() == []
