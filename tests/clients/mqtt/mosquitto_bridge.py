"""A Mosquitto from Debian with a bridge to a node of ours, and clients that stay through restarts
of either side."""

import shutil
import socket
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from types import TracebackType

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from braidmq.testing.live import free_ports

WAIT_S = 30.0
STATE = "$SYS/broker/connection/edge.up/state"
CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {where}/
user root
log_dest file {where}/log
log_type all

connection up
address 127.0.0.1:{to_port}
restart_timeout 1
remote_clientid edge.up
local_clientid local.edge.up
{more}
"""


def program() -> str:
    found = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
    if found is None:
        pytest.skip("mosquitto is not installed")
    return found


class Mosquitto:
    """With the defaults of a bridge, but for the name, a shorter wait, and what is given."""

    def __init__(self, where: Path, to_port: int, *more: str) -> None:
        [self.port] = free_ports(1)
        self._config = where / "mosquitto.conf"
        lines = "\n".join(more or ("topic # both 1",))
        self._config.write_text(
            CONFIG.format(port=self.port, where=where, to_port=to_port, more=lines)
        )
        self._process = self._started()

    def _started(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen([program(), "-c", str(self._config)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return process
            except ConnectionRefusedError:
                assert process.poll() is None, "Mosquitto ended at once"
                assert time.monotonic() < deadline, "Mosquitto does not listen"
                time.sleep(0.02)

    def stop(self) -> None:
        """As an administrator does: what is queued is written to disk."""
        self._process.terminate()
        self._process.wait(WAIT_S)

    def restart(self) -> None:
        self.stop()
        self._process = self._started()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)

    def __enter__(self) -> "Mosquitto":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: object, _trace: TracebackType | None
    ) -> None:
        self.kill()


class Client:
    """It keeps its session and comes back by itself. ``got`` counts what came, by payload."""

    def __init__(self, port: int, name: str, *filters: str, qos: int = 0) -> None:
        self._changed = threading.Condition()
        self._published = self._confirmed = 0
        self.got: Counter[str] = Counter()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.reconnect_delay_set(1, 1)
        self._client.max_queued_messages_set(0)
        self._filters = [(each, qos) for each in filters]
        self._is_subscribed = threading.Event()
        self._client.on_connect = self._connected
        self._client.on_subscribe = lambda *_: self._is_subscribed.set()
        self._client.on_message = self._arrived
        self._client.on_publish = self._was_confirmed
        self._port = port

    def __enter__(self) -> "Client":
        self._client.connect_async("127.0.0.1", self._port)
        self._client.loop_start()
        if self._filters:
            assert self._is_subscribed.wait(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _connected(self, client: paho.Client, *_: object) -> None:
        if self._filters:
            client.subscribe(self._filters)

    def _arrived(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.got[f"{message.topic}={message.payload.decode()}"] += 1
            self._changed.notify_all()

    def publish(self, topic: str, payload: str, qos: int, *, retain: bool = False) -> None:
        """Above QoS 0: it is kept for a connection that comes later."""
        self._published += 1
        self._client.publish(topic, payload, qos, retain)

    def _was_confirmed(self, *_: object) -> None:
        with self._changed:
            self._confirmed += 1
            self._changed.notify_all()

    def publish_all(self) -> None:
        """Wait until all of it is confirmed."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._confirmed == self._published, WAIT_S)

    def wait_for(self, *wanted: str) -> None:
        with self._changed:
            there = self._changed.wait_for(lambda: self.got.keys() >= {*wanted}, WAIT_S)
            assert there, sorted({*wanted} - self.got.keys())[:10]
