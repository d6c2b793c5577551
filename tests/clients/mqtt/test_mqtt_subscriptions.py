"""The subscriptions of a session: many of them, changed one by one, across a kill."""

from pathlib import Path

import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import live_node
from braidmq.wire.mqtt.packets import Publish, Request, SubAck, Subscribe, UnsubAck, Unsubscribe
from braidmq.wire.mqtt.properties import Properties

KEPT = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}
FILTERS = 60


@pytest.mark.crash
def test_each_change_of_a_filter_is_kept(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        client.connect("many", **KEPT)
        for number in range(FILTERS):
            client.send(Subscribe(number + 1, (Request(f"t/{number}", 0),)))
        for _ in range(FILTERS):
            client.expect(SubAck)
        # The options of some change, others go, and one comes back.
        for number in range(0, FILTERS, 3):
            client.send(Subscribe(1, (Request(f"t/{number}", 1),)))
            client.expect(SubAck)
        gone = tuple(f"t/{number}" for number in range(1, FILTERS, 3))
        client.send(Unsubscribe(2, (*gone, "t/none")))
        assert client.expect(UnsubAck).reasons == (0,) * len(gone) + (0x11,)
        client.send(Subscribe(3, (Request("t/1", 1),)))
        client.expect(SubAck)
        node.kill()
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as sender:
        assert client.connect("many", **KEPT).session_present
        sender.connect()
        for number in range(FILTERS):
            sender.publish(f"t/{number}", b"", 1)
        wanted = {f"t/{number}": 0 for number in range(2, FILTERS, 3)}
        wanted |= {f"t/{number}": 1 for number in (*range(0, FILTERS, 3), 1)}
        got = [client.expect(Publish) for _ in wanted]
        assert {each.topic: each.qos for each in got} == wanted


def test_a_clean_start_forgets_them(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        client.connect("many", **KEPT)
        client.subscribe("t/1", "t/2", qos=1)
        client.send_bytes(b"\xe0\x00")
        client.expect_end()
        with RawMqtt(node) as again:
            assert not again.connect("many", clean_start=True).session_present
        node.stop()
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as sender:
        assert not client.connect("many", **KEPT).session_present
        sender.connect()
        assert sender.answer(sender.publish("t/1", b"", 1)) == 0x10
        assert client.ping() == []
