"""Celery's worker with late acknowledgement, aio-pika's robust consumer and paho's client go on
after ``kill -9`` of the node under load, none of them started again; nothing confirmed is lost.

``SURVIVED_KILLS=10`` for as many as the promise names (``make foreign``).
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pika
import pytest
from test_celery import HERE, celery_worker

from braidmq.testing.live import free_ports, live_node

KILLS = int(os.environ.get("SURVIVED_KILLS", "2"))
BETWEEN_KILLS = 100
"""Messages that are confirmed between two kills, at least, for each of the three."""

WAIT_S = 60

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it tells of every node that is gone
SUBSCRIBER = HERE.parent / "mqtt" / "surviving_subscriber.py"


class Publisher(threading.Thread):
    """Tells all three the same numbers until it is told to stop, each once more if it was not
    confirmed."""

    def __init__(self, port: int, written: Path) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._written = written
        self.confirmed = 0
        """All numbers below it were, by everybody's queue."""
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            with suppress(pika.exceptions.AMQPError, OSError):
                self._publish()
            time.sleep(0.05)  # the node is not there

    def _publish(self) -> None:
        at = pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0)
        with pika.BlockingConnection(at) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            kept = pika.BasicProperties(delivery_mode=2)
            while not self.stopping:
                number = str(self.confirmed)
                channel.basic_publish("", "work", number, kept, mandatory=True)
                channel.basic_publish("amq.topic", "news", number, kept, mandatory=True)
                channel.basic_publish("", "celery", *self._task(number), mandatory=True)
                self.confirmed += 1

    def _task(self, number: str) -> tuple[str, pika.BasicProperties]:
        properties = pika.BasicProperties(
            "application/json",
            "utf-8",
            {"lang": "py", "task": "celery_tasks.write_down", "id": number, "root_id": number},
            delivery_mode=2,
            correlation_id=number,
        )
        return json.dumps([[str(self._written), number], {}, {}]), properties


@contextmanager
def survivor(script: Path, *arguments: str) -> Iterator[None]:
    """A program that says that it is ready, and is still there in the end."""
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
        assert process.poll() is None, f"{script.name} ended"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def confirm_more(publisher: Publisher) -> None:
    enough, deadline = publisher.confirmed + BETWEEN_KILLS, time.monotonic() + WAIT_S
    while publisher.confirmed < enough:
        assert time.monotonic() < deadline, publisher.confirmed
        time.sleep(0.02)


def receive_all(name: str, file: Path, wanted: set[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while missing := wanted - set(file.read_text().split()):
        assert time.monotonic() < deadline, f"{name} did not get {sorted(missing, key=int)}"
        time.sleep(0.02)


@pytest.mark.timeout(90 + 30 * KILLS)
@pytest.mark.crash
def test_clients_go_on_after_kills_and_nothing_is_lost(tmp_path: Path) -> None:
    ports = dict(zip(("amqp_port", "mqtt_port"), free_ports(2), strict=True))
    amqp, mqtt = (str(each) for each in ports.values())
    environment = {
        "CELERY_BROKER": f"amqp://guest:guest@127.0.0.1:{amqp}//",
        "CELERY_BACKEND": "rpc://",
        "CELERY_QUEUE": "celery",
    }
    files = {name: tmp_path / name for name in ("celery", "aio-pika", "paho")}
    publisher = Publisher(int(amqp), files["celery"])
    with ExitStack() as clients:
        for life in range(KILLS + 1):
            with live_node(tmp_path / "data", ws_port=0, http_port=0, **ports) as node:
                if not life:
                    worker = celery_worker(
                        "w", environment, "-P", "prefork", "-c", "1", survives=True
                    )
                    clients.enter_context(worker)
                    aio_pika = HERE / "surviving_worker.py"
                    clients.enter_context(survivor(aio_pika, amqp, "work", str(files["aio-pika"])))
                    clients.enter_context(survivor(SUBSCRIBER, mqtt, "news", str(files["paho"])))
                    publisher.start()
                confirm_more(publisher)
                if life < KILLS:
                    node.kill()
                    continue
                publisher.stopping = True
                publisher.join()
                wanted = {str(number) for number in range(publisher.confirmed)}
                for name, file in files.items():
                    receive_all(name, file, wanted)
                clients.close()
