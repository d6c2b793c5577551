"""The Celery application that the tests and their workers share."""

import importlib
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, Task

app = Celery("tasks", broker=os.environ["CELERY_BROKER"], backend=os.environ["CELERY_BACKEND"])
app.conf.update(
    task_default_queue=os.environ["CELERY_QUEUE"],
    task_queue_max_priority=10,
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    worker_send_task_events=True,
    broker_connection_retry_on_startup=True,
    result_chord_retry_interval=0.1,
)

if queue_type := os.environ.get("CELERY_QUEUE_TYPE"):
    app.conf.update(task_default_queue_type=queue_type, task_queue_max_priority=None)
for module in os.environ.get("CELERY_IMPORTS", "").split():
    importlib.import_module(module)

# Not shared: the tests import this module for several applications.
task = partial(app.task, shared=False)

released = threading.Event()


@task
def add(x: int, y: int) -> int:
    return x + y


@task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task(bind=True, max_retries=5)
def third_time_lucky(self: Task) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.01)
    return int(self.request.retries)


@task
def hold() -> str:
    """Runs until ``release`` does: they share a process."""
    assert released.wait(30)
    released.clear()
    return "held"


@task
def release() -> None:
    released.set()


@task
def write_down(path: str, word: str) -> None:
    with Path(path).open("a") as file:
        file.write(word + "\n")


@task(bind=True)
def about_itself(self: Task) -> dict[str, Any]:
    info = self.request.delivery_info
    return {"priority": info["priority"], "redelivered": info["redelivered"]}
