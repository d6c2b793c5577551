"""Bridges of a real Mosquitto, with its defaults: they connect, carry both ways, return nothing,
and lose nothing when either side is restarted."""

from pathlib import Path

import pytest
from mosquitto_bridge import STATE, Client, Mosquitto
from recorded_link import RecordedLink

from braidmq.testing.live import LiveNode, free_ports, live_node

VERSIONS = ("mqttv31", "mqttv311", "mqttv50")

versions = pytest.mark.parametrize("version", VERSIONS)


def before(port: int, topic: str = "begin") -> None:
    """A retained message that the bridge gets when its subscription is there, and not before."""
    with Client(port, "before") as client:
        client.publish(topic, "1", 1, retain=True)
        client.publish_all()


@versions
def test_both_ways_and_back_to_nobody(
    node: LiveNode, name: str, tmp_path: Path, version: str
) -> None:
    port = node.ports["mqtt_port"]
    lines = (f"topic {name}/# both 1", f"bridge_protocol_version {version}")
    before(port, f"{name}/begin")
    with (
        Client(port, f"{name}-ours", f"{name}/#", STATE, qos=2) as ours,
        Mosquitto(tmp_path, port, *lines) as mosquitto,
        Client(mosquitto.port, f"{name}-theirs", f"{name}/#", qos=2) as theirs,
    ):
        ours.wait_for(f"{STATE}=1")
        theirs.wait_for(f"{name}/begin=1")
        for number in range(50):
            ours.publish(f"{name}/a", f"down {number}", 1)
            theirs.publish(f"{name}/b", f"up {number}", 1)
        wanted = [f"{name}/a=down {number}" for number in range(50)]
        wanted += [f"{name}/b=up {number}" for number in range(50)]
        ours.wait_for(*wanted)
        theirs.wait_for(*wanted)
        # What came back would have come before these.
        ours.publish(f"{name}/z", "ours", 1)
        theirs.publish(f"{name}/z", "theirs", 1)
        ours.wait_for(f"{name}/z=theirs")
        theirs.wait_for(f"{name}/z=ours")
        assert {count for each, count in ours.got.items() if STATE not in each} == {1}
        assert set(theirs.got.values()) == {1}
        mosquitto.kill()
        ours.wait_for(f"{STATE}=0")


def test_with_nothing_but_its_defaults(fresh_node: LiveNode, tmp_path: Path) -> None:
    """All topics, and no version: it sets the bridge's bit, and no user name."""
    port = fresh_node.ports["mqtt_port"]
    before(port)
    with (
        Client(port, "ours", "#", STATE, qos=2) as ours,
        Mosquitto(tmp_path, port) as mosquitto,
        Client(mosquitto.port, "theirs", "#", qos=2) as theirs,
    ):
        ours.wait_for(f"{STATE}=1")
        theirs.wait_for("begin=1")
        ours.publish("a", "down", 1, retain=True)
        theirs.publish("b/c", "up", 1, retain=True)
        ours.wait_for("a=down", "b/c=up")
        theirs.wait_for("a=down", "b/c=up")
        with Client(mosquitto.port, "late", "#", qos=1) as late:
            late.wait_for("a=down", "b/c=up")
        ours.publish("z", "last", 1)
        theirs.wait_for("z=last")
        assert set(theirs.got.values()) == {1}
    assert (tmp_path / "log").read_text().count("sending CONNECT") == 1


@pytest.mark.parametrize(
    ("version", "qos", "refused"), [("mqttv311", 2, 0), ("mqttv311", 2, 1), ("mqttv50", 1, 0)]
)
def test_nothing_is_lost_when_either_side_is_restarted(
    tmp_path: Path, version: str, qos: int, refused: int
) -> None:
    """Ours is killed, theirs is stopped, while both ends publish. In version 5 Mosquitto's bridges
    ask for a session that ends with their connection, so that nothing waits for them here.

    Mosquitto and paho publish again what they had released with PUBREL, if a connection of theirs
    was ``refused`` while ours was down. That is another message by the standard; each link shows
    which."""
    [port] = free_ports(1)
    theirs_dir, data = tmp_path / "mosquitto", tmp_path / "data"
    theirs_dir.mkdir()
    lines = (
        f"topic # both {qos}",
        f"bridge_protocol_version {version}",
        "cleansession false",
    )
    down = [f"down={number}" for number in range(300)]
    up = [f"up={number}" for number in range(300)]
    node_context = live_node(data, mqtt_port=port)
    node = node_context.__enter__()
    before(port)
    with (
        RecordedLink(port) as our_link,
        RecordedLink(port) as bridge,
        Client(our_link.port, "ours", "#", STATE, qos=qos) as ours,
        Mosquitto(theirs_dir, bridge.port, *lines) as mosquitto,
        Client(mosquitto.port, "theirs", "#", qos=qos) as theirs,
    ):
        ours.wait_for(f"{STATE}=1")
        theirs.wait_for("begin=1")

        def publish(first: int, stop: int) -> None:
            for number in range(first, stop):
                ours.publish("down", str(number), qos)
                theirs.publish("up", str(number), qos)
                if number % 10 == 0:
                    # Of more at once Mosquitto loses what it confirmed at QoS 2.
                    theirs.publish_all()

        publish(0, 100)
        node.kill()
        node_context.__exit__(None, None, None)
        publish(100, 200)
        our_link.wait_until_refused(refused)
        bridge.wait_until_refused(refused)
        node_context = live_node(data, mqtt_port=port)
        node = node_context.__enter__()
        try:
            publish(200, 205)
            mosquitto.restart()
            publish(205, 300)
            ours.publish_all()
            theirs.publish_all()
            ours.wait_for(*up)
            if version != "mqttv50":
                theirs.wait_for(*down)
            if qos == 2:
                # What came twice would have come before these.
                ours.publish("down", "last", qos)
                theirs.publish("up", "last", qos)
                ours.wait_for("up=last")
                theirs.wait_for("down=last")
                assert_each_once(up, bridge, our_link, ours)
                assert_each_once(down, our_link, bridge, theirs)
        finally:
            node_context.__exit__(None, None, None)


def assert_each_once(
    messages: list[str], publishing: RecordedLink, receiving: RecordedLink, receiver: Client
) -> None:
    """The node delivers once what was published to it once. Of what was published again after its
    PUBREL it may or may not have known that."""
    given, came = publishing.from_client, receiving.from_node
    assert not came.broken
    for each in messages:
        begun = given.begun[each]
        assert begun - given.broken[each] <= came.begun[each] <= begun, each
        assert 1 <= receiver.got[each] <= came.begun[each], each
