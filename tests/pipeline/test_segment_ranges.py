"""Segments over HTTP, byte by byte what is on disk."""

from pathlib import Path

import pytest
from braid_topics import Topics, wait_until

from braidmq.api.resources.bulk import requested
from braidmq.model.errors import BadRequest


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
