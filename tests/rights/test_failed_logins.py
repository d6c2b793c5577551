"""Refused log-ins are counted in every protocol, and logged as far as a person can read."""

import json
import logging
from collections import Counter
from pathlib import Path

import httpx
import pytest
from raw_client import RawClient
from raw_mqtt import RawMqtt
from rights_users import Rights

from braidmq import logs
from braidmq.security.failed_logins import FailedLogins
from braidmq.testing.live import live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.amqp.constants import PROTOCOL_HEADER, FrameKind

WRONG = "a-wrong-pass-word"


def attempt_amqp(rights: Rights) -> None:
    with RawClient(rights.node) as client:
        client.send(PROTOCOL_HEADER)
        client.expect(m.ConnectionStart)
        login = f"\0mallory\0{WRONG}".encode()
        client.method(0, m.ConnectionStartOk({}, "PLAIN", login))
        client.expect_end()


def attempt_mqtt(rights: Rights) -> None:
    with RawMqtt(rights.node) as client:
        client.connect(user_name="mallory", password=WRONG.encode())


def attempt_http(rights: Rights) -> None:
    assert rights.http.get("/v1/topics", auth=("mallory", WRONG)).status_code == 401


def attempt_token(rights: Rights) -> None:
    headers = {"Authorization": f"Bearer braid_00_{WRONG}"}
    assert httpx.get(f"{rights.node.http_url}/v1/topics", headers=headers).status_code == 401


ATTEMPTS = (
    (attempt_amqp, "amqp", "mallory"),
    (attempt_mqtt, "mqtt", "mallory"),
    (attempt_http, "http", "mallory"),
    (attempt_token, "http", ""),
)


def test_each_is_counted_and_logged(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text('[log]\nformat = "json"\n')
    with live_node(tmp_path / "data", config=config) as node, Rights(node) as rights:
        counts: Counter[str] = Counter()
        for attempt, protocol, user in ATTEMPTS:
            attempt(rights)
            line = json.loads(node.wait_for_log("login refused"))
            assert (line["protocol"], line["user"]) == (protocol, user)
            assert line["peer"].startswith("127.0.0.1")
            counts[protocol] += 1
            counted = f'braid_logins_refused_total{{protocol="{protocol}"}}'
            assert rights.metric(counted) == counts[protocol]
        node.stop()
        assert not any(WRONG in each for each in node.lines)


def test_asking_without_credentials_is_no_attempt(rights: Rights) -> None:
    before = rights.metric('braid_logins_refused_total{protocol="http"}')
    assert httpx.get(f"{rights.node.http_url}/v1/topics").status_code == 401
    assert rights.metric('braid_logins_refused_total{protocol="http"}') == before


def test_the_log_does_not_grow_with_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(logs, "monotonic", lambda: now_s)
    failed = FailedLogins()
    with caplog.at_level(logging.WARNING):
        for _ in range(5000):
            failed.note("amqp", "x" * 100_000, "10.0.0.1:5", "wrong")
        assert len(caplog.records) == logs.LINES_MAX
        assert all(len(each.user) < 100 for each in caplog.records)  # type: ignore[attr-defined]
        now_s += logs.WINDOW_S
        failed.note("mqtt", "y", "10.0.0.1:6", "wrong")
    assert failed.counts == {"amqp": 5000, "mqtt": 1}
    rest = caplog.records[logs.LINES_MAX]
    assert rest.count == 5000 - logs.LINES_MAX  # type: ignore[attr-defined]
    assert caplog.records[-1].user == "y"  # type: ignore[attr-defined]


SECRET = b"my-secret-body"


@pytest.mark.parametrize(
    "frame",
    [
        m.frame(FrameKind.BODY, 1, SECRET)[:-1] + b"\0",  # a wrong end marker
        m.frame(FrameKind.BODY, 1, b"\xff" + SECRET + b": {x}")[:-1] + b"\0",
        m.frame(4, 1, SECRET),  # no kind of frame
        m.frame(FrameKind.METHOD, 1, b"\0\x32\0\x0a" + b"\0\0\xc8" + SECRET),  # cut off
        m.frame(FrameKind.HEADER, 1, SECRET[:10]),
        m.frame(FrameKind.HEARTBEAT, 0, SECRET),
    ],
)
def test_the_log_has_nothing_of_a_frame_that_cannot_be_read(rights: Rights, frame: bytes) -> None:
    with rights.amqp() as client:
        client.send(frame)
        said = client.expect(m.ConnectionClose).reply_text
    line = rights.node.wait_for_log("connection error", "501")
    secrets = (SECRET.decode()[:8], ",".join(map(str, SECRET[:8])))
    # The peer is told what it sent, as RabbitMQ does.
    assert any(each in said for each in secrets)
    assert not any(each in line for each in secrets), line


def test_nor_of_a_login(rights: Rights) -> None:
    login = m.method_frame(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0" + SECRET))
    with RawClient(rights.node) as client:
        client.send(PROTOCOL_HEADER)
        client.expect(m.ConnectionStart)
        client.send(login[:-1] + b"\0")
        client.expect(m.ConnectionClose)
    line = rights.node.wait_for_log("connection error", "501")
    assert SECRET.decode() not in line
    assert ",".join(map(str, SECRET)) not in line
