"""The tasks of ``bench.celery_workers``: they do nothing."""

import os

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend="rpc://")


@app.task(ignore_result=True)
def nothing() -> None:
    pass


@app.task
def answer() -> int:
    return 42
