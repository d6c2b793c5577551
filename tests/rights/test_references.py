"""What names another object needs the right to it: when it is set, and while it holds."""

from typing import Any

import pytest
from raw_mqtt import RawMqtt
from rights_users import PASSWORD, Rights

from braidmq.testing.live import live_node
from braidmq.wire.amqp import methods as m
from braidmq.wire.mqtt.constants import Version

# --- when it is set ---


@pytest.mark.parametrize(
    "target",
    [
        {"topic": "others"},
        {"topic": "$mqtt/session/device"},
        {"exchange": "others-exchange"},
        {"exchange": "", "routing_key": "others"},
        {"topic": "{topic}-others"},
    ],
)
def test_dead_letters_are_not_sent_where_one_may_not_write(
    rights: Rights, name: str, target: dict[str, Any]
) -> None:
    user = rights.user(f"^{name}$", f"^{name}$", f"^{name}$")
    settings = {"settings": {"dead_letter": target}}
    made = rights.as_user(user, "PUT", f"/v1/topics/{name}", settings)
    assert (made.status_code, made.json()["code"]) == (403, "access-refused")
    assert rights.as_user(user, "PUT", f"/v1/topics/{name}", {}).status_code == 201
    altered = rights.as_user(user, "PATCH", f"/v1/topics/{name}", settings)
    assert altered.status_code == 403
    assert "disabled" not in rights.ok("GET", f"/v1/topics/{name}")
    default = {"settings": {"dead_letter": {"topic": "{topic}.dlq"}}}
    assert rights.as_user(user, "PATCH", f"/v1/topics/{name}", default).is_success


def test_to_have_a_dead_letter_topic_made_takes_configure(rights: Rights, name: str) -> None:
    user = rights.user(f"^{name}$", ".*", ".*")
    settings = {"settings": {"dead_letter": {"topic": f"{name}-new"}}}
    assert rights.as_user(user, "PUT", f"/v1/topics/{name}", settings).status_code == 403
    rights.ok("PUT", f"/v1/topics/{name}-new", {})
    assert rights.as_user(user, "PUT", f"/v1/topics/{name}", settings).status_code == 201


def test_an_alternate_exchange_is_one_that_may_be_written(rights: Rights, name: str) -> None:
    user = rights.user(f"^{name}", f"^{name}", f"^{name}")
    body = {"kind": "fanout", "alternate_exchange": "others"}
    assert rights.as_user(user, "PUT", f"/v1/exchanges/{name}", body).status_code == 403
    body["alternate_exchange"] = f"{name}-alternate"
    assert rights.as_user(user, "PUT", f"/v1/exchanges/{name}", body).status_code == 201


@pytest.mark.parametrize(
    ("settings", "status"), [({"exchange": "others"}, 403), ({"exchange": "mine"}, 201)]
)
def test_templates_and_policies_name_what_their_maker_may_write(
    rights: Rights, name: str, settings: dict[str, str], status: int
) -> None:
    user = rights.user(".*", "^mine", ".*")
    rights.ok("PUT", f"/v1/users/{user}/tags", {"tags": ["administrator"]})
    body: dict[str, Any] = {"pattern": f"^{name}", "settings": {"dead_letter": settings}}
    assert rights.as_user(user, "PUT", f"/v1/templates/{name}", body).status_code == status
    definition = {"dead-letter-exchange": settings["exchange"]}
    body = {"pattern": f"^{name}", "definition": definition}
    assert rights.as_user(user, "PUT", f"/v1/policies/%2F/{name}", body).status_code == status
    body = {"pattern": f"^{name}", "definition": {"alternate-exchange": settings["exchange"]}}
    assert rights.as_user(user, "PUT", f"/v1/policies/%2F/{name}-a", body).status_code == status


def test_over_mqtt(rights: Rights, name: str) -> None:
    user = rights.user(f"^{name}|admin", ".*", f"^{name}|admin")
    rights.grant(user, f"^{name}", f"^{name}", ".*")
    with RawMqtt(rights.node) as client:
        client.connect(user_name=user, password=PASSWORD.encode())
        client.subscribe("$admin/#")
        request = f'{{"name": "{name}", "dlq_config": {{"topic": "others"}}}}'
        client.publish("$admin/queue/create", request.encode())
        assert b"access-refused" in client.message().payload
        client.publish("$admin/queue/create", f'{{"name": "{name}"}}'.encode())
        assert b'"ok":true' in client.message().payload
        config = b'{"dlq_config": {"topic": "$queue/others"}}'
        client.publish(f"$admin/queue/{name}/config", config)
        assert b"access-refused" in client.message().payload


# --- while it holds ---


def reject_one(rights: Rights, topic: str) -> None:
    rights.ok("POST", f"/v1/topics/{topic}/messages", {"value": "x"})
    path = f"/v1/topics/{topic}/subscriptions/s/receive"
    receipt = rights.ok("POST", path, {})["messages"][0]["receipt"]
    rights.ok("POST", "/v1/receipts/reject", {"receipts": [receipt]})


def test_dead_letters_stay_at_home_once_the_right_is_withdrawn(rights: Rights, name: str) -> None:
    user = rights.user(".*", ".*", ".*")
    target = f"{name}-target"
    body = {"settings": {"partitions": 1, "dead_letter": {"topic": target}}}
    rights.ok("PUT", f"/v1/topics/{target}", {"settings": {"partitions": 1}})
    assert rights.as_user(user, "PUT", f"/v1/topics/{name}", body).status_code == 201
    rights.ok("PUT", f"/v1/topics/{name}/subscriptions/s", {})
    reject_one(rights, name)
    assert (rights.messages(target), rights.messages(f"{name}.dlq")) == (["x"], [])
    before = rights.metric("braid_disabled_references")
    rights.grant(user, ".*", f"^{name}$", ".*")
    rights.node.wait_for_log("dead letters go to the default topic", name, user)
    assert rights.metric("braid_disabled_references") == before + 1
    assert rights.ok("GET", f"/v1/topics/{name}")["disabled"] == ["dead_letter"]
    reject_one(rights, name)
    assert (rights.messages(target), rights.messages(f"{name}.dlq")) == (["x"], ["x"])
    letters = rights.ok("GET", f"/v1/topics/{name}/dead-letters")
    assert (letters["topic"], len(letters["letters"])) == (f"{name}.dlq", 1)
    # Back with the right; and set again by somebody who has it.
    rights.grant(user, ".*", ".*", ".*")
    assert "disabled" not in rights.ok("GET", f"/v1/topics/{name}")
    rights.ok("DELETE", f"/v1/users/{user}")
    assert rights.ok("GET", f"/v1/topics/{name}")["disabled"] == ["dead_letter"]
    rights.ok("PATCH", f"/v1/topics/{name}", {"settings": {"dead_letter": {"topic": target}}})
    reject_one(rights, name)
    assert rights.messages(target) == ["x", "x"]


def test_of_an_amqp_queue_and_who_declares_it_again(rights: Rights, name: str) -> None:
    user, other = rights.user(".*", ".*", ".*"), rights.user(".*", ".*", ".*")
    rights.ok("PUT", f"/v1/exchanges/{name}-dlx", {"kind": "fanout"})
    declare = m.QueueDeclare(
        name, durable=True, arguments={"x-dead-letter-exchange": f"{name}-dlx"}
    )
    with rights.amqp(user) as client:
        client.ask(1, declare, m.QueueDeclareOk)
    rights.grant(user, ".*", "^nothing", ".*")
    assert rights.ok("GET", f"/v1/topics/{name}")["disabled"] == ["dead_letter"]
    with rights.amqp(user) as client:
        client.ask(1, declare, m.QueueDeclareOk)
    assert rights.ok("GET", f"/v1/topics/{name}")["disabled"] == ["dead_letter"]
    with rights.amqp(other) as client:
        client.ask(1, declare, m.QueueDeclareOk)
    assert "disabled" not in rights.ok("GET", f"/v1/topics/{name}")


def test_an_alternate_exchange_is_none_without_the_right(rights: Rights, name: str) -> None:
    user = rights.user(".*", ".*", ".*")
    rights.ok("PUT", f"/v1/topics/{name}", {"settings": {"partitions": 1}})
    rights.ok("PUT", f"/v1/exchanges/{name}-a", {"kind": "fanout"})
    rights.ok("POST", "/v1/bindings", {"source": f"{name}-a", "destination": name})
    body = {"kind": "fanout", "alternate_exchange": f"{name}-a"}
    assert rights.as_user(user, "PUT", f"/v1/exchanges/{name}", body).is_success

    def routed() -> list[str]:
        publish = {"messages": [{"value": "x"}]}
        topics: list[str] = rights.ok("POST", f"/v1/exchanges/{name}/messages", publish)["topics"]
        return topics

    assert routed() == [name]
    rights.grant(user, ".*", "^nothing", ".*")
    assert routed() == []
    assert rights.ok("GET", f"/v1/exchanges/{name}")["disabled"] == ["alternate_exchange"]
    rights.ok("PUT", f"/v1/exchanges/{name}", body)
    assert routed() == [name]


def test_nothing_goes_through_a_binding_without_the_right(rights: Rights, name: str) -> None:
    user = rights.user(".*", ".*", ".*")
    rights.ok("PUT", f"/v1/topics/{name}", {"settings": {"partitions": 1}})
    rights.ok("PUT", f"/v1/exchanges/{name}-secret", {"kind": "fanout"})
    binding = {"source": f"{name}-secret", "destination": name}
    assert rights.as_user(user, "POST", "/v1/bindings", binding).is_success

    def publish() -> list[str]:
        body = {"messages": [{"value": "x"}]}
        path = f"/v1/exchanges/{name}-secret/messages"
        topics: list[str] = rights.ok("POST", path, body)["topics"]
        return topics

    assert publish() == [name]
    rights.grant(user, ".*", ".*", f"^{name}$")
    assert publish() == []
    shown = rights.ok("GET", f"/v1/bindings?source={name}-secret")
    assert [each["disabled"] for each in shown] == [True]
    rights.grant(user, ".*", ".*", ".*")
    assert publish() == [name]
    # Of a user who is gone it stays: a message that finds no way would be lost.
    rights.ok("DELETE", f"/v1/users/{user}")
    assert publish() == [name]
    rights.ok("DELETE", f"/v1/bindings?source={name}-secret&destination={name}")
    assert publish() == []


def test_it_is_so_after_a_restart(tmp_path: Any) -> None:
    with live_node(tmp_path) as first, Rights(first) as rights:
        user = rights.user(".*", ".*", ".*")
        rights.ok("PUT", "/v1/topics/target", {})
        rights.ok("PUT", "/v1/exchanges/secret", {"kind": "fanout"})
        for path, body in (
            ("topics/t", {"settings": {"dead_letter": {"topic": "target"}}}),
            ("exchanges/e", {"alternate_exchange": "target"}),
        ):
            assert rights.as_user(user, "PUT", f"/v1/{path}", body).is_success
        binding = {"source": "secret", "destination": "t"}
        assert rights.as_user(user, "POST", "/v1/bindings", binding).is_success
        rights.grant(user, ".*", "^nothing", "^nothing")
        first.kill()
    with live_node(tmp_path) as second, Rights(second) as rights:
        assert rights.metric("braid_disabled_references") == 3
        assert rights.ok("GET", "/v1/topics/t")["disabled"] == ["dead_letter"]
        assert rights.ok("GET", "/v1/exchanges/e")["disabled"] == ["alternate_exchange"]
        assert rights.ok("GET", "/v1/bindings")[0]["disabled"] is True
        rights.grant(user, ".*", ".*", ".*")
        assert rights.metric("braid_disabled_references") == 0


def test_a_transaction_publishes_nothing_that_may_not_be_published_any_more(
    rights: Rights, name: str
) -> None:
    user = rights.user(".*", ".*", ".*")
    rights.ok("PUT", f"/v1/exchanges/{name}", {"kind": "fanout"})
    with rights.amqp(user) as client:
        client.ask(1, m.TxSelect(), m.TxSelectOk)
        client.publish(1, "", b"x", exchange=name)
        client.ask(1, m.BasicQos(0, 1, False), m.BasicQosOk)
        rights.grant(user, ".*", "^nothing", ".*")
        assert client.ask(1, m.TxCommit(), m.ChannelClose).reply_code == 403


def test_a_will_is_not_published_without_the_right(rights: Rights, name: str) -> None:
    from braidmq.wire.mqtt.packets import Will

    user = rights.user("", f"^{name}", f"^{name}")
    with RawMqtt(rights.node) as listener:
        listener.connect()
        listener.subscribe(f"{name}/#")
        with RawMqtt(rights.node) as client:
            will = Will(f"{name}/will", b"gone")
            client.connect(user_name=user, password=PASSWORD.encode(), will=will)
            client.subscribe(f"{name}/x")
            rights.grant(user, "", "", f"^{name}")
        rights.node.wait_for_log("a will was not published", user)
        assert listener.ping() == []


# --- the broker's own ---


def test_what_waits_for_a_session_is_nobodys_by_its_name(rights: Rights, name: str) -> None:
    session = f"$mqtt/session/{name}"
    encoded = session.replace("/", "%2F")
    with RawMqtt(rights.node, Version.V3_1_1) as client:
        client.connect(name, clean_start=False)
        client.subscribe(f"{name}/#", qos=1)
    with RawMqtt(rights.node) as publisher:
        publisher.connect()
        publisher.answer(publisher.publish(f"{name}/x", b"for the session", 1))
    forging = (
        ("POST", f"/v1/topics/{encoded}/messages", {"value": "forged"}),
        ("POST", "/v1/bindings", {"source": "amq.fanout", "destination": session}),
        ("PUT", f"/v1/topics/{name}", {"settings": {"dead_letter": {"topic": session}}}),
    )
    others = (
        ("GET", f"/v1/topics/{encoded}/partitions/0/messages", None),
        ("DELETE", f"/v1/topics/{encoded}", None),
        ("POST", f"/v1/topics/{encoded}/purge", None),
    )
    user = rights.user(".*", ".*", ".*")
    for method, path, body in (*others, *forging):
        response = rights.as_user(user, method, path, body)
        assert response.status_code == 403, (path, response.text)
    for method, path, body in forging:
        response = rights.http.request(method, path, json=body)
        assert response.status_code == 403, (path, response.text)
    assert rights.messages(encoded) == ["for the session"], "an administrator may look"
    with rights.amqp() as amqp:
        amqp.publish(1, session, b"forged")
        assert amqp.ask(1, m.QueueDeclare(session, passive=True), m.ChannelClose).reply_code == 404
        amqp.method(1, m.ChannelCloseOk())
        amqp.ask(1, m.ChannelOpen(), m.ChannelOpenOk)
        assert amqp.ask(1, m.QueuePurge(session), m.ChannelClose).reply_code == 404
    with RawMqtt(rights.node, Version.V3_1_1) as client:
        assert client.connect(name, clean_start=False).session_present
        assert client.message().payload == b"for the session"
        assert client.ping() == []
