"""Durable queues over MQTT: groups, answers, order, retries, dead letters (catalogue rows L)."""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import httpx
import pika
import pytest
from queue_worker import Worker, quiet, said, user
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from braidmq.wire.mqtt.properties import Properties

GUEST = ("guest", "guest")
QUICK = {"initial_backoff": "10ms", "max_backoff": "20ms"}
KEPT = {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}


def test_three_workers_share_and_an_analyst_gets_everything(node: LiveNode, name: str) -> None:
    with ExitStack() as stack:
        one, two, three, analyst, maker = (stack.enter_context(Worker(node)) for _ in range(5))
        workers = (one, two, three)
        for number, worker in enumerate(workers):
            worker.connect(f"{name}-{number}")
            assert worker.join(name, "workers") == (1,)
        analyst.connect(f"{name}-analyst")
        analyst.join(name, "analytics")
        maker.connect()
        wanted = [b"%d" % number for number in range(30)]
        for payload in wanted:
            assert maker.put(name, payload) == 0
        got = Counter(analyst.take(name).payload for _ in wanted)
        assert got == Counter(wanted)
        # Nothing is answered for yet: all three have an equal share.
        shares = [[worker.message() for _ in range(10)] for worker in workers]
        assert Counter(each.payload for share in shares for each in share) == Counter(wanted)
        for worker, share in zip(workers, shares, strict=True):
            for message in share:
                worker.ack(name, message)
        groups = {each["name"]: each for each in maker.ask(f"{name}/stats")["stats"]["groups"]}
        assert {each["depth"] for each in groups.values()} == {0}
        assert groups["workers"]["acked"] == groups["analytics"]["acked"] == 30


def test_what_a_delivery_says(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        given = Properties(
            subscription_identifiers=(7,), user_properties=user(consumer_group="g").user_properties
        )
        client.subscribe(f"$queue/{name}", qos=1, properties=given)
        properties = Properties(
            content_type="text/plain",
            correlation_data=b"\xff",
            response_topic="answers/1",
            user_properties=(
                ("partition-key", "customer-5"),
                ("colour", "blue"),
                ("offset", "not this"),
                ("priority", "3"),
            ),
        )
        client.publish(f"$queue/{name}", b"body", 1, properties=properties)
        message = client.message()
        facts = said(message)
        assert (message.topic, message.payload, message.qos) == (f"$queue/{name}", b"body", 1)
        assert (message.properties.content_type, message.properties.correlation_data) == (
            "text/plain",
            b"\xff",
        )
        assert message.properties.subscription_identifiers == (7,)
        assert message.properties.response_topic == "answers/1"
        assert facts.pop("timestamp-ms").isdecimal()
        assert facts == {
            "message-id": f"{facts['partition']}-0",
            "partition-key": "customer-5",
            "colour": "blue",
            "consumer-group": "g",
            "partition": facts["partition"],
            "offset": "0",
            "delivery-count": "1",
            "priority": "3",
        }


def test_a_message_forwarded_with_all_it_says_is_not_bound_to_its_partition(
    node: LiveNode, name: str
) -> None:
    """A queue that has no such partition would refuse it."""
    with Worker(node) as client:
        client.connect()
        assert client.ask("create", name=name, partitions=3)["ok"]
        assert client.ask("create", name=f"{name}-copies", partitions=1)["ok"]
        client.join(name, "g")
        client.join(f"{name}-copies", "g")
        client.put(name, b"placed", to_partition="2")
        first = client.message()
        assert said(first)["partition"] == "2"
        assert "to-partition" not in said(first)
        copied = Properties(user_properties=first.properties.user_properties)
        sent = client.publish(f"$queue/{name}-copies", first.payload, 1, properties=copied)
        assert client.answer(sent) == 0
        copy = client.message()
        assert (copy.topic, said(copy)["partition"]) == (f"$queue/{name}-copies", "0")


def test_a_publisher_may_give_a_message_its_id(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.join(name, "g")
        client.put(name, b"", message_id="order-17")
        message = client.message()
        assert said(message)["message-id"] == "order-17"
        client.ack(name, message)


def test_messages_of_one_key_keep_their_order(node: LiveNode, name: str) -> None:
    """Three workers, and each message fails once: still nobody overtakes its own key."""
    with Worker(node) as maker:
        maker.connect()
        assert maker.ask("create", name=name, retry_policy=QUICK)["ok"]
        workers = [Worker(node) for _ in range(3)]
        for number, worker in enumerate(workers):
            worker.connect(f"{name}-{number}", properties=Properties(receive_maximum=2))
            worker.join(name, "g")
        for number in range(8):
            for key in "abc":
                maker.put(name, f"{key}{number}".encode(), partition_key=key)
        done: list[str] = []
        while len(done) < 24:
            for worker in workers:
                worker.sock.settimeout(0.02)
                try:
                    message = worker.message()
                except TimeoutError:
                    continue
                finally:
                    worker.sock.settimeout(20)
                if said(message)["delivery-count"] == "1":
                    assert worker.say(name, "nack", message).reason == 0
                else:
                    worker.ack(name, message)
                    done.append(message.payload.decode())
        for key in "abc":
            assert [each for each in done if each[0] == key] == [f"{key}{n}" for n in range(8)]
        for worker in workers:
            worker.sock.close()


def test_ten_failures_make_a_dead_letter_which_can_be_tried_again(
    node: LiveNode, name: str
) -> None:
    with Worker(node) as client, Worker(node) as undertaker:
        client.connect()
        assert client.ask("create", name=f"$queue/{name}", retry_policy=QUICK)["ok"]
        client.join(name, "g")
        client.put(name, b"poison", partition_key="k", colour="blue")
        for attempt in range(1, 11):
            message = client.message()
            assert said(message)["delivery-count"] == str(attempt)
            assert message.dup == (attempt > 1)
            client.say(name, "nack", message, reason="database is down")
        undertaker.connect()
        undertaker.join(f"dlq/{name}", "g")
        letter = undertaker.message()
        assert (letter.topic, letter.payload) == (f"$queue/dlq/{name}", b"poison")
        facts = said(letter)
        told = {key.removeprefix("x-death-"): text for key, text in facts.items()}
        assert told["reason"] == "max-attempts"
        assert (told["topic"], told["attempts"], told["subscription"]) == (name, "10", "g")
        assert told["error"] == "database is down"
        assert (facts["partition-key"], facts["colour"]) == ("k", "blue")
        assert client.ask(f"{name}/stats")["stats"]["dead_letters"] == 1
        path = f"{node.http_url}/v1/topics/{name}/dead-letters/retry"
        held = httpx.post(path, auth=GUEST)
        assert held.json() == {"count": 0, "more": False, "stayed": 1}
        undertaker.say(f"dlq/{name}", "nack", letter)
        retry = httpx.post(path, auth=GUEST)
        assert retry.json() == {"count": 1, "more": False, "stayed": 0}
        again = client.take(name)
        assert again.payload == b"poison"
        assert said(again)["delivery-count"] == "1"
        assert not any(key.startswith("x-death") for key in said(again))
        assert client.ask(f"{name}/stats")["stats"]["dead_letters"] == 0


def test_a_rejected_message_is_dead_at_once(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.join(name, "g")
        client.put(name, b"no order")
        client.say(name, "reject", client.message(), reason="not an order")
        client.join(f"dlq/{name}", "g")
        facts = said(client.message())
        assert (facts["x-death-reason"], facts["x-death-error"]) == ("rejected", "not an order")


def test_a_reason_has_a_length(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.join(name, "g")
        client.put(name, b"no order")
        message = client.message()
        refused = client.say(name, "reject", message, reason="x" * 4097)
        assert refused.reason >= 0x80
        assert "at most 4096" in (refused.properties.reason_string or "")
        assert client.say(name, "reject", message, reason="x" * 4096).reason == 0
        client.join(f"dlq/{name}", "g")
        assert said(client.message())["x-death-error"] == "x" * 4096


def test_who_does_not_answer_in_time_loses_the_message(node: LiveNode, name: str) -> None:
    with Worker(node) as slow, Worker(node) as other:
        slow.connect(properties=Properties(receive_maximum=1))
        timeout = {"delivery_timeout": "50ms"}
        assert slow.ask("create", name=name, retry_policy=QUICK, performance=timeout)["ok"]
        slow.join(name, "g")
        slow.put(name, b"work")
        late = slow.message()
        assert said(late)["delivery-count"] == "1"
        slow.send(Unsubscribe(slow.next_id(), (f"$queue/{name}",)))
        slow.expect(UnsubAck)
        other.connect()
        other.join(name, "g")
        again = other.message()
        assert int(said(again)["delivery-count"]) >= 2
        answer = slow.say(name, "ack", late)
        assert answer.reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
        assert said(late)["message-id"] in (answer.properties.reason_string or "")


def test_a_worker_that_goes_leaves_its_messages_to_others(node: LiveNode, name: str) -> None:
    with Worker(node) as one, Worker(node) as two:
        one.connect()
        one.join(name, "g")
        one.put(name, b"work")
        one.message()
        two.connect()
        two.join(name, "g")
        one.sock.close()
        assert said(two.take(name))["delivery-count"] == "2"


def test_who_unsubscribes_may_finish_what_it_has(node: LiveNode, name: str) -> None:
    with Worker(node) as one, Worker(node) as two:
        one.connect()
        one.join(name, "g")
        one.put(name, b"first")
        message = one.message()
        one.send(Unsubscribe(one.next_id(), (f"$queue/{name}",)))
        assert one.expect(UnsubAck).reasons == (0,)
        two.connect()
        two.join(name, "g")
        one.put(name, b"second")
        assert two.take(name).payload == b"second"
        one.ack(name, message)
        assert one.ask(f"{name}/stats")["stats"]["groups"][0]["depth"] == 0


def test_messages_with_one_id_are_answered_for_one_by_one(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.join(name, "g")
        for payload in (b"a", b"b", b"c"):
            client.put(name, payload, message_id="the same")
        messages = [client.message() for _ in range(3)]
        assert {said(each)["message-id"] for each in messages} == {"the same"}
        assert client.say(name, "nack", messages[0], delay_ms="0").reason == 0
        again = client.message()
        assert said(again)["delivery-count"] == "2"
        for message in (*messages[1:], again):
            client.ack(name, message)
        assert client.say(name, "ack", again).reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR
        (group,) = client.ask(f"{name}/stats")["stats"]["groups"]
        assert (group["depth"], group["in_flight"], group["acked"]) == (0, 0, 3)


@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_plain_client_acknowledges_by_the_protocol(
    node: LiveNode, name: str, version: int, qos: int
) -> None:
    """Its group is what comes before the last dash of its client id."""
    queue = f"$queue/{name}"
    with RawMqtt(node, version) as one, RawMqtt(node, version) as two, Worker(node) as watch:
        one.connect(f"{name}:plain-1")
        mode = user(ack_mode="puback") if version == Version.V5 else Properties()
        assert one.subscribe(queue, qos=qos, properties=mode) == (qos,)
        watch.connect()
        for number in range(6):
            sent = one.publish(queue, b"%d" % number, qos)
            if not qos:
                continue
            wanted = {PubAck, PubRec, PubRel, PubComp}
            assert sent.packet_id in _drain(one, wanted, sent)
        got = _all(one, 6)
        assert got == {b"%d" % number for number in range(6)}
        two.connect(f"{name}:plain-2")
        two.subscribe(queue, qos=qos, properties=mode)
        assert quiet(two)
        (group,) = watch.ask(f"{name}/stats")["stats"]["groups"]
        assert (group["name"], group["depth"], group["acked"]) == (f"{name}:plain", 0, 6)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_version_5_answers_by_message_id_also_without_naming_a_group(
    node: LiveNode, name: str, qos: int
) -> None:
    with Worker(node) as client:
        client.connect(f"{name}:plain-1")
        assert client.subscribe(f"$queue/{name}", qos=qos) == (qos,)
        client.put(name, b"again")
        message = client.expect(Publish)
        if qos == 1:
            client.send(PubAck(message.packet_id))
        elif qos == 2:
            client.send(PubRec(message.packet_id))
            client.send(PubComp(client.expect(PubRel).packet_id))
        assert client.say(name, "nack", message, delay_ms="0").reason == 0
        again = client.expect(Publish)
        assert said(again)["delivery-count"] == "2"
        client.ack(name, again)
        (group,) = client.ask(f"{name}/stats")["stats"]["groups"]
        assert (group["name"], group["depth"], group["acked"]) == (f"{name}:plain", 0, 1)


HELD: dict[int, list[Publish]] = {}


def _drain(client: RawMqtt, wanted: set[type], sent: Publish) -> list[int]:
    """Complete one publish; messages that come meanwhile are held."""
    seen = []
    while True:
        packet = client.packet()
        if isinstance(packet, Publish):
            HELD.setdefault(id(client), []).append(packet)
            continue
        assert type(packet) in wanted
        seen.append(packet.packet_id)
        if isinstance(packet, PubRec):
            client.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubAck | PubComp):
            return seen


def _all(client: RawMqtt, count: int) -> set[bytes]:
    """The payloads of so many messages, each acknowledged."""
    held, got = HELD.pop(id(client), []), set()
    while len(got) < count:
        message = held.pop(0) if held else client.expect(Publish)
        got.add(message.payload)
        if message.qos == 1:
            client.send(PubAck(message.packet_id))
        elif message.qos == 2:
            client.send(PubRec(message.packet_id))
            while not isinstance(packet := client.packet(), PubRel):
                assert isinstance(packet, Publish)
                held.append(packet)
            client.send(PubComp(packet.packet_id))
    assert quiet(client)
    return got


def test_a_group_can_be_named_by_a_shared_filter(node: LiveNode, name: str) -> None:
    """The one way that 3.1.1 has."""
    with RawMqtt(node, Version.V3_1_1) as old, Worker(node) as new:
        old.connect()
        assert old.subscribe(f"$share/team/$queue/{name}", qos=1) == (1,)
        new.connect()
        new.put(name, b"work")
        assert old.message().topic == f"$queue/{name}"
        assert quiet(old)
        (group,) = new.ask(f"{name}/stats")["stats"]["groups"]
        assert (group["name"], group["acked"]) == ("team", 1)


def test_puback_can_say_that_it_failed(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.ask("create", name=name, retry_policy=QUICK)
        client.join(name, "g", ack_mode="puback")
        client.put(name, b"work")
        client.send(PubAck(client.expect(Publish).packet_id, Reason.UNSPECIFIED_ERROR))
        again = client.expect(Publish)
        assert said(again)["delivery-count"] == "2"
        client.send(PubAck(again.packet_id, Reason.PAYLOAD_FORMAT_INVALID))
        client.join(f"dlq/{name}", "g", ack_mode="puback")
        assert said(client.message())["x-death-error"] == "refused with 0x99"


@pytest.mark.parametrize("mode", ["explicit", "puback"])
def test_no_more_in_flight_than_the_receive_maximum(node: LiveNode, name: str, mode: str) -> None:
    with Worker(node) as client, Worker(node) as maker:
        maker.connect()
        client.connect(properties=Properties(receive_maximum=3))
        client.join(name, "g", ack_mode=mode)
        client.subscribe(f"{name}/other", qos=1)
        for number in range(6):
            maker.put(name, b"%d" % number)
        first = [client.expect(Publish) for _ in range(3)]
        assert maker.answer(maker.publish(f"{name}/other", b"", 1)) == 0
        assert quiet(client)
        if mode == "puback":
            client.send(PubAck(first[0].packet_id))
            client.expect(Publish)
        else:
            # Answered for, but the packet itself is not confirmed: still three.
            client.ack(name, first[0])
            assert quiet(client)
            client.send(PubAck(first[0].packet_id))
            client.expect(Publish)
        assert quiet(client)


def test_many_are_answered_for_at_once(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.join(name, "g")
        for _ in range(5):
            client.put(name)
        ids = tuple(("message-id", said(client.message())["message-id"]) for _ in range(5))
        done = Properties(user_properties=ids)
        assert client.answer(client.publish(f"$queue/{name}/$ack", b"", 2, properties=done)) == 0
        assert client.ask(f"{name}/stats")["stats"]["groups"][0]["depth"] == 0


def test_a_request_is_answered_in_one_step(node: LiveNode, name: str) -> None:
    """$reply publishes to the response topic with the correlation data, and acknowledges."""
    with Worker(node) as asking, Worker(node) as answering:
        asking.connect()
        asking.subscribe(f"{name}/answers", qos=1)
        answering.connect()
        answering.join(name, "auth")
        question = Properties(response_topic=f"{name}/answers", correlation_data=b"\0\x01")
        asking.publish(f"$queue/{name}", b"token?", 1, properties=question)
        request = answering.message()
        assert request.properties.response_topic == f"{name}/answers"
        given = Properties(
            content_type="text/plain",
            user_properties=(("message-id", said(request)["message-id"]),),
        )
        reply = answering.publish(f"$queue/{name}/$reply", b"valid", 1, properties=given)
        assert answering.answer(reply) == 0
        answer = asking.message()
        assert (answer.topic, answer.payload) == (f"{name}/answers", b"valid")
        assert answer.properties.correlation_data == b"\0\x01"
        assert answer.properties.content_type == "text/plain"
        assert asking.ask(f"{name}/stats")["stats"]["groups"][0]["depth"] == 0


def test_who_asks_over_amqp_gets_the_answer_in_its_queue(node: LiveNode, name: str) -> None:
    where = pika.ConnectionParameters("127.0.0.1", node.ports["amqp_port"])
    with pika.BlockingConnection(where) as connection, Worker(node) as answering:
        channel = connection.channel()
        channel.queue_declare(f"{name}.answers")
        answering.connect()
        answering.join(name, "auth")
        asked = pika.BasicProperties(reply_to=f"{name}.answers", correlation_id="17")
        channel.basic_publish("", name, b"token?", asked)
        request = answering.message()
        assert request.properties.correlation_data == b"17"
        answering.publish(
            f"$queue/{name}/$reply",
            b"valid",
            properties=user(message_id=said(request)["message-id"]),
        )
        _, properties, body = next(channel.consume(f"{name}.answers", inactivity_timeout=20))
        assert (properties.correlation_id, body) == ("17", b"valid")


def test_a_packet_id_of_queues_acknowledges_nothing_else(node: LiveNode, name: str) -> None:
    with RawMqtt(node) as client:
        client.connect(name, **KEPT)
        client.subscribe(name, qos=1)
        sent = client.publish(name, b"kept", 1)
        packets = [client.packet() for _ in range(2)]
        (message,) = [each for each in packets if isinstance(each, Publish)]
        assert sent.packet_id
        client.send(PubAck(message.packet_id + 0x7FFF))
        assert quiet(client)
    with RawMqtt(node) as client:
        client.connect(name, **KEPT)
        assert client.message().payload == b"kept"


# --- administration ---


def test_a_queue_is_made_with_its_defaults(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.put(f"tasks/{name}")
        assert client.ask(f"tasks/{name}/config")["queue"] == {
            "name": f"$queue/tasks/{name}",
            "partitions": 10,
            "partition_strategy": "hash",
            "ordering": "partition",
            "retry_policy": {
                "max_retries": 10,
                "initial_backoff": "5s",
                "max_backoff": "5m",
                "backoff_multiplier": 2.0,
                "total_timeout": "3h",
            },
            "dlq_config": {"enabled": True, "topic": f"$queue/dlq/tasks/{name}"},
            "limits": {
                "max_message_size": 1_048_576,
                "max_queue_depth": 100_000,
                "message_ttl": "168h",
                "keep_acknowledged": "0s",
                "keep_acknowledged_bytes": 0,
            },
            "performance": {"delivery_timeout": "30s", "batch_size": 500},
        }


def test_queues_are_made_and_changed(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        asked = {
            "partitions": 2,
            "limits": {"max_queue_depth": 3, "message_ttl": "1h30m"},
            "performance": {"batch_size": 1},
            "dlq_config": {"topic": "$queue/graveyard"},
        }
        made = client.ask("create", name=name, **asked)["queue"]
        assert (made["partitions"], made["limits"]["message_ttl"]) == (2, "90m")
        assert made["dlq_config"] == {"enabled": True, "topic": "$queue/graveyard"}
        assert client.ask("create", name=name, **asked)["ok"]
        assert client.ask("create", name=name)["error"]["code"] == "topic-exists"
        changed = client.ask(f"{name}/config", dlq_config={"enabled": False})["queue"]
        assert changed["dlq_config"] == {"enabled": False}
        assert changed["limits"] == made["limits"]
        assert [client.put(name) for _ in range(4)] == [0, 0, 0, Reason.QUOTA_EXCEEDED]
        client.join(name, "g")
        client.expect(Publish)
        assert quiet(client)  # a batch of one
        assert client.ask(f"{name}/stats")["stats"]["depth"] == 3


def test_what_has_no_effect_yet_is_taken_and_said(node: LiveNode, name: str) -> None:
    cluster = {"consumer_routing_mode": "proxy", "partition_strategy": "hash"}
    with Worker(node) as client:
        client.connect()
        made = client.ask("create", name=name, cluster=cluster)
        assert made["without_effect"] == ["cluster"]
        changed = client.ask(f"{name}/config", cluster=cluster)
        assert changed["without_effect"] == ["cluster"]
        assert "without_effect" not in client.ask(f"{name}/config", limits={"max_queue_depth": 3})


def test_a_queue_has_a_webhook_for_its_dead(node: LiveNode, name: str) -> None:
    """What is posted to it is in tests/alerts."""
    hook = "https://example.com/alerts"
    with Worker(node) as client:
        client.connect()
        made = client.ask("create", name=name, dlq_config={"topic": "$queue/graveyard"})
        assert "alert_webhook" not in made["queue"]["dlq_config"]
        changed = client.ask(f"{name}/config", dlq_config={"alert_webhook": hook})
        assert "without_effect" not in changed
        assert changed["queue"]["dlq_config"] == {
            "enabled": True,
            "topic": "$queue/graveyard",
            "alert_webhook": hook,
        }
        path = f"{node.http_url}/v1/topics/{quote(name, safe='')}"
        shown = httpx.get(path, auth=GUEST).json()
        assert shown["policy"]["dead_letter"]["alert_webhook"] == hook
        off = client.ask(f"{name}/config", dlq_config={"alert_webhook": None})
        assert off["queue"]["dlq_config"] == made["queue"]["dlq_config"]


@pytest.mark.parametrize(
    ("request_", "payload", "code"),
    [
        ("create", b"{", "bad-request"),
        ("create", b"[]", "bad-request"),
        ("create", b"{}", "bad-request"),
        ("create", b'{"name": "x", "colour": 1}', "bad-request"),
        ("create", b'{"name": "$queue/x/$ack"}', "bad-request"),
        ("create", b'{"name": "$internal"}', "mqtt-error"),
        ("create", b'{"name": "dlq/x"}', "bad-request"),
        ("create", b'{"name": "x", "ordering": "strict", "partitions": 3}', "illegal-policy"),
        ("create", b'{"name": "x", "dlq_config": {"alert_webhook": "me"}}', "illegal-policy"),
        ("create", b'{"name": "x", "limits": {"message_ttl": "soon"}}', "bad-request"),
        ("create", b'{"name": "x", "performance": {"batch_size": 0}}', "bad-request"),
        ("nobody/stats", b"", "unknown-queue"),
        ("nobody/config", b"{}", "unknown-queue"),
        ("nobody/delete", b"", "unknown-request"),
        ("stats", b"", "unknown-request"),
    ],
)
def test_mistakes_are_told(node: LiveNode, request_: str, payload: bytes, code: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.subscribe("answers")
        properties = Properties(response_topic="answers")
        sent = client.publish(f"$admin/queue/{request_}", payload, 1, properties=properties)
        assert client.expect(PubAck).packet_id == sent.packet_id
        answer = json.loads(client.message().payload)
        assert (answer["ok"], answer["error"]["code"]) == (False, code)


def test_an_old_client_hears_answers_at_a_fixed_topic(node: LiveNode, name: str) -> None:
    with RawMqtt(node, Version.V3_1_1) as client, RawMqtt(node, Version.V3_1_1) as other:
        for each in (client, other):
            each.connect()
            each.subscribe("$admin/queue/create/response")
        client.publish("$admin/queue/create", json.dumps({"name": name}).encode())
        assert json.loads(client.message().payload)["queue"]["name"] == f"$queue/{name}"
        assert quiet(other)


def test_statistics_come_to_who_subscribes(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.put(name)
        client.subscribe(f"$admin/queue/{name}/stats")
        stats = json.loads(client.message().payload)
        assert (stats["name"], stats["depth"]) == (f"$queue/{name}", 1)


def test_a_template_changes_the_defaults(node: LiveNode, name: str) -> None:
    body = {"pattern": f"^{name}", "settings": {"partitions": 3, "retry": {"attempts": 2}}}
    url = f"{node.http_url}/v1/templates/{name}"
    httpx.put(url, json=body, auth=GUEST).raise_for_status()
    with Worker(node) as client:
        client.connect()
        client.put(name)
        config = client.ask(f"{name}/config")["queue"]
        assert (config["partitions"], config["retry_policy"]["max_retries"]) == (3, 2)
        assert config["retry_policy"]["initial_backoff"] == "5s"


# --- what is refused ---


@pytest.mark.parametrize(
    "pattern",
    ["$queue/#", "$queue/+", "$queue/a/#", "$queue/", "$queue//$ack", "$queue/a/$ack", "$queue/$x"],
)
def test_filters_that_name_no_queue(node: LiveNode, pattern: str) -> None:
    with RawMqtt(node) as client, RawMqtt(node, Version.V3_1_1) as old:
        client.connect()
        client.send(Subscribe(1, (Request(pattern), Request("fine"))))
        answer = client.expect(SubAck)
        assert answer.reasons == (Reason.TOPIC_FILTER_INVALID, 0)
        assert pattern in (answer.properties.reason_string or "")
        old.connect()
        assert old.subscribe(pattern) == (0x80,)
        assert quiet(old)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("$queue/", Reason.TOPIC_NAME_INVALID),
        ("$queue/$mqtt/session/x", Reason.TOPIC_NAME_INVALID),
        ("$queue/dlq/x", Reason.TOPIC_NAME_INVALID),
        ("$queue/x/$ack", Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        (f"$queue/{'x' * 300}", Reason.TOPIC_NAME_INVALID),
    ],
)
def test_publishes_that_are_refused(node: LiveNode, topic: str, reason: int) -> None:
    with RawMqtt(node) as client:
        client.connect()
        for qos in (1, 2):
            assert client.answer(client.publish(topic, b"", qos)) == reason
        client.publish(topic)
        assert client.closing() == reason


@pytest.mark.parametrize("given", [{"priority": "high"}, {"delay_ms": "-1"}, {"user_id": "other"}])
def test_values_that_can_not_be_are_refused(
    node: LiveNode, name: str, given: dict[str, str]
) -> None:
    with Worker(node) as client:
        client.connect()
        reason = Reason.IMPLEMENTATION_SPECIFIC_ERROR
        assert client.put(name, b"", **given) == reason
        assert client.put(name, b"", qos=2, **given) == reason
        assert client.put(name, b"") == 0


def test_a_message_that_is_too_large(node: LiveNode, name: str) -> None:
    with Worker(node) as client, Worker(node) as small:
        client.connect()
        client.ask("create", name=name, limits={"max_message_size": 1000})
        assert client.put(name, bytes(1001)) == Reason.QUOTA_EXCEEDED
        assert client.put(name, bytes(1000)) == 0
        small.connect(properties=Properties(maximum_packet_size=500))
        small.join(name, "g")
        assert quiet(small)
        client.join(f"dlq/{name}", "g")
        assert "the client takes 500" in said(client.message())["x-death-error"]


def test_permissions_are_those_of_the_queue(tmp_path: Path) -> None:
    with live_node(tmp_path) as node:
        with httpx.Client(base_url=node.http_url, auth=GUEST) as admin:
            admin.put("/v1/users/device", json={"password": "secret"}).raise_for_status()
            grants = {"configure": "^own$", "write": "^(own|in)$", "read": "^(own|out)$"}
            admin.put("/v1/permissions/%2F/device", json=grants | {}).raise_for_status()
        with Worker(node) as guest:
            guest.connect()
            for name in ("in", "out"):
                assert guest.ask("create", name=name)["ok"]
        login = {"user_name": "device", "password": b"secret"}
        with Worker(node) as client:
            client.connect(**login)
            refused = Reason.NOT_AUTHORIZED
            assert [client.put(name) for name in ("own", "in", "out", "new")] == [
                *(0, 0),
                *(refused, refused),
            ]
            joined = [client.join(name, "g")[0] for name in ("own", "out", "in", "new")]
            assert joined == [1, 1, refused, refused]
            assert client.say("own", "ack", client.message()).reason == 0
            client.subscribe("answers/#")
        with RawMqtt(node) as client:
            client.connect(**login)
            client.subscribe("$admin/#")
            client.publish("$admin/queue/create", b'{"name": "other"}')
            assert quiet(client)  # may not read $admin/
        with RawMqtt(node) as client:
            answer = client.connect(will=Will("$queue/out", b"gone"), **login)
            assert answer.reason == Reason.NOT_AUTHORIZED
        assert not node.complaints


def test_a_will_may_go_to_a_queue(node: LiveNode, name: str) -> None:
    with Worker(node) as client, Worker(node) as watcher:
        watcher.connect()
        watcher.join(name, "g")
        client.connect(will=Will(f"$queue/{name}", b"gone", 1, properties=user(partition_key="k")))
        client.sock.close()
        message = watcher.take(name)
        assert (message.payload, said(message)["partition-key"]) == (b"gone", "k")


def test_who_reads_from_a_queue_that_is_deleted_is_told(node: LiveNode, name: str) -> None:
    with Worker(node) as client:
        client.connect()
        client.join(name, "g")
        httpx.delete(f"{node.http_url}/v1/topics/{name}", auth=GUEST).raise_for_status()
        assert client.closing() == Reason.ADMINISTRATIVE_ACTION


# --- what stays ---


def test_a_session_goes_on_with_its_queues(node: LiveNode, name: str) -> None:
    with Worker(node) as maker:
        maker.connect()
        with Worker(node) as client:
            client.connect(name, **KEPT)
            assert client.join(name, "g", qos=2) == (1,)  # of QoS 2 no id could be kept
            maker.put(name, b"first")
            client.message()
        maker.put(name, b"second")
        with Worker(node) as client:
            assert client.connect(name, **KEPT).session_present
            got = {client.take(name).payload for _ in range(2)}
            assert got == {b"first", b"second"}
            client.send(Unsubscribe(client.next_id(), (f"$queue/{name}",)))
            client.expect(UnsubAck)
        with Worker(node) as client:
            client.connect(name, **KEPT)
            maker.put(name, b"third")
            assert quiet(client)


@pytest.mark.crash
def test_queues_and_groups_survive_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, Worker(node) as maker, Worker(node) as worker:
        maker.connect("maker", **KEPT)
        assert maker.ask("create", name="q", retry_policy=QUICK, partitions=3)["ok"]
        worker.connect("worker", **KEPT)
        worker.join("q", "workers")
        worker.join("other", "workers")
        for number in range(30):
            assert maker.put("q", b"%d" % number, qos=1 + number % 2) == 0
        taken = {worker.take("q").payload for _ in range(10)}
        given_back = worker.message()
        assert worker.say("q", "nack", given_back, delay_ms="3600000").reason == 0
        rejected = worker.message()
        assert worker.say("q", "reject", rejected, reason="broken").reason == 0
        open_ = worker.message()
        node.kill()
    with live_node(tmp_path) as node, Worker(node) as worker, Worker(node) as analyst:
        assert worker.connect("worker", **KEPT).session_present
        left = {b"%d" % number for number in range(30)} - taken
        left -= {given_back.payload, rejected.payload}
        got = {}
        while len(got) < len(left):
            message = worker.message()
            worker.ack("q", message)
            got[message.payload] = int(said(message)["delivery-count"])
        assert got.keys() == left
        assert got[open_.payload] == 2
        stats = worker.ask("q/stats")["stats"]
        assert (stats["groups"][0]["depth"], stats["dead_letters"]) == (1, 1)
        analyst.connect()
        analyst.join("dlq/q", "g")
        assert said(analyst.take("dlq/q"))["x-death-error"] == "broken"


@pytest.mark.crash
def test_what_was_confirmed_is_in_the_queue_once_at_qos_2(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, Worker(node) as maker:
        maker.connect("maker", **KEPT)
        assert maker.put("q", b"done", qos=2) == 0
        half = maker.publish("$queue/q", b"half", 2, properties=user(partition_key="k"))
        assert maker.expect(PubRec).packet_id == half.packet_id
        node.kill()
    with live_node(tmp_path) as node, Worker(node) as maker, Worker(node) as worker:
        assert maker.connect("maker", **KEPT).session_present
        again = Publish("$queue/q", b"half", 2, dup=True, packet_id=half.packet_id)
        maker.send(again)
        assert maker.answer(again) == 0
        worker.connect()
        worker.join("q", "g")
        assert {worker.take("q").payload for _ in range(2)} == {b"done", b"half"}
        assert quiet(worker)


def test_nonsense_hurts_only_who_sends_it(node: LiveNode, name: str) -> None:
    with Worker(node) as good, RawMqtt(node) as bad:
        good.connect()
        good.join(name, "g")
        bad.connect()
        bad.subscribe(f"$queue/{name}", qos=1, properties=user(ack_mode="sometimes"))
        bad.send(PubAck(0x8000), PubRec(0xFFFF), PubComp(0x8001))
        bad.publish(f"$queue/{name}/$nack", b"", 1, properties=user(message_id="x", delay_ms="no"))
        bad.publish("$queue/", b"")
        while not isinstance(bad.packet(), Disconnect):
            pass
        good.put(name, b"fine")
        assert good.take(name).payload == b"fine"
