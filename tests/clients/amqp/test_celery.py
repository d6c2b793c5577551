"""Celery: workers in processes of their own, results over ``rpc://``."""

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import kombu.pools
import pytest
from celery import chain, chord, group
from celery.events import EventReceiver

from braidmq.testing.live import LiveNode

HERE = Path(__file__).parent
WAIT_S = 30


@contextmanager
def celery_worker(
    name: str, environment: dict[str, str], *flags: str, survives: bool = False
) -> Iterator[None]:
    """A worker that is ready; it must stop on SIGTERM and never have lost the broker, unless it is
    one that ``survives`` that."""
    command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-n", name]
    process = subprocess.Popen(
        [*command, "--loglevel", "INFO", "--without-gossip", *flags],
        cwd=HERE,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if f"{name} ready." in line:
                ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(WAIT_S), "".join(lines)
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, "".join(lines)
        lost = [line for line in lines if "connection to broker lost" in line.lower()]
        assert survives or not lost
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


def settings(node: LiveNode, backend: str, queue: str) -> dict[str, str]:
    return {
        "CELERY_BROKER": f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}//",
        "CELERY_BACKEND": backend,
        "CELERY_QUEUE": queue,
    }


@contextmanager
def application(environment: dict[str, str]) -> Iterator[ModuleType]:
    """The application as its clients see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        for key, value in environment.items():
            patch.setenv(key, value)
        sys.modules.pop("celery_tasks", None)
        tasks = importlib.import_module("celery_tasks")
    try:
        yield tasks
    finally:
        if "rpc" in environment["CELERY_BACKEND"]:
            tasks.app.backend.result_consumer.stop()
        kombu.pools.reset()
        tasks.app.close()


@pytest.fixture(scope="module")
def tasks(node: LiveNode) -> Iterator[ModuleType]:
    """A worker of four threads, results over rpc."""
    environment = settings(node, "rpc://", "celery")
    with (
        celery_worker("main@test", environment, "-P", "threads", "-c", "4"),
        application(environment) as tasks,
    ):
        yield tasks


@pytest.fixture(scope="module")
def alone(node: LiveNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A worker that does one thing at a time, results in files."""
    results = tmp_path_factory.mktemp("results")
    environment = settings(node, f"file://{results}", "alone")
    with (
        celery_worker("alone@test", environment, "-P", "solo"),
        application(environment) as tasks,
    ):
        yield tasks


def test_a_task_and_its_result(tasks: ModuleType) -> None:
    assert tasks.add.delay(2, 3).get(timeout=WAIT_S) == 5


def test_an_error_comes_back(tasks: ModuleType) -> None:
    with pytest.raises(ValueError, match="as it should"):
        tasks.fail.delay("as it should").get(timeout=WAIT_S)


def test_a_chain(tasks: ModuleType) -> None:
    work = chain(tasks.add.s(1, 2), tasks.add.s(10), tasks.add.s(100))
    assert work().get(timeout=WAIT_S) == 113


def test_a_group(tasks: ModuleType) -> None:
    work = group(tasks.add.s(number, number) for number in range(200))
    assert work().get(timeout=WAIT_S) == [2 * number for number in range(200)]


def test_chords_are_what_the_rpc_backend_cannot_do(tasks: ModuleType) -> None:
    """Celery's own limit, with any broker: only another result backend has them."""
    work = chord([tasks.add.s(1, 1), tasks.add.s(2, 2)])
    with pytest.raises(NotImplementedError, match=r"rpc.*does not support chords"):
        work(tasks.total.s())


def test_a_chord_with_results_elsewhere(alone: ModuleType) -> None:
    """Its unlocking is a task that the broker brings back again and again until all is done."""
    work = chord(alone.add.s(number, number) for number in range(5))
    assert work(alone.total.s()).get(timeout=WAIT_S) == 20


def test_retries(tasks: ModuleType) -> None:
    assert tasks.third_time_lucky.delay().get(timeout=WAIT_S) == 2


def test_a_countdown(tasks: ModuleType) -> None:
    began = time.monotonic()
    assert tasks.add.apply_async((1, 1), countdown=0.3).get(timeout=WAIT_S) == 2
    assert time.monotonic() - began >= 0.3


def test_a_task_that_expired_is_not_run(tasks: ModuleType, tmp_path: Path) -> None:
    file = str(tmp_path / "words")
    expired = tasks.write_down.apply_async((file, "late"), countdown=0.2, expires=0.1)
    tasks.write_down.apply_async((file, "fine"), countdown=0.3).get(timeout=WAIT_S)
    with pytest.raises(Exception, match="expired"):
        expired.get(timeout=WAIT_S)
    assert Path(file).read_text() == "fine\n"


def test_priorities(alone: ModuleType, tmp_path: Path, name: str) -> None:
    """Tasks wait in a queue before the worker is told of it; the urgent ones come first."""
    file = str(tmp_path / "words")
    queue = alone.app.amqp.queues.select_add(name)
    alone.app.amqp.queues.deselect(name)
    with alone.app.connection_for_write() as connection:
        queue.bind(connection.default_channel).declare()
    results = [
        alone.write_down.apply_async((file, str(priority)), queue=name, priority=priority)
        for priority in (1, 9, 0, 5, 9, 3)
    ]
    alone.app.control.add_consumer(name, destination=["alone@test"], reply=True, timeout=WAIT_S)
    for result in results:
        result.get(timeout=WAIT_S)
    assert Path(file).read_text().split() == ["9", "9", "5", "3", "1", "0"]


def test_what_a_task_knows_of_its_delivery(tasks: ModuleType) -> None:
    result = tasks.about_itself.apply_async(priority=7).get(timeout=WAIT_S)
    assert result == {"priority": 7, "redelivered": False}


def test_remote_control(tasks: ModuleType) -> None:
    inspect = tasks.app.control.inspect(destination=["main@test"], timeout=WAIT_S)
    assert inspect.ping() == {"main@test": {"ok": "pong"}}
    held = tasks.hold.delay()
    while not (active := inspect.active()["main@test"]):
        pass
    assert [task["id"] for task in active] == [held.id]
    tasks.release.delay()
    assert held.get(timeout=WAIT_S) == "held"
    assert "celery_tasks.add" in inspect.registered()["main@test"]
    (queue,) = inspect.active_queues()["main@test"]
    assert queue["name"] == "celery"


def test_events(tasks: ModuleType) -> None:
    sent: list[Any] = []
    seen: list[str] = []

    class Receiver(EventReceiver):
        def on_consume_ready(self, *arguments: Any, **named: Any) -> None:
            super().on_consume_ready(*arguments, **named)
            sent.append(tasks.add.delay(20, 22))

        def succeeded(self, event: dict[str, Any]) -> None:
            if event["uuid"] == sent[0].id:
                seen.append(event["result"])
                self.should_stop = True

    with tasks.app.connection_for_read() as connection:
        receiver = Receiver(connection.default_channel, app=tasks.app)
        receiver.handlers["task-succeeded"] = receiver.succeeded
        receiver.capture(limit=None, timeout=WAIT_S, wakeup=True)
    assert seen == ["42"]
    assert sent[0].get(timeout=WAIT_S) == 42
