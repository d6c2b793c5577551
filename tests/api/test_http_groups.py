"""Consumer groups over HTTP, on a live node."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
from http_api import Api
from pika.adapters.blocking_connection import BlockingChannel

SESSION_MS = 3_001  # the shortest there is: over one heartbeat


def join(api: Api, group: str, topic: str, **more: Any) -> dict[str, Any]:
    body = {"topics": [topic], **more}
    member: dict[str, Any] = api.ok("POST", f"/v1/groups/{group}/members", body)
    return member


def at(member: dict[str, Any], verb: str) -> str:
    return f"/v1/groups/{member['group']}/members/{member['member_id']}/{verb}"


def sync(api: Api, member: dict[str, Any]) -> dict[str, Any]:
    """What a member does: it lets go of what it is asked for, and learns what it has."""
    revoked = [{"topic": t, "partition": p} for t, ps in member["revoking"].items() for p in ps]
    body = {"generation": member["generation"], "revoked": revoked}
    told: dict[str, Any] = api.ok("POST", at(member, "sync"), body)
    return told


def poll(api: Api, member: dict[str, Any], **body: Any) -> dict[str, Any]:
    body = {"generation": member["generation"], **body}
    answer: dict[str, Any] = api.ok("POST", at(member, "poll"), body)
    return answer


def commit(member: dict[str, Any], topic: str, partition: int, offset: int) -> dict[str, Any]:
    place = {"topic": topic, "partition": partition, "offset": offset}
    return {"generation": member["generation"], "offsets": [place]}


def test_two_members_split_partitions_and_one_takes_over_from_the_other(api: Api) -> None:
    topic, group = api.topic(partitions=4), "takeover"
    one = join(api, group, topic, session_timeout_ms=SESSION_MS)
    assert one["assigned"] == {topic: [0, 1, 2, 3]}
    two = join(api, group, topic)
    one = sync(api, sync(api, one))
    two = sync(api, two)
    shares = [one["assigned"][topic], two["assigned"][topic]]
    assert sorted(len(share) for share in shares) == [2, 2]
    assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3]

    # One is heard of no more. The other polls, which keeps it alive, until it has everything.
    while len(two["assigned"][topic]) < 4:
        two = poll(api, two, wait_ms=1000)["member"]
    assert two["generation"] > one["generation"]
    known = api.ok("GET", f"/v1/groups/{group}")
    assert [each["member_id"] for each in known["members"]] == [two["member_id"]]

    # The zombie wakes up: what it did counts no more.
    api.publish(topic, {"value": "x", "partition": one["assigned"][topic][0]})
    place = one["assigned"][topic][0]
    api.fails(409, "stale-generation", "POST", at(one, "commit"), commit(one, topic, place, 1))
    lost = api.call("POST", at(one, "poll"), {"generation": one["generation"]})
    assert (lost.status_code, lost.json()["code"]) == (404, "unknown-member")
    assert [m["value"] for m in poll(api, two)["messages"]] == ["x"]


def test_a_member_that_lost_a_partition_cannot_commit_it(api: Api) -> None:
    topic, group = api.topic(partitions=2), "fenced"
    one = join(api, group, topic)
    api.publish(topic, {"value": "a", "partition": 0}, {"value": "b", "partition": 1})
    assert len(poll(api, one)["messages"]) == 2
    two = join(api, group, topic)
    told = sync(api, sync(api, one))
    (kept,) = told["assigned"][topic]
    lost = 1 - kept
    api.fails(409, "stale-generation", "POST", at(one, "commit"), commit(one, topic, lost, 1))
    api.ok("POST", at(one, "commit"), commit(one, topic, kept, 1))
    assert [m["partition"] for m in poll(api, sync(api, two))["messages"]] == [lost]
    api.fails(
        409, "stale-generation", "POST", at(one, "heartbeat"), {"generation": one["generation"]}
    )


def test_commit_seek_and_lag(api: Api) -> None:
    topic, group = api.topic(partitions=1), "seeking"
    api.publish(topic, *({"value": str(n)} for n in range(5)))
    me = join(api, group, topic)
    assert [m["value"] for m in poll(api, me, limit=3)["messages"]] == ["0", "1", "2"]
    api.ok("POST", at(me, "commit"), commit(me, topic, 0, 2))
    (subscription,) = api.ok("GET", f"/v1/groups/{group}")["subscriptions"]
    assert (subscription["lag"], subscription["partitions"][0]["committed"]) == (3, 2)
    for to, expected in (("earliest", "0"), ("4", "4"), ("latest", None), ("@0", "0")):
        api.ok("POST", f"/v1/groups/{group}/seek", {"topic": topic, "to": to})
        found = [m["value"] for m in poll(api, me, limit=1)["messages"]]
        assert found == ([] if expected is None else [expected])
    api.fails(409, "wrong-mode", "DELETE", f"/v1/groups/{group}")
    api.ok("DELETE", at(me, f"?generation={me['generation']}").replace("/?", "?"))
    api.ok("DELETE", f"/v1/groups/{group}")
    api.fails(404, "unknown-group", "GET", f"/v1/groups/{group}")
    assert api.ok("GET", f"/v1/topics/{topic}/subscriptions") == []


def test_nobody_speaks_for_a_member_of_a_group_whose_topics_he_may_not_read(api: Api) -> None:
    topic = api.topic(partitions=1)
    me = join(api, "private", topic)
    stranger = ("stranger", "secret")
    api.ok("PUT", "/v1/users/stranger", {"password": "secret"})
    rights = {"configure": ".*", "write": ".*", "read": "^else$"}
    api.ok("PUT", "/v1/permissions/%2F/stranger", rights)
    generation = {"generation": me["generation"]}
    leave = at(me, f"?generation={me['generation']}").replace("/?", "?")
    for method, path, body in (
        ("POST", at(me, "heartbeat"), generation),
        ("POST", at(me, "sync"), generation),
        ("POST", at(me, "poll"), generation),
        ("POST", at(me, "commit"), commit(me, topic, 0, 0)),
        ("DELETE", leave, None),
    ):
        assert api.call(method, path, body, auth=stranger).status_code == 403
    api.ok("POST", at(me, "heartbeat"), generation)


def test_as_many_partitions_as_allowed_are_committed_at_once(api: Api) -> None:
    topic = api.topic(partitions=1)
    member = join(api, "many", topic)
    place = {"topic": topic, "partition": 0, "offset": 0}
    body = {"generation": member["generation"], "offsets": [place] * 10_000}
    api.ok("POST", at(member, "commit"), body)
    body["offsets"] = [place] * 10_001
    api.fails(400, "bad-request", "POST", at(member, "commit"), body)


def test_as_many_topics_as_allowed_can_be_joined(api: Api) -> None:
    topics = [f"{number:0255}" for number in range(1000)]
    api.fails(404, "unknown-topic", "POST", "/v1/groups/wide/members", {"topics": topics})
    topics.append("one more")
    api.fails(400, "bad-request", "POST", "/v1/groups/wide/members", {"topics": topics})


@contextmanager
def amqp_channel(api: Api) -> Iterator[BlockingChannel]:
    place = pika.ConnectionParameters("127.0.0.1", api.node.ports["amqp_port"])
    with pika.BlockingConnection(place) as connection:
        yield connection.channel()


def test_groups_that_share_messages_are_groups_too(api: Api) -> None:
    topic, group = api.topic(partitions=2), "sharing"
    api.publish(topic, *({"value": str(n)} for n in range(4)))
    with amqp_channel(api) as channel:
        channel.queue_declare(f"{topic}.own")
        channel.basic_consume(topic, lambda *_: None, arguments={"x-group": group})
        names = [each["name"] for each in api.ok("GET", "/v1/groups")]
        assert group in names
        assert "queue" not in names
        found = api.ok("GET", f"/v1/groups/{group}")
        assert (found["mode"], found["members"]) == ("shared", [])
        (subscription,) = found["subscriptions"]
        assert (subscription["topic"], subscription["consumers"]) == (topic, 1)
        api.fails(409, "wrong-mode", "DELETE", f"/v1/groups/{group}")
    while api.ok("GET", f"/v1/groups/{group}")["subscriptions"][0]["consumers"]:
        pass
    (listed,) = [each for each in api.ok("GET", "/v1/groups") if each["name"] == group]
    assert (listed["mode"], listed["members"], listed["lag"]) == ("shared", 0, 4)
    moved = api.ok("POST", f"/v1/groups/{group}/seek", {"topic": topic, "to": "latest"})
    assert moved["lag"] == 0
    api.ok("DELETE", f"/v1/groups/{group}")
    api.fails(404, "unknown-group", "GET", f"/v1/groups/{group}")


def test_what_nobody_may_read_is_not_listed_as_a_group(api: Api) -> None:
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/hidden", {})
    api.ok("PUT", "/v1/users/blind", {"password": "secret"})
    api.ok("PUT", "/v1/permissions/%2F/blind", {"configure": "", "write": "", "read": "^else$"})
    blind = ("blind", "secret")
    assert "hidden" in [each["name"] for each in api.ok("GET", "/v1/groups")]
    assert "hidden" not in [e["name"] for e in api.call("GET", "/v1/groups", auth=blind).json()]
    assert api.call("GET", "/v1/groups/hidden", auth=blind).status_code == 404
    assert api.call("DELETE", "/v1/groups/hidden", auth=blind).status_code == 403
