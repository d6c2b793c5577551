"""Celery: tasks with an ETA or a countdown wait at the broker, not in the memory of a worker.

Import this where tasks are published: in the application's module, which its workers import, too.
"""

from datetime import datetime
from typing import Any

from celery.signals import before_task_publish


@before_task_publish.connect
def wait_at_the_broker(headers: dict[str, Any], **_: object) -> None:
    """The broker hands the task out when it is due; the worker need not look at the clock."""
    if headers.get("eta"):
        due = datetime.fromisoformat(headers["eta"])
        headers["x-deliver-at"] = int(due.timestamp() * 1000)
        headers["eta"] = None
    else:
        # Of a task that is tried again: it waited then.
        headers.pop("x-deliver-at", None)
