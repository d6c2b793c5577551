"""What is one user's is no other's, whatever patterns they have."""

from typing import Any

import pytest
from raw_mqtt import RawMqtt
from rights_users import Rights

from braidmq.wire.amqp import methods as m
from braidmq.wire.mqtt.constants import Reason

EVERYTHING = (".*", ".*", ".*")


@pytest.fixture(params=[(), EVERYTHING], ids=["without-patterns", "with-every-pattern"])
def other(rights: Rights, request: pytest.FixtureRequest) -> str:
    return rights.user(*request.param)


def refused(rights: Rights, user: str, method: str, path: str, body: Any = None) -> bool:
    answer = rights.as_user(user, method, path, body)
    return answer.status_code == 403 or answer.json()["code"] == "not-your-transaction"


def test_a_lease_holds_what_its_user_reads(rights: Rights, name: str, other: str) -> None:
    rights.ok("PUT", f"/v1/topics/{name}", {"settings": {"partitions": 1}})
    lease = {"positions": [{"topic": name, "partition": 0, "offset": 0}]}
    rights.ok("PUT", f"/v1/leases/{name}", lease)
    before = rights.ok("GET", f"/v1/leases/{name}")
    assert refused(rights, other, "PUT", f"/v1/leases/{name}", {"positions": [], "ttl_ms": 1000})
    assert refused(rights, other, "POST", f"/v1/leases/{name}/renew", {"finished": [0]})
    assert refused(rights, other, "DELETE", f"/v1/leases/{name}")
    assert refused(rights, other, "GET", f"/v1/leases/{name}")
    assert rights.ok("GET", f"/v1/leases/{name}") == before


def test_a_pipeline_is_stopped_and_forgotten_by_its_user(
    rights: Rights, name: str, other: str
) -> None:
    report = {"run": "1", "state": "running", "started_ms": 1}
    owner = rights.user(*EVERYTHING)
    path = f"/v1/pipelines/{name}"
    assert rights.as_user(owner, "PUT", path, report).is_success
    for method, end, body in (
        ("POST", "/stop", None),
        ("DELETE", "", None),
        ("PUT", "", report | {"run": "2"}),
        ("GET", "", None),
        ("GET", "/runs", None),
    ):
        assert refused(rights, other, method, path + end, body), (method, end)
    shown = rights.as_user(owner, "GET", path).json()
    assert (shown["run"], shown["stop_requested"], shown["user"]) == ("1", False, owner)
    # An administrator may, and it stays whose it is.
    assert [each["user"] for each in rights.ok("POST", f"{path}/stop")] == [owner]
    assert rights.as_user(owner, "PUT", path, report).json()["stop_requested"] is True


def test_a_member_is_not_evicted_by_its_id(rights: Rights, name: str) -> None:
    rights.ok("PUT", f"/v1/topics/{name}", {})
    owner, other = rights.user(*EVERYTHING), rights.user(*EVERYTHING)
    body = {"topics": [name], "member_id": "mia"}
    path = f"/v1/groups/{name}/members"
    joined = rights.as_user(owner, "POST", path, body).json()
    stolen = rights.as_user(other, "POST", path, body)
    assert (stolen.status_code, stolen.json()["code"]) == (403, "not-your-member")
    generation = {"generation": joined["generation"]}
    offsets = [{"topic": name, "partition": 0, "offset": 0}]
    for end, given in (
        ("heartbeat", generation),
        ("sync", generation),
        ("poll", generation),
        ("commit", {**generation, "offsets": offsets}),
    ):
        assert refused(rights, other, "POST", f"{path}/mia/{end}", given), end
    leave = f"{path}/mia?generation={joined['generation']}"
    assert refused(rights, other, "DELETE", leave)
    assert rights.as_user(owner, "POST", f"{path}/mia/heartbeat", generation).is_success
    # Its own user may come back under it, and its id is free once it is gone.
    again = rights.as_user(owner, "POST", path, body).json()
    left = f"{path}/mia?generation={again['generation']}"
    assert rights.as_user(owner, "DELETE", left).status_code == 204
    assert rights.as_user(other, "POST", path, body).status_code == 201


def test_templates_and_the_nodes_figures_are_not_for_everyone(rights: Rights, other: str) -> None:
    for path in ("/v1/templates", "/v1/templates/x", "/v1/overview", "/v1/policies/%2F"):
        assert refused(rights, other, "GET", path), path


def test_a_webhook_is_shown_to_who_may_change_it(rights: Rights, name: str) -> None:
    hook = "https://hooks.example.com/secret"
    settings = {"settings": {"dead_letter": {"alert_webhook": hook}}}
    rights.ok("PUT", f"/v1/topics/{name}", settings)
    reader, maker = rights.user("", "", f"^{name}$"), rights.user(f"^{name}$")
    assert hook not in rights.as_user(reader, "GET", f"/v1/topics/{name}").text
    assert hook in rights.as_user(maker, "GET", f"/v1/topics/{name}").text


def test_producers_transactions_and_applications(rights: Rights, name: str) -> None:
    owner, other = rights.user(*EVERYTHING), rights.user(*EVERYTHING)
    step = {"name": name, "epoch": 1, "sequence": 1}
    begin = {"name": f"{name}-1", "application": step}
    assert rights.as_user(owner, "POST", "/v1/producers", {"name": name}).is_success
    assert rights.as_user(owner, "POST", "/v1/transactions", begin).is_success
    commit = f"/v1/transactions/{name}-1/commit"
    assert refused(rights, other, "POST", commit, {})
    assert refused(rights, other, "POST", "/v1/producers", {"name": name})
    assert rights.as_user(owner, "POST", commit, {}).is_success
    # Who could commit in its name would fence it, or make its work count as done.
    later = {"name": f"{name}-2", "application": step | {"epoch": 9}}
    assert refused(rights, other, "POST", "/v1/transactions", later)
    assert refused(rights, other, "GET", f"/v1/applications/{name}")
    assert rights.as_user(owner, "GET", f"/v1/applications/{name}").json()["epoch"] == 1


def test_who_may_read_a_queue_does_not_take_its_subscription_away(
    rights: Rights, name: str
) -> None:
    with rights.amqp() as client:
        client.declare(name, durable=True)
    reader = rights.user("", "", f"^{name}$")
    path = f"/v1/topics/{name}/subscriptions"
    assert refused(rights, reader, "DELETE", f"{path}/queue")
    assert rights.as_user(reader, "PUT", f"{path}/own", {}).is_success
    assert rights.as_user(reader, "DELETE", f"{path}/own").is_success


def test_an_exclusive_queue_is_its_connections(rights: Rights, name: str) -> None:
    user = rights.user(*EVERYTHING)
    with rights.amqp(user) as client, RawMqtt(rights.node) as device:
        client.declare(name, exclusive=True)
        for method, path, body in (
            ("POST", f"/v1/topics/{name}/subscriptions/queue/receive", {}),
            ("GET", f"/v1/topics/{name}/partitions/0/messages", None),
            ("POST", f"/v1/topics/{name}/purge", None),
            ("PATCH", f"/v1/topics/{name}", {"settings": {"ttl_ms": 1}}),
            ("DELETE", f"/v1/topics/{name}", None),
        ):
            answer = rights.http.request(method, path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, "exclusive-queue"), path
        device.connect()
        assert device.subscribe(f"$queue/{name}") == (Reason.NOT_AUTHORIZED,)
        # Answers come to such queues: to publish there is everybody's who may write.
        rights.ok("POST", f"/v1/topics/{name}/messages", {"value": "answer"})
        client.ask(1, m.BasicGet(name), m.BasicGetOk)


def test_nobody_learns_of_namespaces_they_may_not_enter(rights: Rights, name: str) -> None:
    rights.ok("PUT", f"/v1/namespaces/{name}", {})
    user = rights.user(*EVERYTHING)
    there = rights.as_user(user, "GET", f"/v1/topics?namespace={name}")
    not_there = rights.as_user(user, "GET", f"/v1/topics?namespace={name}-x")
    assert (there.status_code, not_there.status_code) == (403, 403)
