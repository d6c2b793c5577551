"""A live node whose files are damaged: one queue is quarantined, the others are served, and every
way out of it works."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pika
import pytest
from commands import Cli
from pika.exceptions import ChannelClosedByBroker, NackError

from braidmq.cli.app import main
from braidmq.storage import snapshot
from braidmq.storage.disk import RealDisk
from braidmq.storage.snapshot import Snapshot
from braidmq.testing.live import LiveNode, live_node

MESSAGES = 100
LIMITS = "[storage]\njournal_file_bytes = 65536\nsegment_bytes_max = 8192\n"


@contextmanager
def node(root: Path) -> Iterator[LiveNode]:
    config = root / "small.toml"
    config.write_text(LIMITS)
    with live_node(root / "data", config=config) as started:
        yield started


@contextmanager
def amqp(of: LiveNode) -> Iterator[Any]:
    where = pika.ConnectionParameters("127.0.0.1", of.ports["amqp_port"])
    connection = pika.BlockingConnection(where)
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


def fill(of: LiveNode, *names: str) -> None:
    with amqp(of) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in names:
            channel.queue_declare(name, durable=True)
        kept = pika.BasicProperties(delivery_mode=2)
        for number in range(MESSAGES):
            for name in names:
                body = b"%s-%d" % (name.encode(), number) * 100
                channel.basic_publish("", name, body, kept)


def state(root: Path) -> Snapshot:
    disk = RealDisk(root / "data")
    return snapshot.load(disk, snapshot.names(disk)[0])


def damage(root: Path, partition: int = 1) -> Path:
    """Flip a bit in the middle of the first segment of a queue."""
    found = next(each for each in state(root).state.partitions if each.partition == partition)
    path = root / "data" / found.segments[0].path
    content = bytearray(path.read_bytes())
    content[found.segments[0].size // 2] ^= 4
    path.write_bytes(content)
    return path


@contextmanager
def commands(of: LiveNode) -> Iterator[Cli]:
    with pytest.MonkeyPatch.context() as patch:
        yield Cli(of, patch)


def asked(of: LiveNode, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(of.http_url + path)
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def count(of: LiveNode, name: str, expected: int = MESSAGES) -> int:
    """Takes ``expected`` messages of a queue; returns how many it had."""
    found = 0
    with amqp(of) as connection:
        channel = connection.channel()
        for method, _, _ in channel.consume(name, inactivity_timeout=20):
            if method is None:
                break
            channel.basic_ack(method.delivery_tag)
            found += 1
            if found == expected:
                break
        channel.cancel()
        found += channel.queue_declare(name, passive=True).method.message_count
    return found


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    with node(tmp_path) as first:
        fill(first, "orders", "other")
        first.stop()
    damage(tmp_path)
    return tmp_path


def consume_until_closed(of: LiveNode, name: str) -> ChannelClosedByBroker:
    with amqp(of) as connection:
        channel = connection.channel()
        with pytest.raises(ChannelClosedByBroker) as caught:
            for _ in channel.consume(name, auto_ack=False, inactivity_timeout=20):
                pass
        assert connection.is_open
    return caught.value


def test_one_damaged_queue_and_the_way_out(damaged: Path) -> None:
    with node(damaged) as running, commands(running) as cli:
        closed = consume_until_closed(running, "orders")
        assert closed.reply_code == 541
        assert "segments/00000001-" in closed.reply_text
        assert "byte" in closed.reply_text
        assert running.wait_for_log("partition quarantined", "file=segments/00000001-")
        # Everybody else is served, and whoever asks for this one is told.
        assert count(running, "other") == MESSAGES
        with amqp(running) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            with pytest.raises(NackError):
                channel.basic_publish("", "orders", b"refused")
            channel.basic_publish("", "other", b"taken")
            with pytest.raises(ChannelClosedByBroker):
                connection.channel().basic_get("orders")
        status, problem = asked(running, "/v1/topics/orders/partitions/0/messages/0")
        assert (status, problem["code"]) == (503, "partition-quarantined")
        assert "segments/00000001-" in problem["detail"]
        assert problem["remedy"]
        assert asked(running, "/health") == (
            200,
            {
                "status": "degraded",
                "version": asked(running, "/health")[1]["version"],
                "degraded": {"quarantined_partitions": 1},
            },
        )
        assert asked(running, "/ready")[0] == 200
        with urllib.request.urlopen(running.http_url + "/metrics", timeout=20) as answer:
            metrics = answer.read().decode()
        assert "braid_quarantined_partitions 1.0" in metrics
        assert 'topic="orders"' in metrics.partition("braid_quarantined_partition{")[2]
        doctor = cli.run("doctor")
        assert doctor.code == 1
        assert "quarantine" in doctor.text
        assert "orders" in doctor.text
        assert "segments/00000001-" in doctor.text
        (listed,) = cli.json("storage", "list")["partitions"]
        assert (listed["topic"], listed["partition"]) == ("orders", 0)
        # Still damaged: trying again changes nothing.
        assert cli.run("storage", "retry", "orders", "0").code == 3
        running.stop()
    with node(damaged) as again, commands(again) as cli:
        assert asked(again, "/health")[1]["status"] == "degraded"
        said = cli.ok("storage", "skip", "--yes", "orders", "0")
        assert "1 records are lost" in said
        assert "the damaged file is now aside/segments/00000001-" in said
        assert asked(again, "/health")[1]["status"] == "ok"
        assert count(again, "orders", MESSAGES - 1) == MESSAGES - 1
        assert "aside/segments" in cli.ok("storage", "list")
        assert "aside" in cli.run("doctor").text
        again.stop()
    with node(damaged) as third:
        assert asked(third, "/health")[1]["status"] == "ok"
        third.stop()


def test_a_restored_file_and_a_deleted_topic(damaged: Path) -> None:
    with node(damaged) as running, commands(running) as cli:
        consume_until_closed(running, "orders")
        path = damage(damaged)  # the same bit again: as it was
        assert "whole and served again" in cli.ok("storage", "retry", "orders", "0")
        assert asked(running, "/health")[1]["status"] == "ok"
        content = bytearray(path.read_bytes())
        running.stop()
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with node(damaged) as running, commands(running) as cli:
        consume_until_closed(running, "orders")
        cli.ok("topics", "delete", "--yes", "orders")
        assert asked(running, "/health")[1]["status"] == "ok"
        fill(running, "orders")
        assert count(running, "orders") == MESSAGES
        assert running.stop() == 0


def test_a_kept_session_that_is_damaged_is_refused_with_the_reason(tmp_path: Path) -> None:
    def client() -> mqtt.Client:
        version = mqtt.CallbackAPIVersion.VERSION2
        return mqtt.Client(version, client_id="device", protocol=mqtt.MQTTv5)

    with node(tmp_path) as first:
        kept = mqtt.Properties(mqtt.PacketTypes.CONNECT)
        kept.SessionExpiryInterval = 3600
        device = client()
        subscribed = []
        device.on_subscribe = lambda *_: subscribed.append(1)
        device.connect("127.0.0.1", first.ports["mqtt_port"], properties=kept, clean_start=True)
        device.subscribe("news", 1)
        while not subscribed:
            device.loop(1)
        device.disconnect()
        device.loop(1)
        sender = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        sender.connect("127.0.0.1", first.ports["mqtt_port"])
        sender.loop_start()
        for number in range(MESSAGES):
            sender.publish("news", b"%d" % number * 500, 1).wait_for_publish(20)
        sender.disconnect()
        sender.loop_stop()
        first.stop()
    (session,) = [each for each in state(tmp_path).state.partitions if each.segments]
    damage(tmp_path, session.partition)
    with node(tmp_path) as running:
        device = client()
        told: list[tuple[int, str]] = []

        def hear(_client: Any, _data: Any, _flags: Any, reason: Any, properties: Any) -> None:
            told.append((reason.value, getattr(properties, "ReasonString", "")))

        # In CONNACK if it is met at once, else in DISCONNECT.
        device.on_connect = device.on_disconnect = hear
        device.connect("127.0.0.1", running.ports["mqtt_port"], properties=kept, clean_start=False)
        while not any(value >= 0x80 for value, _ in told):
            device.loop(1)
        value, text = next(each for each in told if each[0] >= 0x80)
        assert value == 0x83
        assert "is damaged at byte" in text
        assert running.stop() == 0


def test_a_damaged_journal_is_skipped_by_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node(tmp_path) as first:
        fill(first, "orders")
        first.stop()
    epoch = state(tmp_path).first_epoch
    path = tmp_path / "data" / "journal" / f"{epoch:016x}.journal"
    content = bytearray(path.read_bytes())
    content[4096 + 60] ^= 1
    path.write_bytes(content)
    with pytest.raises(AssertionError, match="can't be read"), node(tmp_path):
        pass
    with pytest.raises(SystemExit) as ended:
        main(["storage", "skip-entry", "--yes", "--data-dir", str(tmp_path / "data")])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "are lost" in said
    assert f"aside/journal/{epoch:016x}.journal" in said
    with node(tmp_path) as running:
        assert count(running, "orders", MESSAGES - 2) >= MESSAGES - 2
        running.stop()


def test_without_snapshots_nothing_is_removed_and_a_command_rebuilds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node(tmp_path) as first:
        fill(first, "orders", "other")
        first.stop()
    for path in (tmp_path / "data" / "snapshots").iterdir():
        content = bytearray(path.read_bytes())
        content[60] ^= 1
        path.write_bytes(content)
    before = sorted(path.name for path in (tmp_path / "data" / "segments").iterdir())
    with pytest.raises(AssertionError, match="no snapshot can be read"), node(tmp_path):
        pass
    assert sorted(path.name for path in (tmp_path / "data" / "segments").iterdir()) == before
    with pytest.raises(SystemExit) as ended:
        main(["storage", "rebuild", "--yes", "--data-dir", str(tmp_path / "data")])
    assert not ended.value.code
    assert f"/ orders: {MESSAGES} messages" in capsys.readouterr().out
    with node(tmp_path) as running:
        assert count(running, "orders") == MESSAGES
        assert count(running, "other") == MESSAGES
        running.stop()
