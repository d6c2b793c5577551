"""The client without ``await``: the same names, the same outcomes."""

import threading
from collections.abc import Iterator

import pytest
from talking import url_of

import braidmq
from braidmq.testing.live import LiveNode, free_ports

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def broker(node: LiveNode) -> Iterator[braidmq.SyncBroker]:
    with braidmq.connect_sync(url_of(node), http_url=node.http_url) as broker:
        yield broker


@pytest.fixture
def queue(broker: braidmq.SyncBroker, name: str) -> str:
    broker.declare_queue(name)
    return name


def test_send_and_consume(broker, queue):
    with broker.producer(linger_ms=0) as producer:
        producer.send(queue, b"1", message_id="m1")
        producer.send_many(queue, [b"2", b"3"])
    with broker.consume(queue) as consumer:
        found = []
        for message in consumer:
            found.append(message.value)
            message.ack()
            if len(found) == 3:
                break
        assert found == [b"1", b"2", b"3"]
        assert consumer.get(timeout_s=0.01) is None
    broker.publish(queue, b"4")
    with broker.consume(queue, auto_ack=True) as consumer:
        assert next(consumer).value == b"4"


def test_many_puts_and_batches(broker, queue):
    with broker.producer(window=500) as producer:
        for number in range(5000):
            producer.put(queue, b"%d" % number)
            assert producer.unconfirmed <= 1000
        producer.flush()
        assert producer.unconfirmed == 0
    values: list[bytes] = []
    with broker.consume(queue, prefetch=300) as consumer:
        for batch in consumer.batches():
            values += batch.values
            batch.ack()
            if len(values) == 5000:
                break
    assert values == [b"%d" % number for number in range(5000)]


def test_answers_reach_the_broker(broker, queue):
    with broker.producer() as producer:
        producer.send_many(queue, [b"0", b"1", b"2"])
    with broker.consume(queue) as consumer:
        first, second, third = (next(consumer) for _ in range(3))
        first.ack()
        second.nack()
        third.reject()
        again = next(consumer)
        assert (again.value, again.redelivered) == (b"1", True)
        again.ack()
        broker.publish(queue, b"marker")
        assert next(consumer).value == b"marker"


def test_what_is_wrong_with_a_put_is_raised_by_flush(broker, queue):
    with broker.producer() as producer:
        producer.put("nowhere", b"1")
        producer.put(queue, b"2", priority=999)
        producer.put(queue, b"3")
        with pytest.raises(braidmq.PublishFailed) as caught:
            producer.flush()
        assert [failure.value for failure in caught.value.failures] == [b"2", b"1"]
    with pytest.raises(braidmq.Unroutable):
        broker.publish("nowhere", b"")


def test_producers_of_many_threads(node, broker, queue):
    def publish(first: int) -> None:
        with broker.producer() as producer:
            for number in range(first, first + 500):
                producer.put(queue, b"%d" % number)

    threads = [threading.Thread(target=publish, args=(500 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with broker.consume(queue, auto_ack=True) as consumer:
        assert {int(next(consumer).value) for _ in range(2000)} == set(range(2000))


def test_nobody_listens():
    with (
        pytest.raises(braidmq.ConnectFailed),
        braidmq.connect_sync(f"amqp://127.0.0.1:{free_ports(1)[0]}"),
    ):
        pass


def test_after_the_end(node):
    with braidmq.connect_sync(url_of(node)) as broker:
        pass
    with pytest.raises(braidmq.Closed):
        broker.publish("q", b"")
    assert not [each for each in threading.enumerate() if each.name == "braidmq"]


def test_who_follows_gets_each_message_as_it_comes(broker, queue):
    broker.publish(queue, b"1")
    following = broker.read(queue, follow=True)
    assert next(following).value == b"1"
    broker.publish(queue, b"2")
    assert next(following).value == b"2"


def test_exchanges_queues_and_where_messages_went(broker, name):
    broker.declare_exchange(name, "topic")
    mine = broker.declare_queue(exclusive=True)
    broker.bind(name, mine.name, "a.*")
    assert broker.publish("a.b", b"1", exchange=name).place == (mine.name, 0, 0)
    with broker.producer() as producer:
        confirms = producer.confirms()
        for number in range(2, 5):
            producer.put("a.b", b"%d" % number, exchange=name)
        assert [next(confirms).place.offset for _ in range(3)] == [1, 2, 3]
    assert list(confirms) == []
    broker.unbind(name, mine.name, "a.*")
    with pytest.raises(braidmq.Unroutable):
        broker.publish("a.b", b"x", exchange=name)
    assert broker.delete_queue(mine.name) == 4
    broker.delete_exchange(name)


def test_calls(broker, queue, node: LiveNode):
    def handler(message: braidmq.Message) -> bytes:
        if message.value == b"bad":
            raise ValueError("no such word")
        return message.value.upper()

    def serve() -> None:
        with braidmq.connect_sync(url_of(node)) as other, pytest.raises(braidmq.ConsumerCancelled):
            other.serve(queue, handler)

    thread = threading.Thread(target=serve)
    thread.start()
    assert broker.call(queue, b"x").value == b"X"
    with pytest.raises(braidmq.CallFailed, match="no such word"):
        broker.call(queue, b"bad")
    assert broker.call(queue, b"y").value == b"Y"
    broker.delete_queue(queue)
    thread.join(30)
    assert not thread.is_alive()


def test_blocks_of_work(broker, queue):
    broker.publish(queue, b"1")
    broker.publish(queue, b"2")
    with broker.consume(queue, prefetch=2) as consumer:
        first, second = next(consumer), next(consumer)
        with first.process():
            first.ack()
        with pytest.raises(KeyError), second.process():
            raise KeyError
        again = next(consumer)
        assert (again.value, again.redelivered) == (b"2", True)
        with again.process():
            pass
    assert broker.declare_queue(queue).message_count == 0


def test_a_consumer_outside_its_with(broker, queue):
    consumer = broker.consume(queue)
    with pytest.raises(braidmq.Closed, match="with"):
        next(consumer)
    with pytest.raises(braidmq.BadRequest, match="'shared'"):
        broker.consume(queue, mode="bogus")


def test_administration_is_typed(broker, name):
    assert broker.admin.create_topic(name, partitions=2)["policy"]["partitions"] == 2
    with pytest.raises(braidmq.BadRequest, match="'reject'"):
        broker.admin.alter_topic(name, overflow="bogus")
    assert [topic["name"] for topic in broker.admin.list_topics(prefix=name)] == [name]
