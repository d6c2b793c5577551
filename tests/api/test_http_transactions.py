"""Numbered producers and transactions over HTTP, on a live node."""

import pytest
from http_api import Api


def begin(api: Api, **body) -> str:
    return api.ok("POST", "/v1/transactions", body)["name"]


def headers(transaction: str) -> dict[str, str]:
    return {"Braid-Transaction": transaction}


def numbered(producer: dict, sequence: int) -> dict[str, str]:
    return {
        "Braid-Producer-Id": str(producer["producer_id"]),
        "Braid-Producer-Epoch": str(producer["epoch"]),
        "Braid-Sequence": str(sequence),
    }


def publish(api: Api, topic: str, *values: str, **more):
    body = {"messages": [{"value": value} for value in values]}
    return api.call("POST", f"/v1/topics/{topic}/messages/batch", body, **more)


def code(response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["code"]


def values(api: Api, topic: str, **query) -> list[str]:
    path = f"/v1/topics/{topic}/partitions/0/messages"
    return [each["value"] for each in api.ok("GET", path, params=query)["messages"]]


# --- producers ---


def test_a_message_that_is_sent_again_is_written_once(api: Api):
    topic = api.topic(partitions=1)
    producer = api.ok("POST", "/v1/producers", {})
    path = f"/v1/topics/{topic}/messages"
    first = api.ok("POST", path, {"value": "0"}, headers=numbered(producer, 0))
    again = api.ok("POST", path, {"value": "0"}, headers=numbered(producer, 0))
    assert "duplicate" not in first
    assert again == {**first, "duplicate": True}
    batch = publish(api, topic, "1", "2", headers=numbered(producer, 1)).json()
    assert batch["count"] == 2
    assert "duplicate" not in batch
    # Sent again with one more behind: only that is new.
    grown = publish(api, topic, "1", "2", "3", headers=numbered(producer, 1)).json()
    assert "duplicate" not in grown
    assert values(api, topic) == ["0", "1", "2", "3"]


def test_numbers_are_refused_that_leave_a_gap(api: Api):
    topic = api.topic(partitions=1)
    producer = api.ok("POST", "/v1/producers", {})
    publish(api, topic, "0", headers=numbered(producer, 0))
    assert code(publish(api, topic, "2", headers=numbered(producer, 2))) == (
        409,
        "out-of-order-sequence",
    )
    assert values(api, topic) == ["0"]


def test_an_unknown_producer_and_an_old_epoch_may_not_write(api: Api):
    topic = api.topic(partitions=1)
    nobody = {"producer_id": 1 << 40, "epoch": 0}
    assert code(publish(api, topic, "0", headers=numbered(nobody, 0))) == (404, "unknown-producer")
    old = api.ok("POST", "/v1/producers", {"name": topic})
    new = api.ok("POST", "/v1/producers", {"name": topic})
    assert new["producer_id"] == old["producer_id"]
    assert new["epoch"] == old["epoch"] + 1
    assert code(publish(api, topic, "0", headers=numbered(old, 0))) == (409, "producer-fenced")
    assert publish(api, topic, "0", headers=numbered(new, 0)).is_success


@pytest.mark.parametrize(
    "sent",
    [
        {"Braid-Sequence": "0"},
        {"Braid-Producer-Id": "1"},
        {"Braid-Producer-Id": "1", "Braid-Producer-Epoch": "0"},
        {"Braid-Producer-Id": "1", "Braid-Producer-Epoch": "0", "Braid-Sequence": "-1"},
    ],
)
def test_half_an_identity_is_a_bad_request(api: Api, sent):
    response = publish(api, api.topic(partitions=1), "0", headers=sent)
    assert response.status_code == 400, response.text


# --- transactions ---


def test_what_is_published_in_a_transaction_is_seen_with_its_commit(api: Api):
    one, two = api.topic(partitions=1), api.topic(partitions=1)
    for topic in (one, two):
        api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    name = begin(api)
    publish(api, one, "a", headers=headers(name))
    publish(api, two, "b", "c", headers=headers(name))
    publish(api, one, "plain")
    assert values(api, one) == []
    assert values(api, one, isolation="read_uncommitted") == ["a", "plain"]
    assert api.receive(one, "s") == []
    info = api.ok("GET", f"/v1/transactions/{name}")
    assert (info["state"], info["records"], info["owner"]) == ("ongoing", 3, "guest")
    assert info["holds"] == [
        {"topic": one, "partition": 0, "first_offset": 0, "behind": 2},
        {"topic": two, "partition": 0, "first_offset": 0, "behind": 2},
    ]
    assert name in [each["name"] for each in api.ok("GET", "/v1/transactions")]
    done = api.ok("POST", f"/v1/transactions/{name}/commit", {})
    assert (done["state"], done["outcome"]) == ("complete", "committed")
    assert [m["value"] for m in api.receive(one, "s", limit=10)] == ["a", "plain"]
    assert [m["value"] for m in api.receive(two, "s", limit=10)] == ["b", "c"]
    assert name not in [each["name"] for each in api.ok("GET", "/v1/transactions")]
    # Whoever did not hear the answer asks again.
    assert api.ok("POST", f"/v1/transactions/{name}/commit", {}) == done
    assert api.ok("GET", f"/v1/transactions/{name}")["outcome"] == "committed"


def test_nothing_of_an_aborted_transaction_is_ever_seen(api: Api):
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/all", {"isolation": "read_uncommitted"})
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    name = begin(api)
    publish(api, topic, "a", headers=headers(name))
    assert [m["value"] for m in api.receive(topic, "all")] == ["a"]
    assert api.ok("POST", f"/v1/transactions/{name}/abort")["outcome"] == "aborted"
    publish(api, topic, "b")
    assert [m["value"] for m in api.receive(topic, "s", limit=10)] == ["b"]
    assert values(api, topic, isolation="read_uncommitted") == ["b"]


def test_what_a_transaction_acknowledged_is_done_with_its_commit_and_back_with_its_abort(api: Api):
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    publish(api, topic, "a", "b")
    receipts = [m["receipt"] for m in api.receive(topic, "s", limit=2)]
    name = begin(api)
    ack = {"receipts": receipts}
    assert api.ok("POST", "/v1/receipts/ack", ack, headers=headers(name))["count"] == 2
    # Sent again, it counts again; outside the transaction it does not.
    assert api.ok("POST", "/v1/receipts/ack", ack, headers=headers(name))["count"] == 2
    api.fails(409, "stale-receipt", "POST", f"/v1/receipts/{receipts[0]}/ack")
    api.ok("POST", f"/v1/transactions/{name}/abort")
    again = api.receive(topic, "s", limit=2)
    assert [m["value"] for m in again] == ["a", "b"]
    name = begin(api)
    for message in again:
        api.ok("POST", f"/v1/receipts/{message['receipt']}/ack", headers=headers(name))
    api.ok("POST", f"/v1/transactions/{name}/commit", {})
    info = api.ok("GET", f"/v1/topics/{topic}/subscriptions/s")
    assert (info["lag"], info["in_flight"], info["acked"]) == (0, 0, 2)


def test_a_receipt_that_does_not_count_is_the_answer_in_a_transaction(api: Api):
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    publish(api, topic, "a", "b")
    receipts = [m["receipt"] for m in api.receive(topic, "s", limit=2)]
    api.ok("POST", f"/v1/receipts/{receipts[0]}/ack")
    name = begin(api)
    ack = api.call("POST", "/v1/receipts/ack", {"receipts": receipts}, headers=headers(name))
    assert code(ack) == (409, "stale-receipt")


def test_as_many_branches_as_allowed_can_be_named(api: Api):
    name = begin(api)
    place = f"/v1/transactions/{name}/commit"
    branches = [f"{number:0255}" for number in range(10_000)]
    assert code(api.call("POST", place, {"branches": branches})) == (400, "unknown-branch")
    assert code(api.call("POST", place, {"branches": [*branches, ""]})) == (400, "bad-request")


def test_a_group_commits_offsets_in_a_transaction(api: Api):
    topic = api.topic(partitions=1)
    publish(api, topic, "a", "b", "c")
    group = f"group-{topic}"
    member = api.ok("POST", f"/v1/groups/{group}/members", {"topics": [topic]})
    place = f"/v1/groups/{group}/members/{member['member_id']}"
    generation = member["generation"]
    offsets = [{"topic": topic, "partition": 0, "offset": 2}]
    name = begin(api)
    api.ok(
        "POST",
        f"{place}/commit",
        {"generation": generation, "offsets": offsets},
        headers=headers(name),
    )
    lag = lambda: api.ok("GET", f"/v1/groups/{group}")["subscriptions"][0]["lag"]  # noqa: E731
    assert lag() == 3
    api.ok("POST", f"/v1/transactions/{name}/commit", {})
    assert lag() == 1
    name = begin(api)
    zombie = api.call(
        "POST",
        f"/v1/groups/{group}/members/nobody/commit",
        {"generation": generation, "offsets": offsets},
        headers=headers(name),
    )
    assert code(zombie) == (409, "stale-generation")


def test_offsets_of_a_partition_that_went_to_another_member_are_not_committed(api: Api):
    """The other reads it again from where it was: what the first made of it must not count too."""
    topic = api.topic(partitions=1)
    publish(api, topic, "a", "b", "c")
    group = f"group-{topic}"
    member = api.ok("POST", f"/v1/groups/{group}/members", {"topics": [topic]})
    place = f"/v1/groups/{group}/members/{member['member_id']}"
    out, name = api.topic(partitions=1), begin(api)
    publish(api, out, "made of a and b", headers=headers(name))
    good = {"topic": topic, "partition": 0, "offset": 2}
    for offsets, wrong in (
        ([good, {**good, "offset": 99}], "bad-position"),
        ([good], None),
    ):
        body = {"generation": member["generation"], "offsets": offsets}
        answer = api.call("POST", f"{place}/commit", body, headers=headers(name))
        assert answer.is_success if wrong is None else code(answer)[1] == wrong
    api.ok("DELETE", place, params={"generation": member["generation"]})
    api.ok("POST", f"/v1/groups/{group}/members", {"topics": [topic]})
    late = api.call("POST", f"/v1/transactions/{name}/commit", {})
    assert code(late) == (409, "stale-generation")
    assert api.ok("GET", f"/v1/groups/{group}")["subscriptions"][0]["lag"] == 3
    api.ok("POST", f"/v1/transactions/{name}/abort")
    assert values(api, out) == []


def test_what_is_over_is_refused_by_name(api: Api):
    topic = api.topic(partitions=1)
    committed, aborted = begin(api), begin(api)
    api.ok("POST", f"/v1/transactions/{committed}/commit", {})
    api.ok("POST", f"/v1/transactions/{aborted}/abort")
    api.fails(409, "transaction-committed", "POST", f"/v1/transactions/{committed}/abort")
    api.fails(409, "transaction-aborted", "POST", f"/v1/transactions/{aborted}/commit", {})
    api.fails(409, "transaction-committed", "POST", "/v1/transactions", {"name": committed})
    api.fails(409, "transaction-aborted", "POST", f"/v1/transactions/{aborted}/heartbeat")
    assert code(publish(api, topic, "x", headers=headers(aborted))) == (409, "transaction-aborted")
    assert code(publish(api, topic, "x", headers=headers(committed))) == (
        409,
        "transaction-committed",
    )
    assert code(publish(api, topic, "x", headers=headers("none"))) == (404, "unknown-transaction")
    api.fails(404, "unknown-transaction", "POST", "/v1/transactions/none/commit", {})
    assert values(api, topic) == []


def test_the_commit_chooses_among_branches(api: Api):
    topic = api.topic(partitions=1)
    name = begin(api)
    for branch in ("won", "lost"):
        for _ in range(2):
            sent = {**headers(name), "Braid-Branch": branch, "Braid-Sequence": "0"}
            publish(api, topic, branch, headers=sent)
    api.fails(
        400, "unknown-branch", "POST", f"/v1/transactions/{name}/commit", {"branches": ["no"]}
    )
    api.ok("POST", f"/v1/transactions/{name}/commit", {"branches": ["won"]})
    assert values(api, topic) == ["won"]


def test_a_silent_transaction_is_aborted(api: Api):
    topic = api.topic(partitions=1)
    api.ok("PUT", f"/v1/topics/{topic}/subscriptions/s", {})
    name = begin(api, session_ms=50)
    publish(api, topic, "a", headers=headers(name))
    publish(api, topic, "b")
    messages = api.receive(topic, "s", limit=10, wait_ms=20_000)
    assert [each["value"] for each in messages] == ["b"]
    info = api.ok("GET", f"/v1/transactions/{name}")
    assert (info["outcome"], info["reason"]) == ("aborted", "session")


def test_an_application_commits_each_number_once(api: Api):
    name = api.topic(partitions=1)
    api.fails(404, "unknown-application", "GET", f"/v1/applications/{name}")
    first = begin(api, application={"name": name, "epoch": 1, "sequence": 7})
    api.ok("POST", f"/v1/transactions/{first}/commit", {})
    last = api.ok("GET", f"/v1/applications/{name}")
    assert (last["epoch"], last["sequence"]) == (1, 7)
    again = {"application": {"name": name, "epoch": 1, "sequence": 7}}
    api.fails(409, "transaction-committed", "POST", "/v1/transactions", again)
    old = {"application": {"name": name, "epoch": 0, "sequence": 8}}
    api.fails(409, "stale-application", "POST", "/v1/transactions", old)


def test_a_transaction_is_its_owners_and_an_administrators(api: Api):
    name = begin(api)
    user = f"user-{name}"
    api.ok("PUT", f"/v1/users/{user}", {"password": "a long password"})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    api.ok("PUT", f"/v1/permissions/%2F/{user}", everything)
    login = {"auth": (user, "a long password")}
    assert api.ok("GET", "/v1/transactions", **login) == []
    path = f"/v1/transactions/{name}"
    assert code(api.call("GET", path, **login)) == (409, "not-your-transaction")
    assert code(api.call("POST", f"{path}/abort", **login)) == (409, "not-your-transaction")
    theirs = api.ok("POST", "/v1/transactions", {}, **login)["name"]
    assert theirs in [each["name"] for each in api.ok("GET", "/v1/transactions")]
    assert api.ok("POST", f"/v1/transactions/{theirs}/abort")["owner"] == user
    api.ok("POST", f"{path}/abort")
