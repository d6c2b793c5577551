"""A live node and topics in it, as the tests of the pipeline need them."""

import itertools
import json
import pickle
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa

from braidmq.pipeline.source import BatchReader, BraidDataSource, StreamReader
from braidmq.testing.live import LiveNode

GUEST = ("guest", "guest")
_names = itertools.count()


class Topics:
    def __init__(self, node: LiveNode, api: httpx.Client) -> None:
        self.node = node
        self.api = api

    def create(self, partitions: int = 2, **settings: Any) -> str:
        name = f"topic-{next(_names)}"
        body = {"settings": {"partitions": partitions, **settings}}
        self.api.put(f"/v1/topics/{name}", json=body).raise_for_status()
        return name

    def publish(self, topic: str, messages: list[dict[str, Any]]) -> None:
        for first in range(0, len(messages), 1000):
            body = {"messages": messages[first : first + 1000]}
            answer = self.api.post(f"/v1/topics/{topic}/messages/batch", json=body)
            answer.raise_for_status()

    def fill(self, topic: str, count: int, size: int = 200) -> list[dict[str, Any]]:
        """Messages enough that a node with small files seals some segments."""
        messages = [
            {"value": f"{at}:".ljust(size, "x"), "key": f"key-{at % 7}"} for at in range(count)
        ]
        self.publish(topic, messages)
        return messages

    def log(self, topic: str) -> dict[str, Any]:
        answer = self.api.get(f"/v1/topics/{topic}/log")
        answer.raise_for_status()
        return answer.json()

    def sealed(self, topic: str) -> int:
        """How many segments of a topic are sealed."""
        partitions = self.log(topic)["partitions"]
        return sum(each["sealed"] for part in partitions for each in part["segments"])

    def leases(self) -> list[dict[str, Any]]:
        return self.api.get("/v1/leases").json()

    # --- the data source, without Spark ---

    def source(self, **options: Any) -> BraidDataSource:
        """Options as Spark gives them: names in small letters, values as text."""
        texts = {name.lower(): str(value) for name, value in options.items()}
        return BraidDataSource({"url": self.node.http_url, **texts})

    def batch_reader(self, **options: Any) -> BatchReader:
        source = self.source(**options)
        reader = source.reader(source.schema())
        assert isinstance(reader, BatchReader)
        return reader

    def stream_reader(self, **options: Any) -> StreamReader:
        source = self.source(**options)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        return reader

    def read(self, **options: Any) -> list[dict[str, Any]]:
        """Rows of a batch read, by partition and offset."""
        reader = self.batch_reader(**options)
        return rows(batch for part in reader.partitions() for batch in reader.read(part))


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def wait_until(condition, seconds: float = 30.0) -> None:
    """For what the node does in its own time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


# --- a stream, as Spark drives it ---


def through_json(offset: dict) -> dict:
    """As a checkpoint does."""
    return json.loads(json.dumps(offset))


def batch(reader: StreamReader, start: dict, end: dict) -> list[dict]:
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return rows(each for part in parts for each in reader.read(part))


def drain(reader: StreamReader, start: dict) -> tuple[dict, list[list[dict]]]:
    """Batches until there is nothing more."""
    batches = []
    while True:
        end = through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
        if end == start:
            return end, batches
        batches.append(batch(reader, start, end))
        reader.commit(end)
        start = end


def values(found: list[dict]) -> list[bytes]:
    return sorted(row["value"] for row in found)
