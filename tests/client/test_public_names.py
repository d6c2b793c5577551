"""What a program sees of the client: few names, each explained, and nothing that is not for it."""

import importlib.util
import inspect
from pathlib import Path

import pytest

import braidmq
from braidmq.client.reference import page, public_members
from braidmq.testing.live import LiveNode

ROOT = Path(__file__).parents[2]
PAGE_LINES = 66
"""Of a printed page."""

SHOWN = {
    "Broker": "admin bind call close connected consume declare_exchange declare_queue"
    " delete_exchange delete_queue open producer publish read reply serve transaction unbind",
    "Producer": "close confirms flush put put_many send send_many unconfirmed",
    "Consumer": "batches close get next_batch partitions topic",
    "Transaction": "abort ack commit leave name publish publish_many",
    "Message": "ack app_id content_encoding content_type correlation_id death delivery_count"
    " delivery_tag exchange extend first_seen_ms headers key message_id nack offset partition"
    " priority process properties redelivered reject reply_to routing_key timestamp topic ttl_ms"
    " type user_id value",
    "Batch": "ack extend nack process reject values",
    "Confirm": "error exchange place places routing_key value",
}
OURS = [getattr(braidmq, name) for name in braidmq.__all__]
CLASSES = [each for each in OURS if inspect.isclass(each)]


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_they_fit_on_a_page():
    assert len(braidmq.__all__) <= PAGE_LINES
    assert public(braidmq) == set(braidmq.__all__)


def test_the_modules_behind_them_show_no_more():
    """Submodules are there once they were imported; their names are files of the client."""
    files = {each.stem for each in (ROOT / "src" / "braidmq" / "client").glob("*.py*")}
    shown = public(braidmq.client)
    assert shown - files <= set(braidmq.__all__)


async def test_objects_show_what_is_for_programs(node: LiveNode, broker, queue):
    await broker.publish(queue, b"x")
    async with (
        broker.consume(queue) as consumer,
        broker.producer() as producer,
        broker.transaction() as transaction,
    ):
        batch = await consumer.next_batch()
        confirm = await producer.send(queue, b"x")
        objects = (broker, producer, consumer, transaction, *batch, batch, confirm)
        for each in objects:
            assert public(each) == set(SHOWN[type(each).__name__].split())


def test_the_synchronous_ones_have_the_same():
    for twin in ("Broker", "Producer", "Consumer", "Transaction"):
        assert public(getattr(braidmq, f"Sync{twin}")) == set(SHOWN[twin].split())
    admin, twin = braidmq.client.admin.Admin, braidmq.client.sync_admin.SyncAdmin
    assert public(admin) == public(twin)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_is_explained(kind):
    assert kind.__doc__, kind
    if not issubclass(kind, Exception):
        assert "```python" in kind.__doc__ or "Raises" in kind.__doc__, kind
    for name, member in public_members(kind):
        if inspect.isroutine(member) or isinstance(member, property):
            assert member.__doc__, f"{kind.__name__}.{name}"


def test_the_written_files_are_up_to_date():
    path = ROOT / "scripts" / "client_types.py"
    spec = importlib.util.spec_from_file_location("client_types", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for file, written in module.WRITTEN.items():
        assert file.read_text() == written(), f"run scripts/client_types.py: {file.name} is old"
    assert "braidmq.connect" in page()
