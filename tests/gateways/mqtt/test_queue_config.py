import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.engine.policy import make_policy
from braidmq.gateways.mqtt.queues.config import milliseconds, read, settings_of, text_of
from braidmq.model.errors import BadRequest


@given(st.integers(0, 1 << 53))
def test_durations_are_read_as_they_are_written(value_ms: int) -> None:
    assert milliseconds(text_of(value_ms)) == value_ms


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [("0s", 0), ("500ms", 500), ("1h30m", 5_400_000), ("7d", 604_800_000), ("168h", 604_800_000)],
)
def test_durations(text: str, value_ms: int) -> None:
    assert milliseconds(text) == value_ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5s!", "1e3s", "5S"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadRequest):
        milliseconds(text)


@pytest.mark.parametrize(
    "payload", [b"[]", b"{", b"\xff", b'{"name": "\xe9"}', b'{"nmae": "q"}', b'{"name":' * 9999]
)
def test_what_is_no_configuration(payload: bytes) -> None:
    with pytest.raises(BadRequest, match="the configuration of the queue is invalid"):
        read(payload)


def test_a_configuration_becomes_settings_of_a_topic() -> None:
    config = read(
        b"""{"name": "$queue/tasks/image", "partitions": 4, "ordering": "none",
        "retry_policy": {"max_retries": 5, "initial_backoff": "1s", "max_backoff": "1m",
                         "backoff_multiplier": 1.5, "total_timeout": "1h"},
        "dlq_config": {"enabled": true, "topic": "$queue/dlq/tasks/image"},
        "limits": {"max_message_size": 100, "max_queue_depth": 10, "message_ttl": "1d"},
        "performance": {"delivery_timeout": "2m"}}"""
    )
    policy = make_policy(settings_of(config))
    assert (policy.partitions, policy.ordering) == (4, "none")
    retry = policy.retry
    assert (retry.attempts, retry.base_ms, retry.max_ms) == (5, 1000, 60_000)
    assert (retry.factor, retry.total_ms) == (1.5, 3_600_000)
    assert policy.dead_letter.topic == "tasks/image.dlq"
    assert (policy.message_bytes_max, policy.max_messages) == (100, 10)
    assert (policy.ttl_ms, policy.visibility_ms) == (86_400_000, 120_000)
