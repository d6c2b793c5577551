"""Publishes with changing keys, which the broker handles together as long as it knows that they go
to one place: whatever changes on the way, each goes where its own key leads."""

from raw_client import RawClient, content_frames

from braidmq.testing.live import LiveNode
from braidmq.wire.amqp import methods as m


def published(exchange: str, *keys: str, mandatory: bool = False) -> bytes:
    return b"".join(
        content_frames(1, m.BasicPublish(exchange, key, mandatory=mandatory), key.encode())
        for key in keys
    )


def everything(client: RawClient, queue: str) -> list[tuple[str, bytes]]:
    """Routing key and body of all that is in a queue."""
    found: list[tuple[str, bytes]] = []
    while True:
        client.method(1, m.BasicGet(queue, no_ack=True))
        _, answer = client.next_method()
        if isinstance(answer, m.BasicGetEmpty):
            return found
        assert isinstance(answer, m.BasicGetOk)
        found.append((answer.routing_key, client.content()[1]))


def topology(client: RawClient, name: str, keys: str) -> None:
    client.ask(1, m.ExchangeDeclare(name, "topic"), m.ExchangeDeclareOk)
    client.declare(name)
    client.declare(f"{name}-2")
    for key in keys:
        client.ask(1, m.QueueBind(name, name, key), m.QueueBindOk)


def pairs(keys: str) -> list[tuple[str, bytes]]:
    return [(key, key.encode()) for key in keys]


def test_each_message_keeps_its_own_key(node: LiveNode, name: str) -> None:
    with RawClient(node).open(1) as client:
        topology(client, name, "abc")
        client.send(published(name, *"abc"))
        client.send(published(name, *"abccbaab"))
        assert everything(client, name) == pairs("abcabccbaab")


def test_a_binding_that_changes_between_two_publishes_of_one_write(
    node: LiveNode, name: str
) -> None:
    with RawClient(node).open(1) as client:
        topology(client, name, "ab")
        client.send(published(name, *"ab"))
        assert everything(client, name) == pairs("ab")
        client.send(
            published(name, *"abab")
            + m.method_frame(1, m.QueueUnbind(name, name, "b"))
            + m.method_frame(1, m.QueueBind(f"{name}-2", name, "b", nowait=True))
            + published(name, *"abab")
        )
        client.expect(m.QueueUnbindOk)
        assert everything(client, name) == pairs("abab") + pairs("aa")
        assert everything(client, f"{name}-2") == pairs("bb")


def test_a_queue_deleted_between_two_publishes_of_one_write(node: LiveNode, name: str) -> None:
    with RawClient(node).open(1) as client:
        topology(client, name, "ab")
        client.send(published(name, *"ab"))
        client.send(
            m.method_frame(1, m.QueueDelete(name, nowait=True))
            + published(name, *"ab", mandatory=True)
            + m.method_frame(1, m.QueueDeclare(name, nowait=True))
            + m.method_frame(1, m.QueueBind(name, name, "b", nowait=True))
            + published(name, *"ab", mandatory=True)
        )
        for key in "aba":
            assert client.expect(m.BasicReturn).routing_key == key
            assert client.content()[1] == key.encode()
        assert everything(client, name) == pairs("b")


def test_confirms_count_messages_of_mixed_runs(node: LiveNode, name: str) -> None:
    with RawClient(node).open(1) as client:
        topology(client, name, "abcd")
        client.ask(1, m.ConfirmSelect(), m.ConfirmSelectOk)
        sent = 0
        for _ in range(5):
            client.send(published(name, *"abcdabcd"))
            sent += 8
            tag = 0
            while tag < sent:
                tag = client.expect(m.BasicAck).delivery_tag
            assert tag == sent
        assert everything(client, name) == pairs("abcdabcd" * 5)
