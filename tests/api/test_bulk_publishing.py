"""Records from outside: taken whole, or refused before anything is written."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from braidmq.record.batch import RecordBatch
from braidmq.testing.live import live_node


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    data: Path = tmp_path_factory.mktemp("node")
    with (
        live_node(data, amqp_port=0, mqtt_port=0, ws_port=0) as node,
        httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=60) as client,
    ):
        client.put("/v1/topics/t", json={"settings": {"partitions": 2}}).raise_for_status()
        yield client
        assert not node.complaints


def records(*values: bytes, **more: int) -> bytes:
    batch = RecordBatch()
    for value in values:
        batch.append(value, timestamp_ms=1_600_000_000_000, **more)
    return bytes(memoryview(batch))


def ends(api: httpx.Client) -> list[int]:
    return [each["end_offset"] for each in api.get("/v1/topics/t/log").json()["partitions"]]


def test_they_are_taken_with_their_times(api: httpx.Client) -> None:
    answer = api.post("/v1/topics/t/records?partition=1", content=records(b"a", b"b"))
    assert (answer.status_code, answer.json()["count"]) == (201, 2)
    first = answer.json()["partitions"][0]
    assert first["partition"] == 1
    url = f"/v1/topics/t/partitions/1/messages/{first['first_offset']}"
    message = api.get(url).json()
    assert (message["value"], message["timestamp_ms"]) == ("a", 1_600_000_000_000)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing like it",
        records(b"a")[:-1],
        records(b"a") + b"\0" * 8,
        records(b"a") + records(b"b"),
        records(b"a", flags=1),
        records(b"a").replace(b"a", b"b"),
    ],
    ids=["none", "text", "cut", "zeros", "numbered twice", "a marker", "damaged"],
)
def test_bad_ones_change_nothing(api: httpx.Client, body: bytes) -> None:
    before = ends(api)
    answer = api.post("/v1/topics/t/records", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-records")
    assert ends(api) == before


def test_places_that_are_not_there(api: httpx.Client) -> None:
    assert api.post("/v1/topics/none/records", content=records(b"a")).status_code == 404
    assert api.post("/v1/topics/t/records?partition=9", content=records(b"a")).status_code == 404
