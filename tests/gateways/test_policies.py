"""AMQP policies as templates of an engine. That they act as RabbitMQ's is seen in
tests/differential/amqp."""

from collections.abc import Iterator
from typing import Any

import pytest

from braidmq.engine.engine import Engine
from braidmq.engine.errors import UnknownTemplate
from braidmq.engine.policy import IllegalPolicy
from braidmq.gateways.policies import (
    Policy,
    age_ms,
    deleting_policy,
    find_policy,
    list_policies,
    setting_policy,
)
from braidmq.storage.disk import MemoryDisk

NOW = 1_700_000_000_000


def set_policy(engine: Engine, policy: Policy, *, now_ms: int) -> None:
    for _ in setting_policy(engine, policy, now_ms=now_ms):
        pass


def delete_policy(engine: Engine, namespace: str, name: str, *, now_ms: int) -> None:
    for _ in deleting_policy(engine, namespace, name, now_ms=now_ms):
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = Engine.open(MemoryDisk(), NOW)
    yield opened
    opened.close()


def policy(name: str = "p", pattern: str = "", priority: int = 0, **definition: Any) -> Policy:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    return Policy("/", name, pattern, keys, priority)


def test_a_policy_is_shown_as_it_was_given_and_survives_a_restart() -> None:
    disk = MemoryDisk()
    engine = Engine.open(disk, NOW)
    given = Policy("/", "p", "^q", {"max-length": 5, "ha-mode": "all"}, -3, "classic_queues")
    engine.topics.create("/", "q", now_ms=NOW, kind="classic")
    engine.exchanges.declare("/", "x", "direct")
    set_policy(engine, given, now_ms=NOW)
    set_policy(engine, policy("x", "^x", alternate_exchange="amq.fanout"), now_ms=NOW)
    engine.store.commit()
    engine.close()
    engine = Engine.open(disk, NOW)
    assert find_policy(engine, "/", "p") == given
    assert engine.state.topic("/", "q").policy.max_messages == 5
    assert engine.exchanges.router("/").resolve("x", b"k").via_alternate
    delete_policy(engine, "/", "p", now_ms=NOW)
    delete_policy(engine, "/", "x", now_ms=NOW)
    assert engine.state.topic("/", "q").policy.max_messages is None
    assert not engine.exchanges.router("/").resolve("x", b"k").via_alternate
    engine.close()


@pytest.mark.parametrize(
    ("apply_to", "kinds"),
    [
        ("all", {"classic", "quorum", "stream", "x"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("exchanges", {"x"}),
    ],
)
def test_kinds_it_applies_to(engine: Engine, apply_to: Any, kinds: set[str]) -> None:
    for kind in ("topic", "classic", "quorum", "stream"):
        engine.topics.create("/", kind, now_ms=NOW, kind=kind)
    engine.exchanges.declare("/", "x", "direct")
    definition = {"max-length-bytes": 5, "alternate-exchange": "amq.fanout"}
    set_policy(engine, Policy("/", "p", "", definition, 0, apply_to), now_ms=NOW)
    limits = {topic.name: topic.policy for topic in engine.state.topics_of("/")}
    found = {n for n, each in limits.items() if 5 in (each.max_bytes, each.retention.bytes)}
    if engine.exchanges.router("/").resolve("x", b"k").via_alternate:
        found.add("x")
    assert found == kinds


def test_streams_keep_what_the_smaller_of_policy_and_arguments_says(engine: Engine) -> None:
    own = {"retention": {"time_ms": 7_200_000}, "max_bytes": 300}
    engine.topics.create("/", "own", own, now_ms=NOW, kind="stream")
    engine.topics.create("/", "plain", now_ms=NOW, kind="stream")
    engine.topics.create("/", "queue", now_ms=NOW, kind="classic")
    definition = {"max-age": "1h", "max-length-bytes": 500}
    set_policy(engine, Policy("/", "p", "", definition), now_ms=NOW)
    kept = {topic.name: topic.policy.retention for topic in engine.state.topics_of("/")}
    assert (kept["own"].time_ms, kept["own"].bytes) == (3_600_000, 300)
    assert (kept["plain"].time_ms, kept["plain"].bytes) == (3_600_000, 500)
    assert kept["queue"].time_ms == 0  # with a key that is not for queues, nothing of it is
    assert all(topic.policy.max_bytes is None for topic in engine.state.topics_of("/"))
    delete_policy(engine, "/", "p", now_ms=NOW)
    assert engine.state.topic("/", "own").policy.retention.time_ms == 7_200_000
    assert engine.state.topic("/", "plain").policy.retention.bytes == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0s", 1),
        ("30s", 30_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("1D", 86_400_000),
        ("1M", 30 * 86_400_000),
        ("1Y", 365 * 86_400_000),
        ("9" * 30 + "Y", 1 << 53),
        ("12", None),
        ("h", None),
        ("1w", None),
        ("-1h", None),
        ("", None),
    ],
)
def test_ages(text: str, expected: int | None) -> None:
    assert age_ms(text) == expected


def test_policies_of_another_namespace_and_templates_are_not_listed_with_it(engine: Engine) -> None:
    set_policy(engine, policy(max_length=1), now_ms=NOW)
    set_policy(engine, Policy("other", "p", "", {"max-length": 2}), now_ms=NOW)
    engine.templates.put("/", "native", "", {"ttl_ms": 5}, now_ms=NOW)
    assert [each.name for each in list_policies(engine, "/")] == ["p"]
    assert [each.namespace for each in list_policies(engine)] == ["/", "other"]
    for wrong in ("native", "nobody"):
        with pytest.raises(UnknownTemplate):
            delete_policy(engine, "/", wrong, now_ms=NOW)


def test_a_namespace_goes_with_its_policies_and_exchanges() -> None:
    disk = MemoryDisk()
    engine = Engine.open(disk, NOW)
    set_policy(engine, policy(max_length=1), now_ms=NOW)
    set_policy(engine, Policy("other", "p", "", {"max-length": 2}), now_ms=NOW)
    engine.topics.create("/", "q", now_ms=NOW, kind="classic")
    engine.exchanges.declare("/", "x", "direct")
    engine.exchanges.declare("other", "x", "direct")
    engine.namespaces.delete("/", now_ms=NOW)
    engine.store.commit()
    engine.close()
    engine = Engine.open(disk, NOW)
    assert [each.namespace for each in list_policies(engine)] == ["other"]
    assert not engine.state.topics_of("/")
    assert "x" not in {each.name for each in engine.exchanges.router("/").exchanges()}
    assert engine.exchanges.router("other").exchange("x")
    engine.close()


@pytest.mark.parametrize(
    "wrong",
    [
        policy(),
        policy(max_lenght=1),
        policy(pattern="(", max_length=1),
        policy(max_length=-1),
        policy(max_length=True),
        policy(max_length=1 << 63),
        policy(message_ttl="1"),
        policy(overflow=["drop-head"]),
        policy(dead_letter_routing_key="k" * 256),
        policy(max_age="1 day"),
        policy(ha_params=2),
        Policy("/", "p", "", {"max-length": 1}, 0, "messages"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_policy_changes_nothing(engine: Engine, wrong: Policy) -> None:
    set_policy(engine, policy(max_length=7), now_ms=NOW)
    before = engine.store.journal.last_lsn
    with pytest.raises(IllegalPolicy):
        set_policy(engine, wrong, now_ms=NOW)
    assert engine.store.journal.last_lsn == before
    assert find_policy(engine, "/", "p").definition == {"max-length": 7}


def test_times_longer_than_the_engine_has_are_for_ever(engine: Engine) -> None:
    set_policy(engine, policy(message_ttl=(1 << 63) - 1, expires=(1 << 63) - 1), now_ms=NOW)
    topic = engine.topics.create("/", "q", now_ms=NOW, kind="classic")
    assert (topic.policy.ttl_ms, topic.policy.idle_expires_ms) == (1 << 53, 1 << 53)
