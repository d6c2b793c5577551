"""Ids of requests, in answers and in the log; who changed what."""

import re

import httpx
from http_api import Api


def test_the_reference_and_the_document_need_no_login(api: Api) -> None:
    stranger = httpx.Client(base_url=api.node.http_url)
    with stranger:
        docs = stranger.get("/docs")
        assert docs.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in docs.headers["content-security-policy"]
        assert 'id="publish"' in docs.text
        assert stranger.get("/openapi.json").json()["info"]["title"] == "BraidMQ"
        assert stranger.head("/docs").status_code == 200
        assert stranger.get("/v1/topics").status_code == 401


def test_every_answer_has_an_id(api: Api) -> None:
    first, second = (api.call("GET", "/v1/topics").headers["x-request-id"] for _ in range(2))
    assert first != second
    for path in ("/v1/topics", "/v1/nothing", "/health", "/docs", "/openapi.json"):
        answer = api.call("GET", path, headers={"X-Request-Id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
    for strange in ("x" * 129, "", "caf\u00e9".encode()):
        answer = api.call("GET", "/health", headers={"X-Request-Id": strange})
        assert re.fullmatch(r"[0-9a-f]{8}-\d+", answer.headers["x-request-id"])


def test_changes_are_logged_with_who_made_them(api: Api) -> None:
    topic = api.topic(partitions=1)
    password = {"password": "hunter-22", "tags": []}
    path = f"/v1/users/user-of-{topic}"
    api.ok("PUT", path, password, headers={"X-Request-Id": f"put-{topic}"})
    line = api.node.wait_for_log("request_id=put-" + topic)
    assert "user=guest" in line
    assert f'request="PUT {path}"' in line
    assert "hunter-22" not in line
    api.publish(topic, {"value": "x"})
    api.ok("GET", f"/v1/topics/{topic}")
    api.fails(404, "unknown-topic", "DELETE", f"/v1/topics/{topic}-no")
    api.ok("POST", f"/v1/topics/{topic}/purge", headers={"X-Request-Id": "purge-" + topic})
    api.node.wait_for_log("request_id=purge-" + topic)
    of_topic = [each for each in api.node.lines if f"/v1/topics/{topic}" in each]
    assert [re.findall('request="([A-Z]+)', each) for each in of_topic] == [["PUT"], ["POST"]]
