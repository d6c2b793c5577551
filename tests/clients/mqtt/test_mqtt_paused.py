"""A node that is stopped by a signal and goes on: what came is read before silence counts."""

import signal
import time

from raw_mqtt import Gone, RawMqtt

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.packets import Disconnect, PingReq, PingResp

KEEP_ALIVE_S = 1
PAUSED_S = 3


def pause(node: LiveNode, *talking: RawMqtt) -> None:
    """For longer than one and a half keep alives, in which some keep theirs."""
    node.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(PAUSED_S):
            time.sleep(KEEP_ALIVE_S)  # the peers' time goes on
            for each in talking:
                each.send(PingReq())
    finally:
        node.process.send_signal(signal.SIGCONT)


def test_who_kept_its_pings_stays(node: LiveNode) -> None:
    clients = [RawMqtt(node) for _ in range(50)]
    with RawMqtt(node) as silent:
        silent.connect(keep_alive_s=KEEP_ALIVE_S)
        for each in clients:
            each.connect(keep_alive_s=KEEP_ALIVE_S)
        pause(node, *clients)
        assert silent.expect(Disconnect).reason == Reason.KEEP_ALIVE_TIMEOUT
        for each in clients:
            assert each.ping() == []
            for _ in range(PAUSED_S):
                each.expect(PingResp)
            each.sock.close()


def test_again_and_again(node: LiveNode) -> None:
    with RawMqtt(node) as client:
        client.connect(keep_alive_s=KEEP_ALIVE_S)
        for _ in range(2):
            pause(node, client)
        for _ in range(2 * PAUSED_S):
            client.expect(PingResp)
        try:
            silent = client.packet()
        except Gone:
            raise AssertionError("it was not told why") from None
        assert silent == Disconnect(Reason.KEEP_ALIVE_TIMEOUT, silent.properties)  # type: ignore[attr-defined]
