"""tx by pika: all of a commit or nothing, also when the node is killed."""

import threading
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker

from braidmq.testing.live import LiveNode, live_node

PERSISTENT = pika.BasicProperties(delivery_mode=2)
QUEUES = [f"q{number}" for number in range(5)]


def connect(node: LiveNode) -> pika.BlockingConnection:
    url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
    return pika.BlockingConnection(pika.URLParameters(url))


def drain(channel, queue: str) -> list[bytes]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append(got[2])
    return found


def test_nobody_sees_half_of_a_commit(node: LiveNode, name: str):
    with connect(node) as connection, connect(node) as watching:
        channel, watcher = connection.channel(), watching.channel()
        one, two = f"{name}-1", f"{name}-2"
        for queue in (one, two):
            channel.queue_declare(queue, durable=True)
        channel.basic_publish("", one, b"in", PERSISTENT)
        channel.tx_select()
        method, _, _ = channel.basic_get(one)
        channel.basic_publish("", one, b"a", PERSISTENT)
        channel.basic_publish("", two, b"b", PERSISTENT)
        channel.basic_ack(method.delivery_tag)
        assert drain(watcher, one) == drain(watcher, two) == []
        channel.tx_commit()
        assert drain(watcher, one) == [b"a"]
        assert drain(watcher, two) == [b"b"]


def test_answers_of_each_sort_at_a_commit(node: LiveNode, name: str):
    with connect(node) as connection:
        channel = connection.channel()
        channel.queue_declare(f"{name}-dead", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
        channel.queue_declare(name, durable=True, arguments=arguments)
        for body in (b"acked", b"rejected", b"back"):
            channel.basic_publish("", name, body, PERSISTENT)
        channel.tx_select()
        tags = [channel.basic_get(name)[0].delivery_tag for _ in range(3)]
        channel.basic_ack(tags[0])
        channel.basic_reject(tags[1], requeue=False)
        channel.basic_nack(tags[2], requeue=True)
        assert channel.basic_get(name)[0] is None
        channel.tx_commit()
        with connect(node) as other:
            assert drain(other.channel(), f"{name}-dead") == [b"rejected"]
            assert drain(other.channel(), name) == [b"back"]


def test_unroutable_messages_are_returned_at_the_commit(node: LiveNode, name: str):
    with connect(node) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        returned: list[bytes] = []
        channel.add_on_return_callback(lambda _, method, properties, body: returned.append(body))
        channel.tx_select()
        channel.basic_publish("", f"{name}-not-there", b"lost", PERSISTENT, mandatory=True)
        channel.basic_publish("", name, b"kept", PERSISTENT, mandatory=True)
        connection.process_data_events(0)
        assert returned == []
        channel.tx_commit()
        connection.process_data_events(0)
        assert returned == [b"lost"]
        with connect(node) as other:
            assert drain(other.channel(), name) == [b"kept"]


def test_a_full_queue_takes_what_fits_and_says_so(node: LiveNode, name: str):
    with connect(node) as connection:
        channel = connection.channel()
        limited = {"x-max-length": 2, "x-overflow": "reject-publish"}
        channel.queue_declare(name, durable=True, arguments=limited)
        channel.tx_select()
        for number in range(4):
            channel.basic_publish("", name, b"%d" % number, PERSISTENT)
        with pytest.raises(ChannelClosedByBroker) as refused:
            channel.tx_commit()
        assert refused.value.reply_code == 406
        assert drain(connection.channel(), name) == [b"0", b"1"]


@pytest.mark.crash
@pytest.mark.timeout(180)
def test_a_commit_is_whole_or_absent_after_a_kill(tmp_path: Path):
    """Killed while it commits one transaction after the other over five queues."""
    said = -1
    for life in range(3):
        with live_node(tmp_path) as node:
            connection = connect(node)
            channel = connection.channel()
            for queue in QUEUES:
                channel.queue_declare(queue, durable=True)
            found = [drain_unacked(channel, queue) for queue in QUEUES]
            assert all(each == found[0] for each in found), life
            assert len(found[0]) in (said + 1, said + 2)
            assert found[0] == [b"%d" % number for number in range(len(found[0]))]
            said = len(found[0]) - 1
            channel = connection.channel()
            channel.tx_select()
            timer = threading.Timer(0.3 + 0.1 * life, node.process.kill)
            timer.start()
            try:
                while True:
                    for queue in QUEUES:
                        channel.basic_publish("", queue, b"%d" % (said + 1), PERSISTENT)
                    channel.tx_commit()
                    said += 1
            except (AMQPError, OSError):
                timer.join()


def drain_unacked(channel, queue: str) -> list[bytes]:
    """All there is; it goes back when the channel is closed."""
    found = []
    while (got := channel.basic_get(queue))[0] is not None:
        found.append(got[2])
    channel.basic_nack(0, multiple=True)
    return found


def test_answers_that_were_never_committed_come_again_when_the_channel_is_closed(
    node: LiveNode, name: str
):
    """Also those of a consumer that was cancelled meanwhile."""
    with connect(node) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True)
        for body in (b"acked", b"rejected"):
            channel.basic_publish("", name, body, PERSISTENT)
        channel.tx_select()
        got = [next(channel.consume(name, inactivity_timeout=30))[0] for _ in range(2)]
        channel.basic_cancel(got[0].consumer_tag)
        channel.basic_ack(got[0].delivery_tag)
        channel.basic_reject(got[1].delivery_tag, requeue=False)
        channel.close()
        assert drain(connection.channel(), name) == [b"acked", b"rejected"]
