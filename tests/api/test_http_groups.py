"""Consumer groups over HTTP, on a live node."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from http_api import GUEST, Api, encoded
from pika.adapters.blocking_connection import BlockingChannel

from braidmq.testing.live import live_node

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
    body = {"generation": member["generation"], "wait_ms": 0, **body}
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


@contextmanager
def polls(api: Api, *members: dict[str, Any], **body: Any) -> Iterator[list[Future[Any]]]:
    """Members that poll, and wait."""
    with ThreadPoolExecutor(len(members)) as threads:
        waiting = [threads.submit(poll, api, each, **body) for each in members]
        group = members[0]["group"]
        while sum(each["waiting"] for each in described(api, group)) < len(members):
            pass
        yield waiting


def described(api: Api, group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.ok("GET", f"/v1/groups/{group}")["subscriptions"]
    return found


def values(answer: dict[str, Any]) -> list[str]:
    return [each["value"] for each in answer["messages"]]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_message_wakes_the_member_it_is_for_and_the_others_wait_on(api: Api, late: int) -> None:
    topic, group = api.topic(partitions=3), f"woken-{late}"
    members = [join(api, group, topic) for _ in range(3)]
    members = [sync(api, each) for each in members]
    with polls(api, *members, wait_ms=30_000) as waiting:
        (place,) = members[late]["assigned"][topic]
        api.publish(topic, {"value": "x", "partition": place})
        assert values(waiting[late].result()) == ["x"]
        assert described(api, group)[0]["waiting"] == 2
        for each in members:
            (place,) = each["assigned"][topic]
            api.publish(topic, {"value": f"for {place}", "partition": place})
        for number, poll_of in enumerate(waiting):
            if number != late:
                assert values(poll_of.result()) == [f"for {members[number]['assigned'][topic][0]}"]


def test_who_joins_gets_idle_partitions_at_once_and_wakes_those_who_lost_them(api: Api) -> None:
    topic, group = api.topic(partitions=4), "joining"
    one, two = join(api, group, topic), join(api, group, topic)
    one, two = sync(api, one), sync(api, two)
    assert [len(each["assigned"][topic]) for each in (one, two)] == [2, 2]
    with polls(api, one, two, wait_ms=30_000) as waiting:
        three = join(api, group, topic)
        assert len(three["assigned"][topic]) == 1
        (moved,) = three["assigned"][topic]
        loser = 0 if moved in one["assigned"][topic] else 1
        told = waiting[loser].result()
        assert (told["messages"], len(told["member"]["assigned"][topic])) == ([], 1)
        assert told["member"]["generation"] == three["generation"]
        assert described(api, group)[0]["waiting"] == 1  # nothing changed for the other
        kept = (one, two)[1 - loser]["assigned"][topic][0]
        api.publish(topic, {"value": "on", "partition": kept})
        assert values(waiting[1 - loser].result()) == ["on"]


def test_who_gets_partitions_of_one_that_leaves_is_woken(api: Api) -> None:
    topic, group = api.topic(partitions=2), "leaving"
    one, two = join(api, group, topic), join(api, group, topic)
    two = sync(api, two)
    api.publish(topic, {"value": "left", "partition": 0}, {"value": "left", "partition": 1})
    (mine,) = two["assigned"][topic]
    assert len(poll(api, two)["messages"]) == 1
    with polls(api, two, wait_ms=30_000) as waiting:
        api.ok("DELETE", at(one, f"?generation={one['generation']}").replace("/?", "?"))
        told = waiting[0].result()
    assert [each["partition"] for each in told["messages"]] == [1 - mine]
    assert told["member"]["assigned"] == {topic: [0, 1]}


def test_the_poll_of_one_that_leaves_or_joins_anew_is_over(api: Api) -> None:
    topic, group = api.topic(partitions=1), "over"
    for status in (404, 409):
        me = join(api, group, topic, member_id="me")
        with ThreadPoolExecutor(1) as thread:
            body = {"generation": me["generation"], "wait_ms": 30_000}
            waiting = thread.submit(api.call, "POST", at(me, "poll"), body)
            while not described(api, group)[0]["waiting"]:
                pass
            if status == 404:
                api.ok("DELETE", at(me, f"?generation={me['generation']}").replace("/?", "?"))
            else:
                join(api, group, topic, member_id="me")
            assert waiting.result().status_code == status


def test_a_partition_moves_with_the_last_answer_for_it(api: Api) -> None:
    topic, group = api.topic(partitions=2), "answering"
    one = join(api, group, topic)
    api.publish(topic, {"value": "x", "partition": 0}, {"value": "x", "partition": 1})
    receipts = {each["partition"]: each["receipt"] for each in poll(api, one)["messages"]}
    two = join(api, group, topic)
    assert two["assigned"] == {}
    (moving,) = sync(api, {**one, "revoking": {}})["revoking"][topic]
    with polls(api, two, wait_ms=30_000) as waiting:
        api.ok("POST", f"/v1/receipts/{encoded(receipts[moving])}/ack")
        assert waiting[0].result()["member"]["assigned"] == {topic: [moving]}


def test_members_go_on_after_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        with (
            live_node(tmp_path, mqtt_port=0, ws_port=0) as node,
            httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as client,
        ):
            api = Api(node, client)
            if not number:
                api.ok("PUT", "/v1/topics/t", {"settings": {"partitions": 4}})
                api.publish("t", *({"value": str(n), "partition": n} for n in range(4)))
                before = [sync(api, join(api, "g", "t")) for _ in range(2)]
                before[0] = sync(api, before[0])
                # It is done with a message when the node is killed.
                got = poll(api, before[0])["messages"]
                node.kill()
                continue
            assert [sync(api, each) for each in before] == before
            done = [commit(before[0], "t", each["partition"], 1) for each in got]
            for each in done:
                api.ok("POST", at(before[0], "commit"), each)
            assert poll(api, before[0])["messages"] == []
            assert len(poll(api, before[1])["messages"]) == 2


def test_how_long_polls_wait(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[http]\npoll_wait_ms = 50\n")
    with (
        live_node(tmp_path / "data", mqtt_port=0, ws_port=0, config=config) as node,
        httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as client,
    ):
        api = Api(node, client)
        topic = api.topic()
        member = join(api, "g", topic, session_timeout_ms=SESSION_MS)
        generation = {"generation": member["generation"]}
        api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
        for path, body in (
            (at(member, "poll"), generation),
            (f"/v1/topics/{topic}/subscriptions/s/receive", {}),
        ):
            assert api.ok("POST", path, body)["messages"] == []
            api.fails(400, "bad-request", "POST", path, {**body, "wait_ms": 51})


def test_who_waits_longer_than_its_session_stays_a_member(api: Api) -> None:
    topic, group = api.topic(partitions=1), "patient"
    me = join(api, group, topic, session_timeout_ms=SESSION_MS)
    assert poll(api, me, wait_ms=SESSION_MS + 500)["member"]["generation"] == me["generation"]


def test_the_place_of_a_group_with_members_is_not_deleted(api: Api) -> None:
    topic, group = api.topic(partitions=1), "placed"
    join(api, group, topic)
    path = f"/v1/topics/{topic}/subscriptions/{group}"
    api.fails(409, "wrong-mode", "DELETE", path)


def test_commits_are_left_to_the_broker(api: Api) -> None:
    topic, group = api.topic(partitions=1), "lazy"
    me = join(api, group, topic, auto_commit=True, auto_commit_interval_ms=1)
    api.publish(topic, {"value": "a"}, {"value": "b"})
    assert values(poll(api, me, limit=1)) == ["a"]
    assert described(api, group)[0]["partitions"][0]["committed"] == 0
    assert values(poll(api, me, limit=1)) == ["b"]
    assert described(api, group)[0]["partitions"][0]["committed"] == 1


def test_one_partition_begins_again(api: Api) -> None:
    topic, group = api.topic(partitions=2), "rewound"
    me = join(api, group, topic, start="latest")
    api.publish(topic, *({"value": str(n), "partition": n % 2} for n in range(4)))
    assert len(poll(api, me)["messages"]) == 4
    for place in (0, 1):
        api.ok("POST", at(me, "commit"), commit(me, topic, place, 2))
    seek = {"topic": topic, "to": "earliest", "partition": 1}
    api.ok("POST", f"/v1/groups/{group}/seek", seek)
    assert values(poll(api, me)) == ["1", "3"]
    seek = {"topic": topic, "to": "earliest", "partition": 2}
    api.fails(404, "unknown-partition", "POST", f"/v1/groups/{group}/seek", seek)
    path = f"/v1/topics/{topic}/subscriptions/{group}/seek"
    moved = api.ok("POST", path, {"to": "latest", "partition": 1})
    assert [each["lag"] for each in moved["partitions"]] == [0, 0]


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
