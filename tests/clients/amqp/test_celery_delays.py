"""Celery's tasks with an ETA: they must not keep a worker from the others, and may wait at the
broker. With the oldest kombu we promise and the one we develop with; all of them by
``CELERY_VERSIONS=all`` (``make foreign``)."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from python_packages import installed
from test_celery import HERE, WAIT_S, celery_worker, settings

from braidmq.testing.live import LiveNode

OLDEST = "celery==5.3.6", "kombu==5.3.7"
OURS: tuple[str, ...] = ()
"""Those we develop with."""
BETWEEN = (
    ("celery==5.4.0", "kombu==5.4.2"),
    ("celery==5.5.3", "kombu==5.5.4"),
    ("celery==5.6.3", "kombu==5.6.2"),
    ("celery==5.7.0", "kombu==5.7.0"),
)
VERSIONS = [OLDEST, OURS, *(BETWEEN if os.environ.get("CELERY_VERSIONS") == "all" else ())]
EXAMPLES = HERE.parents[2] / "examples" / "celery"


@pytest.fixture(
    scope="module", params=VERSIONS, ids=lambda each: " ".join(each).replace("==", " ") or "ours"
)
def packages(request: pytest.FixtureRequest) -> str:
    """What goes before the packages we develop with."""
    return str(installed(*request.param)) if request.param else ""


@contextmanager
def publishing(environment: dict[str, str], program: str, *flags: str) -> Iterator[str]:
    """What a program says that publishes tasks, while a worker of the same version is there."""
    with celery_worker("w@test", environment, "-P", "prefork", "-c", "1", *flags):
        done = subprocess.run(
            [sys.executable, "-c", f"import celery_tasks as tasks\n{program}"],
            cwd=HERE,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
        )
        assert not done.returncode, done.stderr
        yield done.stdout


def test_tasks_with_an_eta_do_not_block_a_worker(node: LiveNode, packages: str, name: str) -> None:
    """For each that the worker holds kombu asks for one more: of a consumer that is there."""
    environment = settings(node, "rpc://", name) | {"PYTHONPATH": packages}
    program = f"""
held = [tasks.fail.apply_async(("too early",), countdown=3600) for _ in range(30)]
print(tasks.add.delay(20, 22).get(timeout={WAIT_S}))
print(len(tasks.app.control.inspect(timeout={WAIT_S}).scheduled()["w@test"]))
"""
    with publishing(environment, program) as said:
        assert said.split() == ["42", "30"]


def test_tasks_with_an_eta_wait_at_the_broker(node: LiveNode, packages: str, name: str) -> None:
    """By the recipe of docs/celery.md: the worker has none of those that are not due."""
    path = os.pathsep.join(filter(None, (packages, str(EXAMPLES))))
    environment = settings(node, "rpc://", name) | {"PYTHONPATH": path}
    environment["CELERY_IMPORTS"] = "eta_at_the_broker"
    program = f"""
import time
held = [tasks.fail.apply_async(("too early",), countdown=3600) for _ in range(30)]
began = time.time()
late = tasks.add.apply_async((1, 1), countdown=1)
print(tasks.add.delay(20, 22).get(timeout={WAIT_S}))
print(late.get(timeout={WAIT_S}), time.time() - began >= 1)
print(tasks.third_time_lucky.delay().get(timeout={WAIT_S}))
print(tasks.app.control.inspect(timeout={WAIT_S}).scheduled()["w@test"])
with tasks.app.connection_for_read() as connection:
    print(connection.default_channel.queue_declare({name!r}, passive=True).message_count)
"""
    with publishing(environment, program) as said:
        assert said.split() == ["42", "2", "True", "2", "[]", "0"]


def test_celery_delays_by_queues_of_its_own(node: LiveNode, name: str, tmp_path: Path) -> None:
    """For quorum queues: 28 of each, in which messages expire into the next."""
    environment = settings(node, "rpc://", name) | {"CELERY_QUEUE_TYPE": "quorum"}
    program = f"""
import time
began = time.time()
late = tasks.add.apply_async((1, 1), countdown=3)
print(tasks.add.delay(20, 22).get(timeout={WAIT_S}))
print(late.get(timeout={WAIT_S}), time.time() - began >= 2)
"""
    with publishing(environment, program) as said:
        assert said.split() == ["42", "2", "True"]
