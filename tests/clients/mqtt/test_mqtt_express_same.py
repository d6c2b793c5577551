"""The short way against the long one: the same script on two topics, and nobody can tell which is
which.

Both have a publisher and a subscriber. To one of the topics somebody else subscribes, too, with a
subscription identifier: what goes there has to be made anew for everybody, and takes the long way.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count, pairwise
from random import Random

import pytest
from express_pair import Pair, encoded, is_short
from hypothesis import given, note, settings
from hypothesis import strategies as st
from raw_mqtt import WAIT_S, Gone, RawMqtt

from braidmq.testing.live import LiveNode
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import (
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Request,
    encode,
)
from braidmq.wire.mqtt.properties import NO_PROPERTIES, Properties

VERSIONS = [Version.V3_1_1, Version.V5]
SERIAL = count(1)
OWN_IDS_FROM = 1000
"""Packet ids that the stage's own publishes do not use."""


# --- scripts ---


@dataclass(frozen=True)
class Said:
    """The same message a few times."""

    qos: int
    size: int
    times: int = 1
    retain: bool = False
    dup: bool = False
    typed: bool = False
    is_below: bool = False
    """To a topic that nobody subscribed to."""


@dataclass(frozen=True)
class Write:
    """All in one write, or in pieces of which each is read before the next is sent."""

    said: tuple[Said, ...]
    cuts: tuple[int, ...] = ()
    then_wait: bool = True
    """Until all is done that follows from it."""


@dataclass(frozen=True)
class Answer:
    """The subscriber answers for some of what it owes."""

    which: tuple[int, ...]
    form: str


@dataclass(frozen=True)
class Spoilt:
    """The last write of a script, with one bit changed, or without its end."""

    said: tuple[Said, ...]
    at: int
    bit: int | None


@dataclass(frozen=True)
class Wrong:
    """The last thing in a script: the subscriber answers QoS 1 with PUBREC."""


Step = Write | Answer | Spoilt | Wrong
FORMS = ["plain", "plain", "one by one", "with reason", "refused", "twice", "unknown"]


@dataclass(frozen=True)
class Script:
    version: int
    qos: int
    """Of the subscription."""
    receive_maximum: int | None
    steps: tuple[Step, ...]


def draw_single(chance: Random) -> Said:
    return Said(chance.choice([1, 1, 1, 0]), chance.choice([0, 5, 100, 4000]))


def draw_special(chance: Random) -> Said:
    size = chance.choice([0, 3, 127, 4000, 8150, 8180, 9000])
    return Said(
        qos=chance.choice([0, 1, 1, 2]),
        size=size,
        times=chance.choice([1, 1, 1, 2, 3, 70 if size < 200 else 4]),
        retain=chance.random() < 0.2,
        dup=chance.random() < 0.2,
        typed=chance.random() < 0.2,
        is_below=chance.random() < 0.2,
    )


def draw_step(chance: Random) -> Step:
    kind = chance.random()
    if kind < 0.25:
        which = [chance.randrange(70) for _ in range(chance.randint(1, 6))]
        return Answer(tuple(which), chance.choice(FORMS))
    if kind < 0.65:
        return Write((draw_single(chance),), then_wait=chance.random() < 0.7)
    said = [draw_special(chance) if chance.random() < 0.6 else draw_single(chance)]
    if chance.random() < 0.5:
        said.append(draw_single(chance))
    cuts = [chance.randrange(1, 200) for _ in range(chance.choice([0, 0, 1, 3]))]
    return Write(tuple(said), tuple(cuts), chance.random() < 0.7)


def draw_ending(chance: Random) -> tuple[Step, ...]:
    kind = chance.random()
    if kind < 0.3:
        return (Spoilt((draw_single(chance),), chance.randrange(60), chance.randrange(8)),)
    if kind < 0.6:
        said = (draw_special(chance), draw_single(chance))
        return (Spoilt(said, chance.randrange(300), chance.choice([None, *range(8)])),)
    return (Wrong(),) if kind < 0.8 else ()


def draw_script(seed: int, length: int) -> Script:
    chance = Random(seed)
    version, qos = chance.choice(VERSIONS), chance.choice([1, 1, 1, 2, 0])
    receive_maximum = chance.choice([None, None, 1, 3])
    ending = draw_ending(chance)
    steps = [draw_step(chance) for _ in range(length)]
    return Script(version, qos, receive_maximum, (*steps, *ending))


# --- playing them ---


class Stage:
    """Where a script is played: a topic with its publisher and its subscriber."""

    def __init__(self, node: LiveNode, clerk: RawMqtt, script: Script, topic: str) -> None:
        self.clerk = clerk
        self.topic = topic
        self.version = script.version
        given = NO_PROPERTIES
        if script.version == Version.V5 and script.receive_maximum:
            given = Properties(receive_maximum=script.receive_maximum)
        self.pair = Pair(node, topic, script.version, properties=given)
        self.publisher, self.subscriber = self.pair.publisher, self.pair.subscriber
        self.subscriber.subscribe(Request(topic, script.qos, retain_handling=2))
        self.next_id = OWN_IDS_FROM
        self.serial = 0
        self.owed: list[Publish] = []
        self.heard: list[Publish] = []
        self.told: list[Packet] = []
        """What the publisher was."""
        self.last: list[str] = []
        """How it ended, for who was hung up on."""

    def close(self) -> None:
        self.pair.close()

    def warm_up(self) -> None:
        """As after any other messages, whatever was changed before."""
        for _ in range(3):
            self.pair.said(b"warm up", 0)
            self.wait()
        self.heard.clear()

    def play(self, script: Script) -> None:
        for step in script.steps:
            if isinstance(step, Write):
                self.write(self.packets(step.said), step.cuts)
                if step.then_wait:
                    self.wait()
            elif isinstance(step, Answer):
                self.wait()
                self.answer(step)
            elif isinstance(step, Spoilt):
                self.wait()
                data = bytearray(encoded(self.packets(step.said), self.version))
                if step.bit is None:
                    del data[-(step.at % len(data)) :]
                else:
                    data[step.at % len(data)] ^= 1 << step.bit
                self.publisher.send_bytes(bytes(data))
            else:
                self.wait()
                self.subscriber.send(
                    *[PubRec(each.packet_id) for each in self.owed if each.qos == 1]
                )
        self.wait()

    # --- the publisher ---

    def packets(self, said: Sequence[Said]) -> list[Publish]:
        return [self.packet(each) for each in said for _ in range(each.times)]

    def packet(self, said: Said) -> Publish:
        self.serial += 1
        self.next_id += said.qos > 0
        typed = said.typed and self.version == Version.V5
        return Publish(
            self.topic + "/below" * said.is_below,
            (b"%d:" % self.serial).ljust(said.size, b"."),
            said.qos,
            said.retain,
            said.dup and said.qos > 0,
            self.next_id if said.qos else 0,
            Properties(content_type="text") if typed else NO_PROPERTIES,
        )

    def write(self, packets: Sequence[Publish], cuts: Sequence[int]) -> None:
        data = encoded(packets, self.version)
        edges = [0, *sorted({each % len(data) for each in cuts} - {0}), len(data)]
        for start, stop in pairwise(edges):
            self.publisher.send_bytes(data[start:stop])
            if stop < len(data):
                self.clerk.ping()

    # --- the subscriber ---

    def answer(self, step: Answer) -> None:
        chosen = [self.owed[each % len(self.owed)] for each in step.which if self.owed]
        for each in chosen:
            if each in self.owed:
                self.owed.remove(each)
        ones = [each.packet_id for each in dict.fromkeys(chosen) if each.qos == 1]
        twos = [each.packet_id for each in dict.fromkeys(chosen) if each.qos == 2]
        self.subscriber.send_bytes(encoded([PubRec(each) for each in twos], self.version))
        form = step.form
        if self.version != Version.V5 and form in ("with reason", "refused"):
            form = "plain"
        if form == "one by one":
            for packet_id in ones:
                self.subscriber.send(PubAck(packet_id))
        elif form == "with reason":
            self.subscriber.send_bytes(
                b"".join(b"\x40\x04" + each.to_bytes(2, "big") + b"\0\0" for each in ones)
            )
        elif form == "refused":
            self.subscriber.send(*[PubAck(each, Reason.UNSPECIFIED_ERROR) for each in ones])
        else:
            others = [0x7000, 0xF000] if form == "unknown" else []
            times = 2 if form == "twice" else 1
            self.subscriber.send(*[PubAck(each) for each in (*ones, *others) for _ in range(times)])

    # --- both ---

    def wait(self) -> None:
        """Until all is done that follows from what was said: a message of the clerk's is on disk,
        and with it all that was written before."""
        is_quiet = False
        while not is_quiet:
            is_quiet = True
            for _ in range(2):
                sent = self.clerk.publish("the-clerk", b"!", 1, retain=True)
                self.clerk.answer(sent)
                for packet in self.everything(self.publisher, "publisher"):
                    is_quiet = False
                    self.publisher_got(packet)
                for packet in self.everything(self.subscriber, "subscriber"):
                    is_quiet = False
                    self.subscriber_got(packet)

    def publisher_got(self, packet: Packet) -> None:
        self.told.append(packet)
        if isinstance(packet, PubRec) and packet.reason < 0x80:
            self.publisher.send(PubRel(packet.packet_id))

    def subscriber_got(self, packet: Packet) -> None:
        if isinstance(packet, PubRel):
            self.subscriber.send(PubComp(packet.packet_id))
            return
        assert isinstance(packet, Publish), packet
        self.heard.append(packet)
        self.owed += [packet] if packet.qos else []

    def everything(self, client: RawMqtt, who: str) -> Iterator[Packet]:
        """All that has come to a client."""
        client.sock.setblocking(False)
        try:
            while True:
                packet = client.packet()
                if isinstance(packet, Disconnect):
                    self.last.append(f"{who} {Reason(packet.reason).name}")
                else:
                    yield packet
        except BlockingIOError:
            client.sock.settimeout(WAIT_S)
        except Gone:
            if f"{who} gone" not in self.last:
                self.last.append(f"{who} gone")

    def outcome(self) -> dict[str, object]:
        """What must be the same. Messages of QoS 0 and others may overtake each other, and so may
        answers of which one needs the disk."""

        def seen(each: Publish) -> tuple[object, ...]:
            suffix = each.topic.removeprefix(self.topic)
            # With its length spoilt a packet has the next one in its payload, and the topic's name.
            payload = each.payload.translate(bytes.maketrans(b"an", b"??"))
            return suffix, payload, each.qos, each.retain, each.dup, each.properties

        return {
            "at most once": [seen(each) for each in self.heard if not each.qos],
            "others": [seen(each) for each in self.heard if each.qos],
            "unanswered": len(self.owed),
            "PUBACK and PUBREC": [each for each in self.told if isinstance(each, PubAck | PubRec)],
            "PUBCOMP": [each for each in self.told if isinstance(each, PubComp)],
            "end": self.last,
        }


class Theatre:
    def __init__(self, node: LiveNode) -> None:
        self.node = node
        self.clerk = RawMqtt(node)
        self.clerk.connect()
        self.short = self.long = 0
        """Messages of QoS 1 that took each of the ways, where both could be taken."""

    def compare(self, script: Script) -> None:
        number = next(SERIAL)
        # As long as each other, and of no bit that is spoilt the one becomes the other.
        topics = f"a/{number:05}", f"n/{number:05}"
        with (
            closing(Stage(self.node, self.clerk, script, topics[0])) as first,
            closing(Stage(self.node, self.clerk, script, topics[1])) as second,
            RawMqtt(self.node) as witness,
            RawMqtt(self.node, script.version) as below,
        ):
            witness.connect()
            known = Properties(subscription_identifiers=(1,))
            witness.subscribe(second.topic, f"{second.topic}/below", properties=known)
            # So that both have somebody there.
            below.connect()
            below.subscribe(f"{first.topic}/below")
            for stage in (first, second):
                stage.warm_up()
                stage.play(script)
        assert first.outcome() == second.outcome()
        assert not any(map(is_short, second.heard))
        self.short += sum(map(is_short, first.heard))
        self.long += sum(each.qos == 1 and not is_short(each) for each in first.heard)


@pytest.fixture(scope="module")
def theatre(node: LiveNode) -> Iterator[Theatre]:
    made = Theatre(node)
    yield made
    made.clerk.sock.close()


@given(seed=st.integers(0, 1 << 32), length=st.integers(6, 20))
@settings(max_examples=40)
def play_any(theatre: Theatre, seed: int, length: int) -> None:
    """A script that fails is made as short as it can be, by leaving its last steps away."""
    script = draw_script(seed, length)
    note(repr(script))
    theatre.compare(script)


def test_nobody_can_tell_the_ways_apart(theatre: Theatre) -> None:
    theatre.short = theatre.long = 0
    play_any(theatre)
    # Of the short way several times as many, unless the broker was busy with other things.
    assert theatre.short > 20
    assert theatre.long > 20


# --- spoilt packets, one by one ---


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
def test_only_what_is_exactly_right_is_taken(theatre: Theatre, version: int, qos: int) -> None:
    """A bit of each field of the last of a few packets, and every end cut off."""
    topic = "a/00000"
    size = len(encode(Publish(topic, b"12:", qos, packet_id=qos), version))
    fields = [0, 1, 2, 3, 4, len(topic) + 3, len(topic) + 4, len(topic) + 5, len(topic) + 6]
    for times in (1, 3):
        said = (Said(qos, 3, times),)
        before = size * (times - 1)
        spoilt = [Spoilt(said, before + at, bit) for at in fields for bit in (0, 1, 4, 7)]
        spoilt += [Spoilt(said, cut, None) for cut in range(1, size, 3)]
        for each in spoilt[times % 2 :: 2]:
            theatre.compare(Script(version, 1, None, (each,)))


def test_a_length_that_takes_more_bytes_than_it_needs(node: LiveNode, name: str) -> None:
    """3.1.1 allows it, 5 does not. It may be passed on as it came."""
    for version in VERSIONS:
        for qos in (0, 1):
            with Pair(node, f"{name}-{version}-{qos}", version, qos) as pair:
                pair.passes(b"before")
                data = encode(Publish(pair.topic, b"padded", qos, packet_id=7 * qos), version)
                pair.publisher.send_bytes(data[:1] + bytes([data[1] | 0x80, 0]) + data[2:])
                if version == Version.V5:
                    assert pair.publisher.closing() == Reason.MALFORMED_PACKET
                    assert pair.settled() == []
                    continue
                got = b""
                while not got.endswith(b"padded"):
                    got += pair.subscriber.sock.recv(1000)
                plain = got[:1] + bytes([got[1] & 0x7F]) + got[2 + (got[1] > 0x7F) :]
                packet_id = int.from_bytes(plain[4 + len(pair.topic) :][: 2 * qos], "big")
                assert plain == encode(
                    Publish(pair.topic, b"padded", qos, packet_id=packet_id), version
                )
                if qos:
                    assert pair.publisher.expect(PubAck).packet_id == 7
                    pair.subscriber.send(PubAck(packet_id))
                pair.opens()


def test_the_last_byte_of_the_buffer_is_the_last_that_is_looked_at(
    node: LiveNode, name: str
) -> None:
    """All connections read into one buffer: what stands behind a packet is another's."""
    with Pair(node, name, Version.V3_1_1) as pair, RawMqtt(node, Version.V3_1_1) as other:
        other.connect()
        whole = encode(Publish(name, b"0123456789", 1, packet_id=9), Version.V3_1_1)
        for cut in range(1, len(whole)):
            # The rest of it is in the buffer, from before.
            pair.passes(b"0123456789")
            pair.publisher.send_bytes(whole[:-cut])
            other.ping()
            assert pair.settled() == []
            pair.publisher.send_bytes(whole[-cut:])
            assert pair.heard().payload == b"0123456789"
            assert pair.publisher.expect(PubAck).packet_id == 9


def test_sockets_are_left_as_they_were(node: LiveNode, name: str) -> None:
    """A publisher that is gone in the middle of a packet takes nothing with it."""
    for version in VERSIONS:
        with Pair(node, f"{name}-{version}", version) as pair:
            for _ in range(5):
                (message,) = pair.numbered(b"half of it")
                pair.publisher.send_bytes(encode(message, version)[:-3])
                pair.publisher.sock.shutdown(socket.SHUT_WR)
                pair.publisher.expect_end()
                pair.publisher.sock.close()
                pair.publisher = RawMqtt(node, version)
                pair.publisher.connect()
                pair.opens()
            assert pair.settled() == []
