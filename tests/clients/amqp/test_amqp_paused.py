"""A node that is stopped by a signal and goes on: what came is read before silence counts."""

import base64
import http.client
import json
import signal
import time

import httpx
from raw_client import RawClient

from braidmq.testing.live import LiveNode
from braidmq.wire.amqp.methods import HEARTBEAT_FRAME

HEARTBEAT_S = 1
PAUSED_S = 5
"""Longer than three heartbeats, and than the time to answer."""
VISIBILITY_MS = 2000
AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()


def test_heartbeats_and_answers_that_came_in_time_count(node: LiveNode, name: str) -> None:
    topic = f"{node.http_url}/v1/topics/{name}"
    host, port = "127.0.0.1", node.ports["http_port"]
    answering = http.client.HTTPConnection(host, port, timeout=60)
    with RawClient(node) as talking, httpx.Client(auth=("guest", "guest"), timeout=60) as api:
        talking.open(1, heartbeat_s=HEARTBEAT_S)
        settings = {"partitions": 1, "visibility_ms": VISIBILITY_MS}
        api.put(topic, json={"settings": settings}).raise_for_status()
        api.put(f"{topic}/subscriptions/s", json={}).raise_for_status()
        api.post(f"{topic}/messages", json={"value": "x"}).raise_for_status()
        found = api.post(f"{topic}/subscriptions/s/receive", json={"limit": 1}).json()
        node.process.send_signal(signal.SIGSTOP)
        try:
            answering.request(
                "POST",
                "/v1/receipts/ack",
                json.dumps({"receipts": [found["messages"][0]["receipt"]]}),
                {"authorization": AUTHORIZATION, "content-type": "application/json"},
            )
            for _ in range(PAUSED_S):
                time.sleep(HEARTBEAT_S)  # the peers' time goes on
                talking.send(HEARTBEAT_FRAME)
        finally:
            node.process.send_signal(signal.SIGCONT)
        assert json.load(answering.getresponse()) == {"count": 1, "failed": []}
        answering.close()
        talking.send(HEARTBEAT_FRAME)
        assert talking.declare(name + "-q").message_count == 0
        node.wait_for_log("the node could not run")
