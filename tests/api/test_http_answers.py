"""No write is said to be done that the disk did not take (docs/adr/0018).

Every operation that changes something is in the table, or says why it need not be.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from braidmq.testing.hosted import CommitGate, HostedNode, hosted_node

WAIT_S = 20.0

KEEPS_NOTHING = {
    "describeLogs": "it reads: its names are too many for a URL",
    "closeConnection": "connections are not kept",
    "closeChannel": "nor are channels",
    "beginTrace": "nor is what is traced",
    "endTrace": "nor is what is traced",
    "setLogLevel": "the level is of this run",
    "reloadConfiguration": "it is in files that others keep",
    "heartbeat": "who is alive is not kept, and a new generation waits as for sync",
    "sync": "a generation waits where it is made: in joinGroup",
    "poll": "deliveries are told ahead of the disk, as in every protocol",
    "receive": "deliveries are told ahead of the disk, as in every protocol",
    "keepTransaction": "who is alive is not kept",
}


class World:
    """A node with something of everything."""

    def __init__(self, node: HostedNode, client: httpx.Client) -> None:
        self.node = node
        self.client = client
        self.ok("PUT", "/v1/topics/t", {"settings": {"partitions": 1}})
        self.ok("PUT", "/v1/topics/t/subscriptions/s", {})
        for _ in range(8):
            self.ok("POST", "/v1/topics/t/messages", {"value": "x"})

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        response = self.client.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def receipt(self) -> str:
        path = "/v1/topics/t/subscriptions/s/receive"
        receipt: str = self.ok("POST", path, {"limit": 1})["messages"][0]["receipt"]
        return receipt

    def dead_letter(self) -> int:
        self.ok("POST", f"/v1/receipts/{self.receipt()}/reject", {})
        offset: int = self.ok("GET", "/v1/topics/t/dead-letters")["letters"][0]["offset"]
        return offset

    def member(self) -> dict[str, Any]:
        member: dict[str, Any] = self.ok("POST", "/v1/groups/g/members", {"topics": ["t"]})
        return member


Write = tuple[str, str, Any]
Given = Callable[[World], Write]


def plain(method: str, path: str, body: Any = None, *before: Write) -> Given:
    def given(world: World) -> Write:
        for each in before:
            world.ok(*each)
        return method, path, body

    return given


def with_receipt(verb: str, body: Any = None) -> Given:
    return lambda world: ("POST", f"/v1/receipts/{world.receipt()}/{verb}", body)


def with_receipts(verb: str, **more: Any) -> Given:
    return lambda world: ("POST", f"/v1/receipts/{verb}", {"receipts": [world.receipt()], **more})


def with_dead_letter(method: str, path: str, body: Any = None) -> Given:
    return lambda world: (method, path.format(offset=world.dead_letter()), body)


def delayed(world: World) -> Write:
    sent = world.ok("POST", "/v1/topics/t/messages", {"value": "x", "delay_ms": 600_000})
    return "DELETE", f"/v1/topics/t/delayed/0/{sent['offset']}", None


def leaving(world: World) -> Write:
    member = world.member()
    path = f"/v1/groups/g/members/{member['member_id']}?generation={member['generation']}"
    return "DELETE", path, None


def committing(world: World) -> Write:
    member = world.member()
    offsets = [{"topic": "t", "partition": 0, "offset": 1}]
    body = {"generation": member["generation"], "offsets": offsets}
    return "POST", f"/v1/groups/g/members/{member['member_id']}/commit", body


def revoking(world: World) -> Write:
    token = world.ok("POST", "/v1/tokens", {"description": "d", "expires_in_ms": 60_000})
    return "DELETE", f"/v1/tokens/{token['info']['id']}", None


def ending(verb: str) -> Given:
    def given(world: World) -> Write:
        world.ok("POST", "/v1/transactions", {"name": "a"})
        headers = {"Braid-Transaction": "a"}
        path = "/v1/topics/t/messages"
        assert world.client.post(path, json={"value": "x"}, headers=headers).is_success
        return "POST", f"/v1/transactions/a/{verb}", {} if verb == "commit" else None

    return given


LEASE: Write = (
    "PUT",
    "/v1/leases/l",
    {"positions": [{"topic": "t", "partition": 0, "offset": 0}], "parts": 1},
)
BINDING = {"source": "amq.topic", "destination": "t", "routing_key": "k"}
USER: Write = ("PUT", "/v1/users/u", {"password": "secret-1", "tags": []})
PERMISSION: Write = (
    "PUT",
    "/v1/permissions/%2F/u",
    {"configure": "", "write": "", "read": ".*"},
)
NAMESPACE: Write = ("PUT", "/v1/namespaces/n", {})
POLICY: Write = ("PUT", "/v1/policies/%2F/p", {"pattern": "^x", "definition": {"max-length": 9}})
TEMPLATE: Write = ("PUT", "/v1/templates/m", {"pattern": "^x", "settings": {"ttl_ms": 9000}})
REPORT: Write = ("PUT", "/v1/pipelines/i", {"run": "1", "state": "running", "started_ms": 1})
SCHEDULE: Write = ("PUT", "/v1/topics/t/schedules/c", {"value": "x", "cron": "0 0 1 1 *"})
PAUSE: Write = ("POST", "/v1/topics/t/schedules/c/pause", None)
EXCHANGE: Write = ("PUT", "/v1/exchanges/x", {"kind": "topic"})

WRITES: dict[str, Given] = {
    "unbind": plain(
        "DELETE",
        "/v1/bindings?source=amq.topic&destination=t&routing_key=k",
        None,
        ("POST", "/v1/bindings", BINDING),
    ),
    "bind": plain("POST", "/v1/bindings", BINDING),
    "deleteExchange": plain("DELETE", "/v1/exchanges/x", None, EXCHANGE),
    "createExchange": plain(*EXCHANGE),
    "publishThroughExchange": plain(
        "POST",
        "/v1/exchanges/amq.topic/messages",
        {"routing_key": "k", "messages": [{"value": "x"}]},
        ("POST", "/v1/bindings", BINDING),
    ),
    "deleteGroup": plain("DELETE", "/v1/groups/s"),
    "joinGroup": plain("POST", "/v1/groups/g/members", {"topics": ["t"]}),
    "leaveGroup": leaving,
    "commit": committing,
    "seekGroup": plain("POST", "/v1/groups/s/seek", {"topic": "t", "to": "latest"}),
    "endLease": plain("DELETE", "/v1/leases/l", None, LEASE),
    "holdLease": plain(*LEASE),
    "renewLease": plain("POST", "/v1/leases/l/renew", {"finished": [0]}, LEASE),
    "deleteNamespace": plain("DELETE", "/v1/namespaces/n", None, NAMESPACE),
    "putNamespace": plain(*NAMESPACE),
    "putLimits": plain("PUT", "/v1/namespaces/n/limits", {"max_connections": 5}, NAMESPACE),
    "deletePermission": plain("DELETE", "/v1/permissions/%2F/u", None, USER, PERMISSION),
    "putPermission": plain(*PERMISSION, USER),
    "forgetPipeline": plain("DELETE", "/v1/pipelines/i", None, REPORT),
    "reportPipeline": plain(*REPORT),
    "stopPipeline": plain("POST", "/v1/pipelines/i/stop", None, REPORT),
    "deletePolicy": plain("DELETE", "/v1/policies/%2F/p", None, POLICY),
    "putPolicy": plain(*POLICY),
    "openProducer": plain("POST", "/v1/producers", {}),
    "ackMany": with_receipts("ack"),
    "extendMany": with_receipts("extend", visibility_ms=60_000),
    "nackMany": with_receipts("nack"),
    "rejectMany": with_receipts("reject"),
    "ack": with_receipt("ack"),
    "extend": with_receipt("extend", {"visibility_ms": 60_000}),
    "nack": with_receipt("nack", {}),
    "reject": with_receipt("reject", {}),
    "deleteSchedule": plain("DELETE", "/v1/topics/t/schedules/c", None, SCHEDULE),
    "pauseSchedule": plain(*PAUSE, SCHEDULE),
    "putSchedule": plain(*SCHEDULE),
    "resumeSchedule": plain("POST", "/v1/topics/t/schedules/c/resume", None, SCHEDULE, PAUSE),
    "deleteTemplate": plain("DELETE", "/v1/templates/m", None, TEMPLATE),
    "putTemplate": plain(*TEMPLATE),
    "issueToken": plain("POST", "/v1/tokens", {"description": "d", "expires_in_ms": 60_000}),
    "revokeToken": revoking,
    "deleteTopic": plain("DELETE", "/v1/topics/t"),
    "alterTopic": plain("PATCH", "/v1/topics/t", {"settings": {"ttl_ms": 9000}}),
    "createTopic": plain("PUT", "/v1/topics/new", {}),
    "purgeDeadLetters": with_dead_letter("DELETE", "/v1/topics/t/dead-letters"),
    "retryDeadLetters": with_dead_letter("POST", "/v1/topics/t/dead-letters/retry"),
    "returnDeadLetters": with_dead_letter("POST", "/v1/dead-letters/return", {"topic": "t"}),
    "deleteDeadLetter": with_dead_letter("DELETE", "/v1/topics/t/dead-letters/{offset}"),
    "retryDeadLetter": with_dead_letter("POST", "/v1/topics/t/dead-letters/{offset}/retry"),
    "cancelDelayed": delayed,
    "publish": plain("POST", "/v1/topics/t/messages", {"value": "x"}),
    "publishBatch": plain("POST", "/v1/topics/t/messages/batch", {"messages": [{"value": "x"}]}),
    "purgeTopic": plain("POST", "/v1/topics/t/purge"),
    "publishRaw": plain("POST", "/v1/topics/t/raw", b"x"),
    "deleteSubscription": plain("DELETE", "/v1/topics/t/subscriptions/s"),
    "createSubscription": plain("PUT", "/v1/topics/t/subscriptions/new", {}),
    "commitSubscription": plain(
        "POST",
        "/v1/topics/t/subscriptions/s/commit",
        {"offsets": [{"partition": 0, "offset": 3}]},
    ),
    "seekSubscription": plain("POST", "/v1/topics/t/subscriptions/s/seek", {"to": "latest"}),
    "beginTransaction": plain("POST", "/v1/transactions", {"name": "a"}),
    "abortTransaction": ending("abort"),
    "commitTransaction": ending("commit"),
    "deleteUser": plain("DELETE", "/v1/users/u", None, USER),
    "putUser": plain(*USER),
    "putPassword": plain("PUT", "/v1/users/u/password", {"password": "secret-2"}, USER),
    "putTags": plain("PUT", "/v1/users/u/tags", {"tags": ["administrator"]}, USER),
}

ELSEWHERE = {
    "publishRecords": "encoded records: the same path as publishBatch",
    "retryQuarantined": "needs a damaged file; it waits as all others do",
    "skipQuarantined": "needs a damaged file; the rewrite says when it is on disk",
}


@pytest.fixture
def disk() -> CommitGate:
    return CommitGate()


@pytest.fixture
def world(disk: CommitGate) -> Iterator[World]:
    with (
        hosted_node(disk) as node,
        httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=WAIT_S) as client,
    ):
        yield World(node, client)


def test_every_operation_that_writes_is_tried(world: World) -> None:
    described = world.ok("GET", "/openapi.json")
    operations = {
        operation["operationId"]
        for path in described["paths"].values()
        for method, operation in path.items()
        if method not in ("get", "head", "parameters")
    }
    assert operations == WRITES.keys() | KEEPS_NOTHING.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("given", WRITES.values(), ids=WRITES)
def test_nothing_is_said_to_be_done_that_the_disk_did_not_take(
    world: World, disk: CommitGate, given: Given
) -> None:
    method, path, body = given(world)
    more: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    journal = world.node.engine.store.journal
    disk.shut()
    with ThreadPoolExecutor(1) as pool:
        answer: Future[httpx.Response] = pool.submit(world.client.request, method, path, **more)
        deadline = time.monotonic() + WAIT_S
        while not (journal.waiting or answer.done()) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert not answer.done(), answer.result().text
        disk.break_down()
        response = answer.result(WAIT_S)
    assert (response.status_code, response.json()["code"]) == (503, "storage-failed")
