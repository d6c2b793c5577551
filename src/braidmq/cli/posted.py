"""Messages published over HTTP, for who logs in with a token: AMQP takes none."""

import base64
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from queue import Empty, Queue
from threading import Thread
from typing import Any

from braidmq.cli.api import Api
from braidmq.model.errors import BraidError, Kind

BATCH_MESSAGES = 200
BATCH_BYTES = 4 * 2**20
"""A request is no larger, but for one value: the node takes 16 MiB, and base64 adds a third."""

Message = dict[str, Any]


class Full(BraidError):
    kind = Kind.REFUSED
    code = "topic-full"
    remedy = "Consume from it, raise its limit, or let it drop its oldest messages"


class Unroutable(BraidError):
    kind = Kind.REFUSED
    code = "unroutable"
    remedy = "Bind a topic to the exchange before publishing to it"


class Posting:
    """As a producer of the client: what comes while a batch is on its way is the next one."""

    def __init__(
        self, api: Api, topic: str, exchange: str, on_error: Callable[[BraidError], None]
    ) -> None:
        """``exchange``: publish through it, with the topic as the routing key."""
        self._api = api
        self._topic = topic
        self._exchange = exchange
        self._on_error = on_error
        self._failed: BraidError | None = None
        self._waiting: Queue[tuple[Message, int]] = Queue(BATCH_MESSAGES)
        # A daemon: whoever leaves by an exception does not wait for it.
        Thread(target=self._run, daemon=True).start()

    def put(self, value: bytes, metadata: Message) -> None:
        self._waiting.put((_message(value, metadata), len(value)))

    def flush(self) -> None:
        """Until all is on the node's disk, or refused."""
        self._waiting.join()

    def _run(self) -> None:
        while True:
            message, batch_bytes = self._waiting.get()
            batch = [message]
            with suppress(Empty):
                while batch_bytes < BATCH_BYTES:
                    message, size = self._waiting.get_nowait()
                    batch.append(message)
                    batch_bytes += size
            self._post(batch)
            for _ in batch:
                self._waiting.task_done()

    def _post(self, messages: list[Message]) -> None:
        refused = len(messages)
        if self._failed is None:
            try:
                refused = self._refused(messages)
            except BraidError as error:
                self._failed = error
        for _ in range(refused):
            assert self._failed is not None
            self._on_error(self._failed)

    def _refused(self, messages: list[Message]) -> int:
        """How many of them were; ``_failed`` says why."""
        body: dict[str, Any] = {"messages": messages}
        if not self._exchange:
            full = self._api.post("topics", self._topic, "messages", "batch", body=body)["refused"]
            if full:
                self._failed = Full(f"topic {self._topic!r} is full")
            return len(full)
        body["routing_key"] = self._topic
        routed = self._api.post("exchanges", self._exchange, "messages", body=body)
        where = f"exchange {self._exchange!r} with routing key {self._topic!r}"
        if routed["unrouted"]:
            self._failed = Unroutable(f"nobody gets what is published to {where}")
        elif routed["refused"]:
            self._failed = Full(f"a topic behind {where} is full")
        return len(routed["unrouted"]) + len(routed["refused"])


def _message(value: bytes, metadata: Message) -> Message:
    message = dict(metadata)
    if isinstance(due := message.get("deliver_at"), datetime):
        message["deliver_at"] = int(due.timestamp() * 1000)
    try:
        return {"value": value.decode(), **message}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode(), **message}
