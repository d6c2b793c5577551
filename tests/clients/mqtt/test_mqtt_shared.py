"""Who of a shared subscription gets a message, for each strategy; and subscribers that are slow."""

from contextlib import ExitStack
from pathlib import Path

from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.packets import PubAck, Publish


def members(stack: ExitStack, node: LiveNode, name: str, count: int = 2) -> list[RawMqtt]:
    group = [stack.enter_context(RawMqtt(node)) for _ in range(count)]
    for each in group:
        each.connect()
        each.subscribe(f"$share/g/{name}", qos=1)
    return group


def taken(member: RawMqtt) -> list[bytes]:
    """What a member has got so far, answered."""
    got = [each for each in member.ping() if isinstance(each, Publish)]
    member.send(*(PubAck(each.packet_id) for each in got))
    return [each.payload for each in got]


def with_strategy(where: Path, strategy: str) -> Path:
    (where / "braid.toml").write_text(f'[mqtt]\nshare_strategy = "{strategy}"\n')
    return where / "braid.toml"


def test_round_robin_takes_strict_turns(node: LiveNode, name: str) -> None:
    with ExitStack() as stack:
        group = members(stack, node, name, 3)
        sender = stack.enter_context(RawMqtt(node))
        sender.connect()
        for number in range(9):
            sender.answer(sender.publish(name, b"%d" % number, 1))
        shares = sorted(taken(each) for each in group)
        assert shares == [[b"0", b"3", b"6"], [b"1", b"4", b"7"], [b"2", b"5", b"8"]]


def test_random_gives_each_message_to_one(tmp_path: Path) -> None:
    config = with_strategy(tmp_path, "random")
    with live_node(tmp_path / "data", config=config) as node, ExitStack() as stack:
        one, two = members(stack, node, "t")
        sender = stack.enter_context(RawMqtt(node))
        sender.connect()
        for number in range(60):
            sender.answer(sender.publish("t", b"%d" % number, 1))
        shares = [taken(one), taken(two)]
        assert all(shares), "that one gets all of 60 happens once in 2 ** 59 runs"
        assert sorted(map(int, shares[0] + shares[1])) == list(range(60))


def test_least_in_flight_goes_to_who_answers(tmp_path: Path) -> None:
    config = with_strategy(tmp_path, "least-in-flight")
    with live_node(tmp_path / "data", config=config) as node, ExitStack() as stack:
        group = members(stack, node, "t")
        sender = stack.enter_context(RawMqtt(node))
        sender.connect()
        sender.answer(sender.publish("t", b"held", 1))
        busy = next(each for each in group if any(isinstance(p, Publish) for p in each.ping()))
        [idle] = [each for each in group if each is not busy]
        for number in range(5):
            sender.answer(sender.publish("t", b"%d" % number, 1))
            assert taken(idle) == [b"%d" % number]
            assert idle.ping() == []
        assert busy.ping() == []


def test_a_slow_subscriber_of_qos_1_keeps_nobody_waiting_and_loses_nothing(
    node: LiveNode, name: str
) -> None:
    payload, count = bytes(1 << 18), 40
    with RawMqtt(node) as slow, RawMqtt(node) as quick, RawMqtt(node) as sender:
        for client in (slow, quick, sender):
            client.connect()
        slow.subscribe(name, qos=1)
        quick.subscribe(name, qos=1)
        for number in range(count):
            sender.answer(sender.publish(name, b"%d " % number + payload, 1))
            assert quick.message().payload.startswith(b"%d " % number)
        got = [slow.message().payload for _ in range(count)]
        assert [int(each.partition(b" ")[0]) for each in got] == list(range(count))
