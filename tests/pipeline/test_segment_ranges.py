"""Segments over HTTP, byte by byte what is on disk."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from braid_topics import Topics, wait_until

from braidmq.api.resources.bulk import requested
from braidmq.model.errors import BadRequest
from braidmq.pipeline.broker import Broker
from braidmq.pipeline.options import BrokerOptions
from braidmq.testing.live import free_ports


@pytest.fixture(scope="module")
def segment(topics: Topics) -> tuple[str, Path]:
    topic = topics.create(partitions=1)
    topics.fill(topic, 4000)
    wait_until(lambda: topics.sealed(topic) > 0)
    log = topics.log(topic)
    found = next(each for each in log["partitions"][0]["segments"] if each["sealed"])
    return f"/v1/topics/{topic}/segments/{found['name']}", Path(log["directory"]) / found["name"]


def test_all_of_a_segment_its_index_and_its_keys(topics, segment):
    url, path = segment
    whole = topics.api.get(url)
    assert (whole.status_code, whole.content) == (200, path.read_bytes())
    assert whole.headers["accept-ranges"] == "bytes"
    index = topics.api.get(url.removesuffix(".segment") + ".index")
    assert index.content == path.with_suffix(".index").read_bytes()
    keys = topics.api.get(url.removesuffix(".segment") + ".keys")
    assert keys.content == path.with_suffix(".keys").read_bytes()


def test_a_segment_without_keys_has_no_filter(topics):
    topic = topics.create(partitions=1)
    topics.publish(topic, [{"value": "x" * 200}] * 4000)
    wait_until(lambda: topics.sealed(topic) > 0)
    name = topics.log(topic)["partitions"][0]["segments"][0]["name"].removesuffix(".segment")
    refused = topics.api.get(f"/v1/topics/{topic}/segments/{name}.keys")
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown-segment")


@pytest.mark.parametrize(("asked", "part"), [("5-99", (5, 100)), ("100-", (100, None))])
def test_a_range(topics, segment, asked, part):
    url, path = segment
    data = path.read_bytes()
    found = topics.api.get(url, headers={"Range": f"bytes={asked}"})
    assert (found.status_code, found.content) == (206, data[part[0] : part[1]])
    stop = part[1] or len(data)
    assert found.headers["content-range"] == f"bytes {part[0]}-{stop - 1}/{len(data)}"


def test_ranges_that_cannot_be(topics, segment):
    url, path = segment
    beyond = topics.api.get(url, headers={"Range": f"bytes={path.stat().st_size}-"})
    assert beyond.status_code == 400
    with pytest.raises(BadRequest):
        requested("bytes=5-3", 10)
    # Others than one plain range may be ignored, and are.
    assert requested("bytes=0-1,4-5", 10) == (0, 10, 200)
    assert requested("lines=1-2", 10) == (0, 10, 200)
    assert requested("bytes=2-99", 10) == (2, 10, 206)


@contextmanager
def cutting(port: int, after: int) -> Iterator[tuple[str, list[int]]]:
    """A way to the node that breaks off after so many bytes of each answer; and what each had."""
    carried: list[int] = []

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as node:
            node.sendall(client.recv(65536))
            left = after
            while left and (data := node.recv(min(left, 65536))):
                client.sendall(data)
                left -= len(data)
            carried.append(after - left)

    def accept() -> None:
        while True:
            try:
                serve(listener.accept()[0])
            except OSError:
                return

    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield "http://{}:{}".format(*listener.getsockname()), carried
        listener.shutdown(socket.SHUT_RDWR)


def test_a_range_goes_on_where_its_connection_was_cut(topics, segment):
    url, path = segment
    data = path.read_bytes()
    _, _, _, topic, _, name = url.split("/")
    after = len(data) // 4
    with (
        cutting(topics.node.ports["http_port"], after) as (way, carried),
        Broker(BrokerOptions(url=way, retry_s=20), sleep=lambda seconds: None) as broker,
    ):
        found = broker.read_range(("topics", topic, "segments", name), 0, len(data))
    assert found == data
    # Each byte came once: what was carried besides are the heads of the answers.
    assert len(carried) >= 4
    assert sum(carried) < len(data) + 2000 * len(carried)
