"""Several listeners of a kind, on several addresses: one node behind all of them."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ProbableAccessDeniedError

from braidmq.testing.live import LiveNode, free_ports, live_node, serve_command

GUEST = ("guest", "guest")
WAIT_S = 20.0
NEXT_DOOR = "127.0.0.2"


class Place:
    """A node with two listeners of each kind."""

    def __init__(self, node: LiveNode, ports: dict[str, int]) -> None:
        self.node = node
        here = {name.removesuffix("_port"): port for name, port in node.ports.items()}
        self.at = {name: ("127.0.0.1", port) for name, port in here.items()}
        self.at |= {name: (NEXT_DOOR, port) for name, port in ports.items()}

    def get(self, path: str) -> Any:
        answer = httpx.get(self.node.http_url + path, auth=GUEST, timeout=WAIT_S)
        return answer.raise_for_status().json()


def entry(name: str, protocol: str, host: str, port: int) -> str:
    return (
        f'[[listeners.entries]]\nname = "{name}"\nprotocol = "{protocol}"\nhost = "{host}"\n'
        f"port = {port}\n"
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("node")
    names = ("amqp-2", "mqtt-2", "ws-2", "http-2")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    config = folder / "braid.toml"
    entries = (entry(name, name[:-2], NEXT_DOOR, port) for name, port in ports.items())
    config.write_text("".join(entries))
    with live_node(folder / "data", config=config) as node:
        yield Place(node, ports)
        assert node.stop() == 0
        assert not node.complaints


@contextmanager
def amqp(at: tuple[str, int], vhost: str = "/") -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(*at, vhost, heartbeat=0))
    yield connection.channel()
    if connection.is_open:
        connection.close()


class Mqtt:
    def __init__(self, at: tuple[str, int], transport: Any = "tcp", user: str = "") -> None:
        self.messages: Queue[bytes] = Queue()
        self.connected: Queue[str] = Queue()
        self._subscribed: Queue[None] = Queue()
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, transport=transport
        )
        if user:
            self.client.username_pw_set(user, "guest")
        self.client.on_message = lambda _c, _u, message: self.messages.put(message.payload)
        self.client.on_connect = lambda _c, _u, _f, reason, _p: self.connected.put(str(reason))
        self.client.on_subscribe = lambda *_: self._subscribed.put(None)
        self.client.connect(*at)
        self.client.loop_start()

    def subscribe(self, topic: str) -> None:
        self.client.subscribe(topic, 1)
        self._subscribed.get(timeout=WAIT_S)

    def publish(self, topic: str, body: bytes) -> None:
        self.client.publish(topic, body, 1).wait_for_publish(WAIT_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextmanager
def mqtt(at: tuple[str, int], transport: Any = "tcp", user: str = "") -> Iterator[Mqtt]:
    client = Mqtt(at, transport, user)
    try:
        yield client
    finally:
        client.close()


def test_it_prints_every_one(place: Place) -> None:
    found = [line.split(" listening on ") for line in place.node.lines if "listening" in line]
    names = ["amqp", "mqtt", "ws", "http", "amqp-2", "mqtt-2", "ws-2", "http-2"]
    assert found == [
        [f"{name:<7}", f"{name.removesuffix('-2')}://{place.at[name][0]}:{place.at[name][1]}"]
        for name in names
    ]


def test_listeners_of_amqp_serve_the_same_queues(place: Place) -> None:
    with amqp(place.at["amqp"]) as here, amqp(place.at["amqp-2"]) as there:
        here.confirm_delivery()
        here.queue_declare("both")
        here.basic_publish("", "both", b"from here")
        _, _, body = there.basic_get("both", auto_ack=True)
        assert body == b"from here"
        there.confirm_delivery()
        there.basic_publish("", "both", b"from there")
        _, _, body = here.basic_get("both", auto_ack=True)
        assert body == b"from there"


def test_listeners_of_mqtt_serve_the_same_topics(place: Place) -> None:
    at = place.at
    with (
        mqtt(at["mqtt"]) as one,
        mqtt(at["mqtt-2"]) as two,
        mqtt(at["ws"], "websockets") as three,
        mqtt(at["ws-2"], "websockets") as four,
        amqp(at["amqp-2"]) as channel,
    ):
        every = (one, two, three, four)
        for client in every:
            client.subscribe("both/#")
        channel.queue_declare("of-mqtt", exclusive=True)
        channel.queue_bind("of-mqtt", "amq.topic", "both.#")
        for number, sender in enumerate(every):
            sender.publish(f"both/{number}", b"%d" % number)
            for receiver in every:
                assert receiver.messages.get(timeout=WAIT_S) == b"%d" % number
            _, _, body = channel.basic_get("of-mqtt", auto_ack=True)
            assert body == b"%d" % number


def test_every_one_is_listed_with_its_connections(place: Place) -> None:
    at = place.at
    with ExitStack() as stack:
        stack.enter_context(amqp(at["amqp"]))
        for _ in range(2):
            stack.enter_context(amqp(at["amqp-2"]))
        for name, transport in (("mqtt-2", "tcp"), ("ws", "websockets"), ("ws-2", "websockets")):
            client = stack.enter_context(mqtt(at[name], transport))
            assert client.connected.get(timeout=WAIT_S) == "Success"
        listed = {each["name"]: each for each in place.get("/v1/listeners")}
        sessions = [each["listener"] for each in place.get("/v1/connections")]
        figures = httpx.get(place.node.http_url + "/metrics", timeout=WAIT_S).text
    assert {name: (each["host"], each["port"]) for name, each in listed.items()} == at
    assert all(each["open"] for each in listed.values())
    counts = {"amqp": 1, "amqp-2": 2, "mqtt": 0, "mqtt-2": 1, "ws": 1, "ws-2": 1}
    for name, count in counts.items():
        protocol = name.removesuffix("-2")
        assert listed[name]["connections"] == sessions.count(name) == count
        label = f'{{listener="{name}",protocol="{protocol}"}}'
        assert f"braid_listener_open{label} 1.0\n" in figures
        assert f"braid_listener_connections{label} {count}.0\n" in figures
    assert listed["http"]["connections"] >= 1  # who asks


def test_listeners_of_http_are_one_api(place: Place) -> None:
    host, port = place.at["http-2"]
    url = f"http://{host}:{port}"
    assert httpx.get(f"{url}/ready", timeout=WAIT_S).json() == {"status": "ready"}
    assert httpx.get(f"{url}/health", timeout=WAIT_S).json()["status"] == "ok"
    assert httpx.put(f"{url}/v1/topics/made-there", auth=GUEST, timeout=WAIT_S).is_success
    assert place.get("/v1/topics/made-there")["name"] == "made-there"
    for origin, allowed in ((url, True), ("http://evil.example", False)):
        answer = httpx.get(f"{url}/health", headers={"Origin": origin}, timeout=WAIT_S)
        assert answer.is_success == allowed
    answer = httpx.get(f"{url}/health", headers={"Host": "evil.example"}, timeout=WAIT_S)
    assert answer.status_code == 403


def test_connections_of_a_namespace_are_counted_over_all_listeners(place: Place) -> None:
    at = place.at
    with httpx.Client(base_url=place.node.http_url, auth=GUEST, timeout=WAIT_S) as admin:
        admin.put("/v1/namespaces/few", json={"max_connections": 3}).raise_for_status()
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        admin.put("/v1/permissions/few/guest", json=everything).raise_for_status()
    with ExitStack() as stack:
        stack.enter_context(amqp(at["amqp"], "few"))
        for name, transport in (("mqtt-2", "tcp"), ("ws", "websockets")):
            client = stack.enter_context(mqtt(at[name], transport, "few:guest"))
            assert client.connected.get(timeout=WAIT_S) == "Success"
        for name in ("amqp", "amqp-2"):
            with pytest.raises(ProbableAccessDeniedError, match=r"connection limit \(3\)"):
                stack.enter_context(amqp(at[name], "few"))
        refused = stack.enter_context(mqtt(at["mqtt"], "tcp", "few:guest"))
        assert refused.connected.get(timeout=WAIT_S) == "Quota exceeded"
        refused.close()
        client.close()
        # Who left makes room as soon as the node knows.
        while True:
            try:
                stack.enter_context(amqp(at["amqp-2"], "few"))
                break
            except ProbableAccessDeniedError:
                continue


def test_a_list_is_all_there_is(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "braid.toml"
    config.write_text(entry("only", "mqtt", NEXT_DOOR, port))
    command = serve_command(tmp_path / "data", config=config)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        lines = [line for line in iter(node.stdout.readline, "ready\n") if line]
        node.terminate()
        assert lines[1:] == [f"only    listening on mqtt://{NEXT_DOOR}:{port}\n"]
        assert node.wait(WAIT_S) == 0


@pytest.mark.parametrize("protocol", ["amqp", "mqtt", "ws", "http"])
def test_a_port_that_is_taken_names_its_listener(tmp_path: Path, protocol: str) -> None:
    first, second = free_ports(2)
    config = tmp_path / "braid.toml"
    with socket.socket() as sock:
        sock.bind((NEXT_DOOR, second))
        sock.listen()
        config.write_text(
            entry("fine", protocol, "127.0.0.1", first)
            + entry("taken", protocol, NEXT_DOOR, second)
        )
        command = serve_command(tmp_path / "data", config=config)
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr == (
        f"braid: error: listener 'taken' cannot listen on {NEXT_DOOR}:{second}: Address already in"
        " use. Give it another port in listeners.entries, or leave it out\n"
    )
    assert "ready" not in done.stdout
    with socket.socket() as sock:  # nothing is left of the one that could listen
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", first))


def test_an_address_nobody_has_names_its_listener(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text(entry("elsewhere", "amqp", "192.0.2.1", free_ports(1)[0]))
    done = subprocess.run(
        serve_command(tmp_path / "data", config=config), capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2
    assert "listener 'elsewhere' cannot listen on 192.0.2.1:" in done.stderr
    assert done.stderr.endswith(" Give it another host in listeners.entries\n")
