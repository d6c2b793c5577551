"""Bulk reading: what a log is made of, its bytes, and leases on it."""

from typing import Any

import httpx
import pytest
from http_api import Api

from braidmq.record.batch import RecordBatch


def values(data: bytes) -> list[bytes | None]:
    return [record.value for record in RecordBatch.scan(data).records()]


def records(api: Api, topic: str, **query: Any) -> httpx.Response:
    return api.call("GET", f"/v1/topics/{topic}/partitions/0/records", params=query)


def test_records_come_as_a_segment_would_store_them(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.publish(topic, *({"value": f"v{at}"} for at in range(50)))
    log = api.ok("GET", f"/v1/topics/{topic}/log")
    (partition,) = log["partitions"]
    assert (partition["start_offset"], partition["end_offset"]) == (0, 50)
    assert partition["stable_offset"] == 50
    found = records(api, topic, start=10, end=20)
    assert values(found.content) == [b"v%d" % at for at in range(10, 20)]
    assert [each.offset for each in RecordBatch.scan(found.content).records()] == [*range(10, 20)]
    assert (found.headers["braid-next-offset"], found.headers["braid-start-offset"]) == ("20", "0")


def test_pages_of_records_are_bounded_and_follow_each_other(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.publish(topic, *({"value": "x" * 100} for _ in range(100)))
    at, seen = 0, 0
    while at < 100:
        page = records(api, topic, start=at, end=10**9, bytes_max=1000)
        assert len(page.content) < 2000
        seen += len(values(page.content))
        at = int(page.headers["braid-next-offset"])
    assert seen == 100
    assert records(api, topic, start=100, end=200).content == b""


def test_places_that_are_not_there(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.fails(400, "bad-position", "GET", f"/v1/topics/{topic}/partitions/0/records?start=1&end=2")
    path = f"/v1/topics/{topic}/partitions/7/records?start=0&end=2"
    api.fails(404, "unknown-partition", "GET", path)
    api.fails(404, "unknown-segment", "GET", f"/v1/topics/{topic}/segments/none.segment")
    api.fails(404, "unknown-topic", "GET", "/v1/topics/none/log")


def test_times(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.publish(topic, {"value": "a"})
    (at,) = api.ok("GET", f"/v1/topics/{topic}/log/times?time_ms=0")
    assert at == {"partition": 0, "offset": 0, "end": 0}
    (at,) = api.ok("GET", f"/v1/topics/{topic}/log/times?time_ms=99999999999999")
    assert at == {"partition": 0, "offset": 1, "end": 1}


def test_the_log_is_for_those_who_may_read_the_topic(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.ok("PUT", "/v1/users/stranger", {"password": "secret-of-stranger"})
    body = {"positions": [{"topic": topic, "partition": 0, "offset": 0}]}
    api.ok("PUT", "/v1/leases/kept", body)
    stranger = httpx.BasicAuth("stranger", "secret-of-stranger")
    for method, path, json in (
        ("GET", f"/v1/topics/{topic}/log", None),
        ("GET", f"/v1/topics/{topic}/log/times?time_ms=1", None),
        ("GET", f"/v1/topics/{topic}/partitions/0/records?start=0&end=1", None),
        ("GET", f"/v1/topics/{topic}/segments/x.segment", None),
        ("GET", "/v1/leases", None),
        ("PUT", "/v1/leases/mine", body),
        ("DELETE", "/v1/leases/kept", None),
    ):
        assert api.client.request(method, path, json=json, auth=stranger).status_code == 403, path
    api.ok("DELETE", "/v1/leases/kept")


@pytest.mark.parametrize(
    ("position", "code"),
    [
        ({"topic": "no-topic", "partition": 0, "offset": 0}, "unknown-topic"),
        ({"partition": 9, "offset": 0}, "unknown-partition"),
    ],
)
def test_leases_on_what_is_not_there(api: Api, position: dict[str, Any], code: str) -> None:
    topic = api.topic(partitions=1)
    body = {"positions": [{"topic": topic, **position}]}
    api.fails(404, code, "PUT", "/v1/leases/new", body)
    api.fails(404, "unknown-lease", "POST", "/v1/leases/new/renew", {})
    api.fails(404, "unknown-lease", "DELETE", "/v1/leases/new")


def test_a_lease_tells_how_far_the_work_is(api: Api) -> None:
    topic = api.topic(partitions=1)
    body = {"positions": [{"topic": topic, "partition": 0, "offset": 0}], "parts": 2}
    api.ok("PUT", "/v1/leases/work", body)
    api.ok("POST", "/v1/leases/work/renew", {"finished": [1]})
    assert api.ok("GET", "/v1/leases/work")["finished"] == 1
    api.ok("POST", "/v1/leases/work/renew", {"finished": [0]})
    api.fails(404, "unknown-lease", "GET", "/v1/leases/work")


def test_committing_for_a_reader_with_a_place_of_its_own(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.publish(topic, *({"value": "v"} for _ in range(5)))
    path = f"/v1/topics/{topic}/subscriptions/report"
    api.ok("PUT", path, {})
    api.ok("POST", f"{path}/commit", {"offsets": [{"partition": 0, "offset": 3}]})
    assert api.ok("GET", path)["lag"] == 2
    over = {"offsets": [{"partition": 0, "offset": 9}]}
    api.fails(400, "bad-position", "POST", f"{path}/commit", over)


def test_logs_of_many_topics_in_one_answer(api: Api) -> None:
    first, second = api.topic(partitions=2), api.topic(partitions=1)
    api.publish(second, {"value": "a"})
    found = api.ok("POST", "/v1/logs", {"topics": [first, second, "none", first]})
    assert found["missing"] == ["none"]
    assert found["logs"] == [api.ok("GET", f"/v1/topics/{each}/log") for each in (first, second)]
    api.ok("PUT", "/v1/users/half", {"password": "secret-of-half"})
    rights = {"configure": "", "write": "", "read": f"^{first}$"}
    api.ok("PUT", "/v1/permissions/%2F/half", rights)
    half = httpx.BasicAuth("half", "secret-of-half")
    for topics, status in (([first], 200), ([first, second], 403), ([second], 403)):
        body = {"topics": topics}
        assert api.client.post("/v1/logs", json=body, auth=half).status_code == status


def test_a_topic_that_is_created_again_has_another_log(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.publish(topic, *({"value": "a"} for _ in range(3)))
    before = api.ok("GET", f"/v1/topics/{topic}/log")["id"]
    assert records(api, topic, start=0, end=3).headers["braid-log-id"] == before
    api.ok("DELETE", f"/v1/topics/{topic}")
    api.ok("PUT", f"/v1/topics/{topic}", {"settings": {"partitions": 1}})
    api.publish(topic, *({"value": "b"} for _ in range(3)))
    after = api.ok("GET", f"/v1/topics/{topic}/log")["id"]
    assert after != before
    path = f"/v1/topics/{topic}/subscriptions/g"
    api.ok("PUT", path, {})
    body = {"offsets": [{"partition": 0, "offset": 2}], "log": before}
    api.fails(409, "another-log", "POST", f"{path}/commit", body)
    assert api.ok("GET", path)["partitions"][0]["committed"] == 0
    api.ok("POST", f"{path}/commit", body | {"log": after})
    assert api.ok("GET", path)["partitions"][0]["committed"] == 2
