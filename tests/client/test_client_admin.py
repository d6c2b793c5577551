"""Administration and replay through the client, over HTTP."""

from datetime import UTC, datetime, timedelta

import pytest
from talking import WAIT_S, collect, taken, url_of

import braidmq
from braidmq.client.admin import Admin
from braidmq.client.http import HttpClient
from braidmq.testing.live import LiveNode

pytestmark = pytest.mark.timeout(60)


async def test_topics(broker, name):
    made = await broker.admin.create_topic(name, partitions=2)
    assert made["policy"]["partitions"] == 2
    await broker.admin.alter_topic(name, retry={"attempts": 7})
    described = await broker.admin.describe_topic(name)
    assert described["policy"]["retry"]["attempts"] == 7
    assert name in [topic["name"] for topic in await broker.admin.list_topics(prefix=name)]
    await broker.admin.delete_topic(name)
    with pytest.raises(braidmq.NotFound, match=name) as caught:
        await broker.admin.describe_topic(name)
    assert caught.value.code == "unknown-topic"


async def test_names_with_anything_in_them(broker, name):
    odd = f"{name}/ä ?&%"
    await broker.admin.create_topic(odd)
    assert (await broker.admin.describe_topic(odd))["name"] == odd
    await broker.publish(odd, b"x")
    assert await collect(broker.read(odd)) == [b"x"]


async def test_what_is_refused(broker, name, node: LiveNode):
    with pytest.raises(braidmq.BadRequest):
        await broker.admin.create_topic(name, partitions=0)
    async with braidmq.connect(url_of(node), http_url="http://127.0.0.1:1") as lost:
        with pytest.raises(braidmq.ConnectFailed):
            await lost.admin.list_topics()


async def test_messages_with_a_key_stay_together(broker, name):
    await broker.admin.create_topic(name, partitions=3)
    async with broker.producer() as producer:
        for number in range(300):
            await producer.put(name, b"%d" % number, key=f"k{number % 10}")
    partitions: dict[bytes | None, set[int]] = {}
    last: dict[bytes | None, int] = {}
    async for message in broker.read(name):
        partitions.setdefault(message.key, set()).add(message.partition)
        assert message.value is not None
        assert last.get(message.key, -1) < int(message.value)
        last[message.key] = int(message.value)
    assert len(last) == 10
    assert all(len(each) == 1 for each in partitions.values())
    assert len(set.union(*partitions.values())) > 1


async def test_reading_from_somewhere(broker, name):
    await broker.admin.create_topic(name, partitions=1)
    async with broker.producer() as producer:
        await producer.send_many(name, [b"%d" % number for number in range(2500)])
    everything = [b"%d" % number for number in range(2500)]
    assert await collect(broker.read(name)) == everything
    assert await collect(broker.read(name, from_offset=2490)) == everything[2490:]
    now = datetime.now(UTC)
    assert await collect(broker.read(name, from_time=now - timedelta(minutes=5))) == everything
    assert await collect(broker.read(name, from_time=now + timedelta(minutes=5))) == []
    with pytest.raises(braidmq.NotFound):
        await collect(broker.read(name, partition=7))


async def test_following(broker, name):
    await broker.admin.create_topic(name, partitions=1)
    await broker.publish(name, b"before")
    reading = broker.read(name, follow=True)
    assert (await anext(reading)).value == b"before"
    await broker.publish(name, b"\xff after", content_type="x/y", headers={"a": "b"})
    found = await anext(reading)
    assert (found.value, found.content_type, found.headers) == (b"\xff after", "x/y", {"a": "b"})
    await reading.aclose()


async def test_a_topic_consumed_by_groups(broker, name):
    """A topic that is no AMQP queue: several partitions, and retries with back-off."""
    await broker.admin.create_topic(name, partitions=2, retry={"base_ms": 1, "attempts": 2})
    async with broker.producer() as producer:
        await producer.send_many(name, [b"%d" % number for number in range(20)])
    async with broker.consume(name, group="g") as consumer:
        messages = await taken(consumer, 20)
        assert sorted(int(message.value) for message in messages) == list(range(20))
        for message in messages:
            if message.value != b"5":
                await message.ack()
        (bad,) = (message for message in messages if message.value == b"5")
        await bad.nack()
        (again,) = await taken(consumer, 1)
        assert (again.value, again.redelivered) == (b"5", True)
        await again.nack()
        await broker.publish(name, b"marker")
        assert (await taken(consumer, 1))[0].value == b"marker"
    letters = await broker.admin.list_dead_letters(name)
    assert [letter["message"]["value"] for letter in letters["letters"]] == ["5"]
    (found,) = await broker.admin.list_all_dead_letters(topic=name)
    assert (found["queue"], found["offset"]) == (f"{name}.dlq", 0)
    with pytest.raises(braidmq.BraidError):
        await broker.admin.return_dead_letters()
    planned = await broker.admin.return_dead_letters(topic=name, dry_run=True)
    assert (planned["count"], planned["stayed_count"]) == (1, 0)
    assert planned["examples"][0]["topic"] == name
    assert (await broker.admin.return_dead_letters(topic=name))["count"] == 1
    assert (await broker.admin.retry_dead_letters(name))["count"] == 0
    async with broker.consume(name, group="g", auto_ack=True) as consumer:
        assert {m.value for m in await taken(consumer, 2)} == {b"marker", b"5"}


async def test_group_members(broker, name):
    await broker.admin.create_topic(name, partitions=2)
    group = f"{name}-group"
    member = await broker.admin.join_group(group, [name])
    assert sorted(member["assigned"][name]) == [0, 1]
    who, generation = member["member_id"], member["generation"]
    await broker.publish(name, b"x", key="k")
    polled = await broker.admin.poll(group, who, generation, wait_ms=int(WAIT_S * 500))
    (message,) = polled["messages"]
    place = {key: message[key] for key in ("topic", "partition")}
    await broker.admin.commit(group, who, generation, [place | {"offset": 1}])
    await broker.admin.heartbeat(group, who, generation)
    with pytest.raises(braidmq.Conflict):
        await broker.admin.commit(group, who, generation - 1, [place | {"offset": 1}])
    with pytest.raises(braidmq.Conflict, match="assigned"):
        async with broker.consume(name, group=group, mode="shared"):
            pass
    async with broker.consume(name, group=group):  # a member like those over HTTP
        members = (await broker.admin.describe_group(group))["members"]
        assert sorted(len(each["assigned"][name]) for each in members) == [1, 1]
        generation = (await broker.admin.sync(group, who, generation))["generation"]
        await broker.admin.leave_group(group, who, generation)


async def test_delayed_messages(broker, name):
    await broker.admin.create_topic(name, partitions=1)
    await broker.publish(name, b"later", delay_ms=3_600_000)
    waiting = await broker.admin.list_delayed(name)
    assert waiting["count"] == 1
    (message,) = waiting["messages"]
    await broker.admin.cancel_delayed(name, 0, message["offset"])
    assert (await broker.admin.list_delayed(name))["count"] == 0
    cancelled = await broker.admin.list_delayed(name, state="cancelled")
    assert (cancelled["count"], cancelled["messages"]) == (1, [])
    assert [each["offset"] for each in cancelled["ended"]] == [message["offset"]]
    (counted,) = [x for x in (await broker.admin.delay_stats())["topics"] if x["topic"] == name]
    assert (counted["pending"], counted["cancelled"]) == (0, 1)


async def test_schedules(broker, name):
    await broker.admin.create_topic(name, partitions=1)
    made = await broker.admin.put_schedule(name, "tick", "tock", every_ms=3_600_000, key="k")
    assert (made["value"], len(made["next_runs_ms"])) == ("tock", 5)
    assert (await broker.admin.pause_schedule(name, "tick"))["paused"]
    assert not (await broker.admin.resume_schedule(name, "tick"))["paused"]
    described = await broker.admin.describe_schedule(name, "tick")
    assert await broker.admin.list_schedules(name) == [described]
    assert described in await broker.admin.list_schedules()
    with pytest.raises(braidmq.BadRequest):
        await broker.admin.put_schedule(name, "tick", cron="nonsense")
    await broker.admin.delete_schedule(name, "tick")
    assert await broker.admin.list_schedules(name) == []


async def test_exchanges(broker, name):
    await broker.admin.create_topic(name)
    await broker.admin.create_exchange(f"{name}-x", "topic")
    await broker.admin.bind(f"{name}-x", name, "shop.*")
    async with broker.producer(linger_ms=0) as producer:
        await producer.send("shop.north", b"1", exchange=f"{name}-x")
        with pytest.raises(braidmq.Unroutable):
            await producer.send("other", b"2", exchange=f"{name}-x")
    assert await collect(broker.read(name)) == [b"1"]
    await broker.admin.unbind(f"{name}-x", name, "shop.*")
    assert await broker.admin.list_bindings(f"{name}-x") == []
    await broker.admin.delete_exchange(f"{name}-x")


async def test_the_node(broker):
    assert (await broker.admin.overview())["connections"] >= 1
    assert await broker.admin.list_connections()


def test_without_await(node: LiveNode, name):
    with braidmq.connect_sync(url_of(node), http_url=node.http_url) as broker:
        broker.admin.create_topic(name, partitions=1)
        with broker.producer() as producer:
            producer.send_many(name, [b"%d" % number for number in range(1500)])
        values = [message.value for message in broker.read(name)]
        assert values == [b"%d" % number for number in range(1500)]


@pytest.mark.parametrize(
    "name",
    [
        each
        for each in dir(Admin)
        if each.startswith("list_") and each not in ("list_delayed", "list_dead_letters")
    ],
)
async def test_lists_are_whole_however_short_their_pages(broker, name, monkeypatch):
    for number in range(2):
        await broker.admin.create_topic(f"pages-{number}")
        await broker.admin.create_subscription(f"pages-{number}", "s")
        await broker.admin.create_exchange(f"pages-{number}")
        await broker.admin.put_template(f"pages-{number}", "^zz", {})
        await broker.admin.put_schedule(f"pages-{number}", "tick", every_ms=3_600_000)
    wanted = getattr(broker.admin, name)
    whole = await wanted()
    real = HttpClient._target
    monkeypatch.setattr(
        HttpClient, "_target", lambda self, path, query: real(self, path, {**query, "limit": 1})
    )
    found = await wanted()
    assert [_name_of(each) for each in found] == [_name_of(each) for each in whole]


def _name_of(found):
    names = ("topic", "name", "id", "source", "destination", "routing_key")
    return tuple(found.get(each) for each in names)
