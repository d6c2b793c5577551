"""Retained messages against a dict and the plainest matcher there is."""

from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.engine.envelope import MQTT
from braidmq.gateways.mqtt.message import envelope_of
from braidmq.gateways.mqtt.retained import Retained
from braidmq.gateways.mqtt.settings import MqttSettings
from braidmq.record.batch import Record
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.store import Store
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.properties import NO_PROPERTIES

WORDS = st.sampled_from(["a", "b", "", "$s", "é"])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool)
FILTERS = st.tuples(st.lists(st.one_of(WORDS, st.just("+")), max_size=4), st.booleans()).map(
    lambda parts: "/".join([*parts[0], "#"] if parts[1] else parts[0])
)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["n", "m"]), TOPICS, st.sampled_from([b"", b"x", b"yy"])), max_size=20
)


def record(topic: str, payload: bytes, expires_at_ms: int = 0) -> Record:
    envelope = envelope_of(topic.encode(), 4, NO_PROPERTIES)
    return Record(0, 1, None, payload, envelope, MQTT)._replace(expires_at_ms=expires_at_ms)


def find(retained: Retained, namespace: str, pattern: str, now_ms: int) -> list[tuple[str, Record]]:
    walk = retained.walk(namespace, pattern)
    found = []
    while walk is not None and not walk.is_over:
        topic = walk.step()
        message = None if topic is None else retained.get(namespace, topic, now_ms)
        if topic is not None and message is not None:
            found.append((topic, message))
    return found


def matches(pattern: list[str], topic: list[str], first: bool = True) -> bool:
    if not pattern:
        return not topic
    hidden = first and bool(topic) and topic[0].startswith("$")
    if pattern[0] == "#":
        return not hidden
    if not topic or (pattern[0] == "+" and hidden) or pattern[0] not in ("+", topic[0]):
        return False
    return matches(pattern[1:], topic[1:], False)


@settings(max_examples=30)
@given(OPERATIONS, st.lists(FILTERS.filter(bool), max_size=5))
def test_what_was_kept_last_is_found_by_every_filter(
    operations: list[tuple[str, str, bytes]], filters: list[str]
) -> None:
    store = Store.open(MemoryDisk())
    retained = Retained(store, MqttSettings())
    model: dict[tuple[str, str], bytes] = {}
    for namespace, topic, payload in operations:
        if payload:
            retained.keep(namespace, topic, record(topic, payload))
            model[namespace, topic] = payload
        else:
            retained.forget(namespace, topic)
            model.pop((namespace, topic), None)
    # A second look is what a restart sees: it has only the catalogue.
    for one in (retained, Retained(store, MqttSettings())):
        assert one.count == len(model)
        for namespace in ("n", "m"):
            for pattern in filters:
                expected = {
                    topic: payload
                    for (where, topic), payload in model.items()
                    if where == namespace and matches(pattern.split("/"), topic.split("/"))
                }
                found = find(one, namespace, pattern, 5)
                assert len(found) == len(expected)
                assert {topic: each.value for topic, each in found} == expected
    store.close()


def test_limits_and_expiry() -> None:
    store = Store.open(MemoryDisk())
    retained = Retained(store, MqttSettings(retained_messages_max=2, retained_bytes_max=200))
    retained.keep("n", "a", record("a", b"1", expires_at_ms=10))
    retained.keep("n", "b", record("b", b"2"))
    for topic, payload in (("c", b"3"), ("b", b"x" * 300), ("/" * 128, b"deep")):
        try:
            retained.keep("n", topic, record(topic, payload))
        except MqttError:
            continue
        raise AssertionError(topic)
    assert [topic for topic, _ in find(retained, "n", "#", 9)] == ["a", "b"]
    assert [topic for topic, _ in find(retained, "n", "#", 10)] == ["b"]
    retained.keep("n", "c", record("c", b"3"))
    retained.forget_namespace("n")
    assert (retained.count, retained.bytes, find(retained, "n", "#", 0)) == (0, 0, [])
    store.close()
