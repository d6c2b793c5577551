"""Leases: the broker keeps what a query has still to read.

A stream's driver holds one and moves it on with every batch. A batch query has nobody who knows
when it is over, so its lease has as many parts as the query has splits: whoever reads one keeps the
lease alive meanwhile, and says when the part is done.
"""

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace

from braidmq.model.errors import BraidError, NotFound
from braidmq.pipeline.broker import Broker, describe_logs
from braidmq.pipeline.offsets import Offsets
from braidmq.pipeline.options import SourceOptions

logger = logging.getLogger(__name__)

SIGNS_PER_LEASE = 3
"""Signs of life within the time a lease lives."""

IMPATIENT_S = 1.0
"""A sign of life that does not get through is given again with the next one."""


def new_lease_name(kind: str) -> str:
    return f"spark-{kind}-{uuid.uuid4().hex[:12]}"


def hold(
    broker: Broker,
    name: str,
    offsets: Offsets,
    options: SourceOptions,
    *,
    holder: str,
    parts: int = 0,
) -> None:
    """Of topics and partitions that are gone there is nothing to keep."""
    body = {"ttl_ms": options.lease_s * 1000, "holder": holder, "parts": parts}
    while True:
        body["positions"] = [
            {"topic": topic, "partition": number, "offset": at}
            for topic, partitions in offsets.items()
            for number, at in partitions.items()
        ]
        try:
            broker.send("PUT", "leases", name, body=body)
        except NotFound:
            present = _present(broker, offsets)
            if present == offsets:
                raise
            offsets = present
        else:
            return


def _present(broker: Broker, offsets: Offsets) -> Offsets:
    logs, _ = describe_logs(broker, list(offsets), segments=False)
    known = {topic: {each.partition for each in log.partitions} for topic, log in logs.items()}
    return {
        topic: {number: at for number, at in offsets[topic].items() if number in partitions}
        for topic, partitions in known.items()
    }


def _say(name: str, options: SourceOptions, what: Callable[[Broker], object]) -> None:
    try:
        with Broker(replace(options, retry_s=IMPATIENT_S)) as broker:
            what(broker)
    except BraidError as error:
        logger.info("lease %s: %s", name, error)


class _Signs:
    """A thread that gives signs of life until it is told that all is over."""

    def __init__(self, name: str, options: SourceOptions) -> None:
        self._name = name
        self._every_s = options.lease_s / SIGNS_PER_LEASE
        self._options = options
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            _say(
                self._name,
                self._options,
                lambda broker: broker.send("POST", "leases", self._name, "renew"),
            )

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


class SplitLease:
    """While one split of a batch query is read."""

    def __init__(self, name: str, part: int, options: SourceOptions) -> None:
        self._name = name
        self._part = part
        self._options = options
        self._signs: _Signs | None = None

    def __enter__(self) -> None:
        if self._name:
            self._signs = _Signs(self._name, self._options)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._signs is None:
            return
        self._signs.stop()
        # A task that failed is tried again. One that is closed early has all it wanted.
        if kind is None or kind is GeneratorExit:
            body = {"finished": [self._part]}
            path = ("leases", self._name, "renew")
            _say(
                self._name,
                self._options,
                lambda broker: broker.send("POST", *path, body=body),
            )


class StreamLease:
    """While a stream runs, in the process that plans its batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._name = new_lease_name("stream")
        self._signs: _Signs | None = None

    def move(self, broker: Broker, offsets: Offsets) -> None:
        holder = f"Spark stream of {self._options.described}"
        hold(broker, self._name, offsets, self._options, holder=holder)
        if self._signs is None:
            self._signs = _Signs(self._name, self._options)

    def end(self) -> None:
        self.abandon()
        _say(self._name, self._options, lambda broker: broker.send("DELETE", "leases", self._name))

    def abandon(self) -> None:
        """Give no more signs of life."""
        if self._signs is not None:
            self._signs.stop()
            self._signs = None
