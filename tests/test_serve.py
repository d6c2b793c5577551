"""A node as its operator sees it: real processes, real ports, real signals."""

import asyncio
import json
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import cast

import httpx
import msgspec
import pika
import pytest

from braidmq import __version__
from braidmq.api.access import NOBODY, Caller
from braidmq.api.app import App
from braidmq.api.guard import Guard
from braidmq.api.resources.health import Health
from braidmq.config import Config
from braidmq.config.settings import ListenerSettings
from braidmq.engine.engine import Engine
from braidmq.gateways.mqtt.session_records import SESSIONS, SessionRecord
from braidmq.model.errors import StorageFailed
from braidmq.net.web_origins import WebCallers
from braidmq.record.batch import RecordBatch
from braidmq.server import Node, RecoveryProgress
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings
from braidmq.testing.clock import FakeClock
from braidmq.testing.live import free_ports, live_node, serve_command

OFF = {"amqp_port": 0, "mqtt_port": 0, "ws_port": 0, "http_port": 0}


def refused(command: list[str], code: int = 2) -> str:
    """Run a node that must not start; returns its one line of complaint."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("braid: error: ")
    return line


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def connect(port: int, number: int) -> socket.socket | None:
    """A client of MQTT, or None if it is not let in."""
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    try:
        client.sendall(b"\x10\x10\0\4MQTT\4\2\0\0\0\4c%03d" % number)
        if client.recv(4) == b"\x20\x02\0\0":
            return client
    except ConnectionError:
        pass
    client.close()
    return None


def test_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """More lines than a pipe holds on stderr, and stdout closed once it is ready."""
    (port,) = free_ports(1)
    command = serve_command(tmp_path / "data", **{**OFF, "mqtt_port": port})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert b"ready\n" in iter(node.stdout.readline, b"")
        node.stdout.close()
        for number in range(500):
            client = connect(port, number)
            assert client is not None
            client.close()
        node.terminate()
        assert node.wait(20) == 0


@pytest.mark.parametrize("where", ["&-", "/dev/full"])
def test_it_cannot_say_anything(tmp_path: Path, where: str) -> None:
    (port,) = free_ports(1)
    command = serve_command(tmp_path / "data", **{**OFF, "http_port": port})
    silent = ["sh", "-c", f'exec "$@" >{where}', "sh", *command]
    with subprocess.Popen(silent, stderr=subprocess.DEVNULL) as node:
        ready = False
        while not ready and node.poll() is None:
            with suppress(httpx.TransportError):
                ready = httpx.get(f"http://127.0.0.1:{port}/ready").is_success
        node.terminate()
        assert (ready, node.wait(20)) == (True, 0)


def test_connections_leave_files_for_storage(tmp_path: Path) -> None:
    amqp, mqtt, http = free_ports(3)
    config = tmp_path / "small.toml"
    config.write_text("[storage]\njournal_file_bytes = 1048576\nsegment_bytes_max = 1048576\n")
    flags = {"amqp_port": amqp, "mqtt_port": mqtt, "ws_port": 0, "http_port": http}
    command = serve_command(tmp_path / "data", config=config, **flags)
    limited = ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", *command]
    with (
        subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as node,
        ExitStack() as clients,
    ):
        clients.callback(node.kill)
        assert node.stdout is not None
        assert b"ready\n" in iter(node.stdout.readline, b"")
        inside = []
        while (client := connect(mqtt, len(inside))) is not None:
            inside.append(clients.enter_context(client))
        assert 0 < len(inside) < 100  # half of the files are for storage
        for port in (amqp, http):
            place = ("127.0.0.1", port)
            with socket.create_connection(place, 20) as stranger, suppress(ConnectionError):
                stranger.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
                assert stranger.recv(1) == b""
        for number in range(1, 21):  # much more than a journal holds
            topic = b"$queue/files"
            body = (
                struct.pack(">H", len(topic)) + topic + struct.pack(">H", number) + b"x" * 500_000
            )
            length = bytes([len(body) & 127 | 128, len(body) >> 7 & 127 | 128, len(body) >> 14])
            inside[0].sendall(b"\x32" + length + body)
            assert inside[0].recv(4) == b"\x40\x02" + struct.pack(">H", number)
        for client in inside:
            client.close()
        while (client := connect(mqtt, 999)) is None:
            pass
        clients.enter_context(client)
        assert httpx.get(f"http://127.0.0.1:{http}/health", timeout=20).json()["status"] == "ok"


def test_many_may_come_at_once(tmp_path: Path) -> None:
    """While the node does something else, the system lets them wait."""
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    with live_node(tmp_path / "data") as node, ExitStack() as clients:
        node.process.send_signal(signal.SIGSTOP)
        for port in node.ports.values():
            for _ in range(min(200, most)):
                client = socket.create_connection(("127.0.0.1", port), timeout=20)
                clients.enter_context(client)
        node.process.send_signal(signal.SIGCONT)
        assert node.stop() == 0


def test_it_says_what_it_recovered_and_where_it_listens_then_ready(tmp_path: Path) -> None:
    with live_node(tmp_path / "data") as node:
        recovered, amqp, mqtt, ws, http, ready = node.lines
    assert recovered.startswith(
        f"storage replayed 0 journal records, 0 partitions, 0 messages in {tmp_path / 'data'} ("
    )
    assert recovered.endswith(" ms)")
    assert amqp == f"amqp    listening on amqp://127.0.0.1:{node.ports['amqp_port']}"
    assert mqtt == f"mqtt    listening on mqtt://127.0.0.1:{node.ports['mqtt_port']}"
    assert ws == f"ws      listening on ws://127.0.0.1:{node.ports['ws_port']}"
    assert http == f"http    listening on {node.http_url}"
    assert ready == "ready"


def test_health_and_ready(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, httpx.Client(base_url=node.http_url) as client:
        health = client.get("/health")
        assert (health.status_code, health.json()) == (
            200,
            {"status": "ok", "version": __version__},
        )
        assert health.headers["cache-control"] == "no-store"
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with live_node(tmp_path) as node:
        node.process.send_signal(number)
        node.wait_for_line("stopped")
        assert node.process.wait(5) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(node.http_url + "/health")


def test_sighup_has_it_read_again_and_go_on(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        for _ in range(2):
            node.process.send_signal(signal.SIGHUP)
            node.wait_for_log("reloading", "SIGHUP")
        assert httpx.get(node.http_url + "/health").status_code == 200
        assert node.stop() == 0


def test_a_reload_under_load_drops_no_connection(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[amqp]\nheartbeat_s = 60\n")
    with live_node(tmp_path / "data", config=config) as node:
        address = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"], heartbeat=0)
        with pika.BlockingConnection(address) as client, meter(node.ports["mqtt_port"]) as device:
            channel = client.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders")
            for number in range(20):
                config.write_text(f"[amqp]\nheartbeat_s = {7 + number}\n")
                node.process.send_signal(signal.SIGHUP)
                channel.basic_publish("", "orders", b"x")
                device.sendall(b"\xc0\0")
                assert device.recv(2) == b"\xd0\0"
                node.wait_for_log("setting changed", "amqp.heartbeat_s", f"after={7 + number}")
            config.write_text("[amqp]\nheartbeat_s = 8\n\n[log]\nlevel = 'loud'\n")
            node.process.send_signal(signal.SIGHUP)
            node.wait_for_log("error", "not reloaded", f"{config}:5: log.level")
            config.write_text("[node]\ndev = true\n")
            node.process.send_signal(signal.SIGHUP)
            node.wait_for_log("needs a restart", "node.dev")
            channel.basic_publish("", "orders", b"x")
            assert channel.queue_declare("orders", passive=True).method.message_count == 21
        assert node.stop() == 0


@contextmanager
def meter(port: int) -> Iterator[socket.socket]:
    """A client of MQTT that is there all the time."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"\x10\x0e\0\4MQTT\4\2\0\0\0\2ab")
        assert client.recv(4) == b"\x20\2\0\0"
        yield client


def test_a_request_may_name_its_host_as_to_a_proxy(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        connection = HTTPConnection("127.0.0.1", node.ports["http_port"], timeout=60)
        for target, status in (
            ("http://localhost/health", 200),
            ("HTTPS://localhost:8443/ready?x=1", 200),
            ("http://localhost", 401),
            ("/http://example.com/health", 401),
            ("http://example.com/health", 403),
        ):
            connection.request("GET", target)
            answer = connection.getresponse()
            answer.read()
            assert (target, answer.status) == (target, status)
        connection.close()


def test_an_idle_connection_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, httpx.Client(base_url=node.http_url) as client:
        client.get("/health")
        assert node.stop() == 0
        assert node.lines[-1] == "stopped"


def test_it_starts_again_on_the_same_directory_and_port(tmp_path: Path) -> None:
    with live_node(tmp_path) as first:
        httpx.get(first.http_url + "/health")
        assert first.stop() == 0
    with live_node(tmp_path, http_port=first.ports["http_port"]) as second:
        assert httpx.get(second.http_url + "/ready").status_code == 200


def test_it_starts_again_after_being_killed(tmp_path: Path) -> None:
    with live_node(tmp_path) as first:
        assert first.kill() == -signal.SIGKILL
    with live_node(tmp_path) as second:
        assert second.stop() == 0


def test_with_every_port_off_it_only_keeps_the_directory(tmp_path: Path) -> None:
    with live_node(tmp_path, **OFF) as node:
        assert [line.split()[0] for line in node.lines] == ["storage", "ready"]
        assert node.stop() == 0


def test_a_second_node_on_the_directory_is_refused_at_once_with_the_pid(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        line = refused(serve_command(tmp_path, **OFF))
        assert str(node.process.pid) in line
        assert "--data-dir" in line
        assert httpx.get(node.http_url + "/health").status_code == 200


def test_a_second_node_on_directory_and_ports_hears_of_the_directory(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        line = refused(serve_command(tmp_path, **node.ports))
        assert str(node.process.pid) in line


def test_a_busy_port_names_the_flag_and_leaves_the_directory_free(
    tmp_path: Path, busy_port: int
) -> None:
    command = serve_command(tmp_path, **{**OFF, "http_port": busy_port})
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert done.stderr == (
        f"braid: error: listener 'http' cannot listen on 127.0.0.1:{busy_port}: Address already"
        " in use."
        " Give another --http-port, or 0 to turn this listener off\n"
    )
    assert "ready" not in done.stdout
    with live_node(tmp_path) as node:
        assert node.stop() == 0


def test_a_host_nobody_has_names_the_flag(tmp_path: Path) -> None:
    command = serve_command(tmp_path, host="no-such-host.invalid", http_port=free_ports(1)[0])
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "no-such-host.invalid" in done.stderr
    assert done.stderr.endswith("Give another --host\n")


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    line = refused(serve_command(file, **OFF))
    assert str(file) in line
    assert "--data-dir" in line


def test_a_bad_config_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[listeners]\nhtpp_port = 1\n")
    line = refused(serve_command(tmp_path / "data", config=config))
    assert line == (
        f"braid: error: {config}:2: unknown key listeners.htpp_port."
        " Did you mean listeners.http_port?"
    )
    assert not (tmp_path / "data").exists()


def test_the_config_file_is_obeyed_and_flags_win(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "braid.toml"
    config.write_text(f'[node]\ndata_dir = "{tmp_path}/unused"\n[listeners]\nhttp_port = {port}\n')
    command = serve_command(tmp_path / "data", config=config, amqp_port=0, mqtt_port=0, ws_port=0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = [next(process.stdout) for _ in range(3)]
            assert lines[1] == f"http    listening on http://127.0.0.1:{port}\n"
            assert not (tmp_path / "unused").exists()
        finally:
            process.terminate()


def test_a_variable_is_obeyed_and_flags_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_NODE_DATA_DIR", str(tmp_path / "unused"))
    monkeypatch.setenv("BRAID_LOG_LEVEL", "error")
    with live_node(tmp_path / "data") as node:
        assert node.stop() == 0
    assert not (tmp_path / "unused").exists()
    assert not [line for line in node.lines if "stopping" in line]


def test_an_unknown_variable_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_NODE_DATADIR", "x")
    line = refused(serve_command(tmp_path / "data", **OFF))
    assert line.endswith("BRAID_NODE_DATADIR. Did you mean BRAID_NODE_DATA_DIR?")
    assert not (tmp_path / "data").exists()


def test_a_json_log_has_the_start_and_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRAID_LOG_FORMAT", "json")
    with live_node(tmp_path, **OFF) as node:
        assert node.stop() == 0
    logged = [json.loads(line)["message"] for line in node.lines if line.startswith("{")]
    assert logged[0].startswith("storage replayed 0 journal records")
    assert logged[1:] == ["ready", "stopping", "stopped"]


# --- recovery says how far it is ---


def test_recovery_goes_through_the_whole_journal_and_all_subscriptions() -> None:
    settings = StorageSettings(journal_file_bytes=1 << 20)
    disk = MemoryDisk()
    engine = Engine.open(disk, 1000, settings)
    topic = engine.topics.create("/", "t", {"partitions": 1}, now_ms=1000)
    for number in range(3):
        engine.subscriptions.subscribe(topic, f"s{number}", now_ms=1000)
    for _ in range(20):
        batch = RecordBatch()
        batch.extend_values([bytes(1000)] * 100, 1000)
        engine.publishing.publish(topic, batch, now_ms=1000)
    engine.close()
    told: list[tuple[str, int, int]] = []
    Engine.open(disk, 1000, settings, progress=lambda *each: told.append(each)).close()
    journal = [(done, total) for what, done, total in told if what == "bytes of journal"]
    assert len({total for _, total in journal}) == 1
    assert [done for done, _ in journal] == sorted(done for done, _ in journal)
    assert 2_000_000 <= journal[-1][0] <= journal[-1][1]
    assert [
        each for each in told if each not in {("bytes of journal", *pair) for pair in journal}
    ] == [("subscriptions", done, 3) for done in range(3)]


def test_progress_is_said_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    progress = RecoveryProgress(lambda: now_s)
    for now_s, done in [(100.9, 1), (101.0, 32), (101.5, 33), (102.0, 48)]:  # noqa: B007
        progress("bytes of journal", done << 20, 64 << 20)
    now_s = 103.0
    progress("subscriptions", 1, 3)
    assert capsys.readouterr().out.splitlines() == [
        "storage recovering: 32 of 64 MiB of journal, 50 %",
        "storage recovering: 48 of 64 MiB of journal, 75 %",
        "storage recovering: 1 of 3 subscriptions, 33 %",
    ]


def only_health(health: Health) -> App:
    """An app that asks nobody who they are."""

    class NoGuard:
        async def caller(self, request: object, right: object) -> Caller:
            return Caller(NOBODY, lambda: True)

        def admit(self, right: object, caller: object, arguments: object) -> None:
            return None

    return App(cast(Guard, NoGuard()), [health], web=WebCallers(["node"]))


async def test_health_and_ready_tell_of_a_storage_failure() -> None:
    error = StorageFailed("journal/1: Input/output error")
    transport = httpx.ASGITransport(only_health(Health(lambda: error, lambda: str(error))))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        health = await client.get("/health")
        ready = await client.get("/ready")
    assert health.status_code == 503
    assert health.json() == {
        "status": "failing",
        "error": {"code": "storage-failed", "message": str(error)},
    }
    assert (ready.status_code, ready.json()) == (
        503,
        {"status": "not-ready", "reason": str(error)},
    )


async def test_a_node_still_starting_is_healthy_but_not_ready() -> None:
    transport = httpx.ASGITransport(
        only_health(Health(lambda: None, lambda: "listeners are starting"))
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 503


def test_a_node_is_unready_until_it_listens_and_says_why() -> None:
    engine = Engine.open(MemoryDisk(), 1000, StorageSettings(journal_file_bytes=65536))
    node = Node(Config(), engine, FakeClock())
    assert node.unready() == "listeners are starting or stopping"
    engine.store.journal.fail(OSError(5, "Input/output error"))
    assert node.unready() == str(engine.store.failure())
    node.close()


def test_sessions_are_back_before_the_loop_runs_whatever_listens() -> None:
    engine = Engine.open(MemoryDisk(), 1000, StorageSettings(journal_file_bytes=65536))
    connected = SessionRecord("guest", expiry_s=60, disconnected_ms=0)
    engine.store.change([(SESSIONS, "/\0meter", msgspec.msgpack.encode(connected))])
    clock = FakeClock()
    node = Node(Config(listeners=msgspec.convert(OFF, ListenerSettings)), engine, clock)
    loop = asyncio.new_event_loop()
    assembled = node.assemble(loop)
    assert assembled.service.listeners == []
    kept = engine.store.catalogue.get(SESSIONS, "/\0meter")
    assert kept is not None
    record = msgspec.msgpack.decode(kept, type=SessionRecord)
    assert record.disconnected_ms == clock.now_ms()
    assembled.node_loop.stop()
    loop.close()
    node.close()
