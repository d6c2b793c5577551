import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.gateways.mqtt.queues.names import VERBS, Address, default_group, is_queue_filter, parse
from braidmq.wire.mqtt.errors import MqttError


@pytest.mark.parametrize(
    ("topic", "address"),
    [
        ("$queue/a", Address("$queue/a", "a")),
        ("$queue/a/b", Address("$queue/a/b", "a/b")),
        ("$queue/dlq/a/b", Address("$queue/dlq/a/b", "a/b", dead=True)),
        ("$queue/a/b/$nack", Address("$queue/a/b", "a/b", verb="$nack")),
        ("$queue/dlq/a/$ack", Address("$queue/dlq/a", "a", dead=True, verb="$ack")),
        ("$queue/dlq", Address("$queue/dlq", "dlq")),
    ],
)
def test_names(topic: str, address: Address) -> None:
    assert parse(topic) == address


@given(st.text(max_size=300))
def test_whatever_is_a_name_is_safe(name: str) -> None:
    """Nothing of the broker's own can be reached, and no verb is part of a name."""
    try:
        found = parse(f"$queue/{name}")
    except MqttError:
        return
    assert found.name
    assert not any(level.startswith("$") for level in found.name.split("/"))
    assert not any(mark in found.name for mark in "+#\0")
    assert found.verb in {"", *VERBS}


def test_filters_of_queues() -> None:
    assert is_queue_filter("$queue/a")
    assert is_queue_filter("$share/g/$queue/a")
    assert not is_queue_filter("$share/g/a")
    assert not is_queue_filter("queue/a")


@pytest.mark.parametrize(
    ("client_id", "group"),
    [("worker-1", "worker"), ("image-worker-12", "image-worker"), ("solo", "solo"), ("-x", "-x")],
)
def test_the_group_of_a_client_id(client_id: str, group: str) -> None:
    assert default_group(client_id) == group
