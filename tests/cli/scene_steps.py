"""What one command needs before it can be tried: by name, with a node and words."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import paho.mqtt.client as mqtt
import pika
from scene import MILL, SHOP, YARD

from braidmq.cli.api import Api
from braidmq.engine.engine import Engine
from braidmq.storage.disk import RealDisk
from braidmq.testing.live import LiveNode

DEVICE = "thermometer-7"
TIMEOUT_S = 20


def yard(node: LiveNode) -> Api:
    return Api(node.http_url, "guest", "guest", YARD)


def connected(node: LiveNode, namespace: str, name: str) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            node.ports["amqp_port"],
            namespace,
            client_properties={"connection_name": name},
        )
    )


def guest_of_the_mill(node: LiveNode) -> None:
    """Came and went: there is one line of history."""
    connected(node, MILL, "visitor").close()
    api = Api(node.http_url, "guest", "guest", MILL)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not api.get("connections", "history"):
        assert time.monotonic() < deadline_s


@contextmanager
def device(node: LiveNode) -> Iterator[None]:
    """An MQTT client with two filters, and a retained message of it."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, DEVICE, clean_session=False)
    client.username_pw_set(f"{SHOP}:guest", "guest")
    granted = Event()
    client.on_subscribe = lambda *_: granted.set()
    client.on_connect = lambda *_: client.subscribe([("house/+/set", 1), ("$share/a/alarms/#", 0)])
    client.connect("127.0.0.1", node.ports["mqtt_port"])
    client.loop_start()
    try:
        assert granted.wait(TIMEOUT_S)
        sent = client.publish("house/kitchen/temperature", b"21.5", qos=1, retain=True)
        sent.wait_for_publish(TIMEOUT_S)
        yield
    finally:
        client.disconnect()
        client.loop_stop()


# --- by name ---

OPEN: list[pika.BlockingConnection] = []
"""Of who is to be disconnected: the node closes them."""


def lease(node: LiveNode, name: str) -> None:
    yard(node).put("topics", "leased", body={})
    positions = [{"topic": "leased", "partition": 0, "offset": 0}]
    yard(node).put("leases", name, body={"positions": positions, "holder": "job"})


def transaction(node: LiveNode, name: str) -> None:
    yard(node).post("transactions", body={"name": name})


def token(node: LiveNode) -> str:
    everywhere = Api(node.http_url, "guest", "guest")
    issued = everywhere.post("tokens", body={"description": "build server"})
    return str(issued["token"]).split("_")[1]


def connection(node: LiveNode) -> str:
    name = f"stuck-{len(OPEN)}"
    OPEN.append(connected(node, YARD, name))
    (found,) = [each for each in yard(node).get("connections") if each["client"] == name]
    return str(found["id"])


def pipeline(node: LiveNode, name: str, namespace: str) -> None:
    run: dict[str, Any] = {
        "run": "r1",
        "state": "running",
        "started_ms": 1_700_000_000_000,
        "rows": 7,
        "lag": 3,
    }
    run |= {"host": "vm", "parameters": {"topic": "orders"}}
    Api(node.http_url, "guest", "guest", namespace).put("pipelines", name, body=run)


def file(node: LiveNode, name: str, text: str) -> None:
    Path(name).write_text(text)


def example(node: LiveNode, name: str) -> None:
    """Of the pipelines in the documentation."""
    shutil.copy(Path(__file__).parents[2] / "docs" / "pipelines" / "examples" / name, name)


def lake(node: LiveNode) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    for number in range(3):
        rows = pa.table({"n": pa.array([number], pa.int64()), "topic": ["orders"]})
        write_deltalake("lake", rows, mode="append", partition_by=["topic"])


def data(node: LiveNode) -> None:
    """Of a node that does not run."""
    engine = Engine.open(RealDisk(Path("data")), 0)
    engine.store.checkpoint()
    engine.close()


def gone(node: LiveNode, *names: str) -> None:
    for name in names:
        path = Path(name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


SCENES: dict[str, Callable[..., str | None]] = {
    each.__name__: each
    for each in (lease, transaction, token, connection, pipeline, file, example, lake, data, gone)
}
