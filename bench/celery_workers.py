"""Celery on BraidMQ beside Celery on RabbitMQ: ``python -m bench.celery_workers``.

A worker of one process (prefork 1) on either broker does tasks that do nothing, Celery's defaults
otherwise. Both brokers and workers are up; one is under load at a time, in turns.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from bench.amqp import braidmq
from bench.harness import Benchmark, Context, Measure, alternate, at_least, main, paired_ratio
from bench.rabbitmq import rabbitmq

TASKS = Path(__file__).parent / "tasks"
"""Apart: beside ``bench/amqp.py`` the package ``amqp`` could not be imported."""

PROGRAM = """
import json, sys, time
from celery_tasks import answer, nothing
for line in sys.stdin:
    began = time.perf_counter()
    for _ in range(int(line)):
        nothing.delay()
    published = time.perf_counter()
    # There is one process, which takes them in order: all others are done when this is.
    assert answer.delay().get(timeout=300) == 42
    print(json.dumps([published - began, time.perf_counter() - began]), flush=True)
"""


class Client:
    """A program that publishes as many tasks as it is told, and says how long that took, and how
    long until they were done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, tasks: int) -> tuple[float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(tasks, file=self._process.stdin, flush=True)
        published, done = json.loads(self._process.stdout.readline())
        return published, done


@contextmanager
def celery(url: str) -> Iterator[Client]:
    """A worker, and a client of it."""
    environment = os.environ | {"BENCH_BROKER": url.replace("amqp:", "pyamqp:") + "/"}
    start = partial(subprocess.Popen, cwd=TASKS, env=environment, text=True)
    flags = ["-A", "celery_tasks", "worker", "-P", "prefork", "-c", "1", "-l", "WARNING"]
    with ExitStack() as stack:
        worker = start(
            [sys.executable, "-m", "celery", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(worker.wait)
        stack.callback(worker.terminate)
        client = start(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        stack.callback(client.wait)
        stack.callback(client.kill)
        yield Client(client)


def throughput(context: Context) -> Iterator[Measure]:
    tasks = context.size(5000, 500)
    with ExitStack() as stack:
        root = context.directory()
        clients = {
            name: stack.enter_context(celery(stack.enter_context(broker(root / name))))
            for name, broker in (("braidmq", braidmq), ("rabbitmq", rabbitmq))
        }
        for client in clients.values():
            client.run(100)  # until its worker is there, and everything is declared
        publishing: dict[str, list[float]] = {name: [] for name in clients}

        def one(name: str) -> float:
            published, done = clients[name].run(tasks)
            publishing[name].append(tasks / published)
            print(f"    {name}: {tasks / done:,.0f} tasks/s", file=sys.stderr, flush=True)
            return tasks / done

        done = alternate({name: partial(one, name) for name in clients}, context.rounds(5, 2))
    for what, found, bar in (
        ("empty tasks published and done", done, at_least(1)),
        ("empty tasks published", publishing, None),
    ):
        ours, theirs = found["braidmq"], found["rabbitmq"]
        yield Measure(
            what,
            median(ours),
            "tasks/s",
            bar,
            ratio=paired_ratio(ours, theirs),
            baseline=median(theirs),
            against="RabbitMQ",
        )


BENCHMARKS: dict[str, Benchmark] = {"throughput": throughput}


if __name__ == "__main__":
    main("celery_workers", BENCHMARKS)
