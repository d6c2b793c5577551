"""Whose a session is, and who may read a topic, whatever the text of the filter."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Reason, Version
from braidmq.wire.mqtt.packets import Disconnect, PubAck, Publish, PubRec, PubRel, Will
from braidmq.wire.mqtt.properties import Properties

EVERYTHING = ".*"
NOT_SECRET = "^(?!secret)"
VERSIONS = [Version.V3_1_1, Version.V5]


class Admin:
    def __init__(self, node: LiveNode) -> None:
        self._client = httpx.Client(base_url=node.http_url, auth=("guest", "guest"), timeout=20)

    def user(self, name: str, read: str = EVERYTHING, write: str = EVERYTHING) -> None:
        self._client.put(f"/v1/users/{name}", json={"password": "pw"}).raise_for_status()
        self.may(name, read, write)

    def may(self, name: str, read: str, write: str = EVERYTHING) -> None:
        rights = {"configure": EVERYTHING, "write": write, "read": read}
        self._client.put(f"/v1/permissions/%2F/{name}", json=rights).raise_for_status()

    def delete(self, name: str) -> None:
        self._client.delete(f"/v1/users/{name}").raise_for_status()

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def admin(node: LiveNode) -> Iterator[Admin]:
    made = Admin(node)
    yield made
    made.close()


def kept(version: int) -> dict[str, object]:
    if version == Version.V5:
        return {"clean_start": False, "properties": Properties(session_expiry_interval=3600)}
    return {"clean_start": False}


def login(client: RawMqtt, client_id: str, user: str, **fields: object) -> int:
    return client.connect(client_id, user_name=user, password=b"pw", **fields).reason


# --- whose a session is ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("clean_start", [False, True])
def test_another_users_client_id_is_refused(
    node: LiveNode, admin: Admin, name: str, version: int, clean_start: bool
) -> None:
    """Connected or not, the owner notices nothing."""
    owner, thief = f"{name}-owner", f"{name}-thief"
    admin.user(owner)
    admin.user(thief)
    with RawMqtt(node, version) as client, RawMqtt(node) as sender:
        login(client, name, owner, **kept(version))
        client.subscribe(name, qos=1)
        with RawMqtt(node, version) as other:
            fields = {**kept(version), "clean_start": clean_start}
            assert login(other, name, thief, **fields) == Reason.NOT_AUTHORIZED
            other.expect_end()
        assert client.ping() == []
        client.send(Disconnect())
        client.expect_end()
        sender.connect()
        assert sender.answer(sender.publish(name, b"waits", 1)) == 0
    with RawMqtt(node, version) as other:
        assert login(other, name, thief, **fields) == Reason.NOT_AUTHORIZED
    with RawMqtt(node, version) as client:
        answer = client.connect(name, user_name=owner, password=b"pw", **kept(version))
        assert answer.session_present
        assert client.message().payload == b"waits"


@pytest.mark.crash
def test_a_session_has_its_owner_after_a_kill(tmp_path: Path) -> None:
    with live_node(tmp_path) as node, RawMqtt(node) as client:
        admin = Admin(node)
        admin.user("ann")
        admin.user("bob")
        admin.close()
        login(client, "device", "ann", **kept(Version.V5))
        node.kill()
    with live_node(tmp_path) as node, RawMqtt(node) as client, RawMqtt(node) as other:
        assert login(other, "device", "bob", **kept(Version.V5)) == Reason.NOT_AUTHORIZED
        answer = client.connect("device", user_name="ann", password=b"pw", **kept(Version.V5))
        assert answer.session_present


def test_client_ids_of_others_if_that_is_wanted(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[mqtt]\nforeign_client_ids = true\n")
    with live_node(tmp_path / "data", config=config) as node:
        admin = Admin(node)
        admin.user("ann")
        admin.user("bob")
        admin.close()
        with RawMqtt(node) as client, RawMqtt(node) as other:
            login(client, "device", "ann", **kept(Version.V5))
            answer = other.connect("device", user_name="bob", password=b"pw", **kept(Version.V5))
            assert (answer.reason, answer.session_present) == (0, False)
            assert client.closing() == Reason.SESSION_TAKEN_OVER


def test_a_namesake_of_a_deleted_user_finds_no_session(
    node: LiveNode, admin: Admin, name: str
) -> None:
    admin.user(name)
    with RawMqtt(node) as client:
        login(client, name, name, **kept(Version.V5))
        client.subscribe(name, qos=1)
        admin.delete(name)
        assert client.closing() == Reason.ADMINISTRATIVE_ACTION
    admin.user(name)
    with RawMqtt(node) as client:
        answer = client.connect(name, user_name=name, password=b"pw", **kept(Version.V5))
        assert not answer.session_present


# --- the right to a topic ---


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("session", ["kept", "clean"])
def test_a_wildcard_shows_only_what_may_be_read(
    node: LiveNode, admin: Admin, name: str, version: int, qos: int, session: str
) -> None:
    admin.user(name, NOT_SECRET)
    with RawMqtt(node, version) as client, RawMqtt(node, version) as sender:
        login(client, name, name, **(kept(version) if session == "kept" else {}))
        assert client.subscribe(f"+/{name}", qos=qos) == (qos,)
        sender.connect()
        for number in range(5):  # from the second on they may take the short way
            for topic in (f"secret/{name}", f"open/{name}"):
                sent = sender.publish(topic, b"%d" % number, qos)
                if qos:
                    assert sender.answer(sent) in (0, Reason.NO_MATCHING_SUBSCRIBERS)
            got = client.message()
            assert (got.topic, got.payload) == (f"open/{name}", b"%d" % number)
        assert client.ping() == []


def test_a_right_that_comes_and_goes(node: LiveNode, admin: Admin, name: str) -> None:
    """The next message obeys it, on the short way, too."""
    topic = f"secret/{name}"
    admin.user(name)
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        login(client, name, name)
        client.subscribe(f"+/{name}")
        sender.connect()
        for read, comes in ((EVERYTHING, True), (NOT_SECRET, False), (EVERYTHING, True)):
            admin.may(name, read)
            for number in range(5):
                sender.publish(topic, b"%d" % number)
            assert sender.ping() == []
            assert len(client.ping()) == (5 if comes else 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_waits_for_who_is_away_obeys_the_rights_of_its_return(
    node: LiveNode, admin: Admin, name: str, qos: int
) -> None:
    admin.user(name)
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        login(client, name, name, **kept(Version.V5))
        client.subscribe(f"+/{name}", qos=qos)
        client.send(Disconnect())
        client.expect_end()
        sender.connect()
        for topic in ("secret", "open"):
            assert sender.answer(sender.publish(f"{topic}/{name}", b"1", qos)) == 0
        admin.may(name, NOT_SECRET)
        sender.answer(sender.publish(f"secret/{name}", b"2", qos))
    with RawMqtt(node) as client:
        login(client, name, name, **kept(Version.V5))
        assert client.message().topic == f"open/{name}"
        assert client.ping() == []


def test_an_exchange_that_was_begun_ends_without_its_message(
    node: LiveNode, admin: Admin, name: str
) -> None:
    """The client has the packet id, and must get rid of it."""
    admin.user(name)
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        login(client, name, name, **kept(Version.V5))
        client.subscribe(f"+/{name}", qos=2)
        sender.connect()
        assert sender.answer(sender.publish(f"secret/{name}", b"1", 2)) == 0
        begun = client.expect(Publish)
    admin.may(name, NOT_SECRET)
    with RawMqtt(node) as client:
        login(client, name, name, **kept(Version.V5))
        assert client.expect(PubRel).packet_id == begun.packet_id
        client.send(PubRec(0xFFFF))
        assert client.expect(PubRel).reason == Reason.PACKET_IDENTIFIER_NOT_FOUND


def test_retained_messages_obey_the_right_to_their_topics(
    node: LiveNode, admin: Admin, name: str
) -> None:
    admin.user(name, NOT_SECRET)
    with RawMqtt(node) as client, RawMqtt(node) as sender:
        sender.connect()
        for topic in ("secret", "open"):
            for qos in (0, 1):
                sent = sender.publish(f"{topic}/{name}/{qos}", b"kept", qos, retain=True)
                if qos:
                    sender.answer(sent)
        sender.ping()
        login(client, name, name)
        client.subscribe(f"+/{name}/+", qos=1)
        got = [client.message().topic for _ in range(2)]
        assert sorted(got) == [f"open/{name}/0", f"open/{name}/1"]
        assert client.ping() == []


def test_of_a_group_one_that_may_read_gets_it(node: LiveNode, admin: Admin, name: str) -> None:
    admin.user(f"{name}-all")
    admin.user(f"{name}-some", NOT_SECRET)
    with RawMqtt(node) as all_of_it, RawMqtt(node) as some, RawMqtt(node) as sender:
        login(all_of_it, f"{name}-1", f"{name}-all")
        login(some, f"{name}-2", f"{name}-some")
        for client in (all_of_it, some):
            client.subscribe(f"$share/{name}/+/{name}", qos=1)
        sender.connect()
        for number in range(6):
            assert sender.answer(sender.publish(f"secret/{name}", b"%d" % number, 1)) == 0
            got = all_of_it.expect(Publish)
            assert got.payload == b"%d" % number
            all_of_it.send(PubAck(got.packet_id))
        assert some.ping() == []
        admin.may(f"{name}-all", NOT_SECRET)
        sent = sender.publish(f"secret/{name}", b"nobody", 1)
        assert sender.answer(sent) == Reason.NO_MATCHING_SUBSCRIBERS


def test_a_will_needs_the_right_when_it_is_due(node: LiveNode, admin: Admin, name: str) -> None:
    admin.user(name)
    with RawMqtt(node) as watcher:
        watcher.connect()
        watcher.subscribe(f"+/{name}")
        for write, comes in ((EVERYTHING, 1), (NOT_SECRET, 0)):
            with RawMqtt(node) as client:
                login(client, name, name, will=Will(f"secret/{name}", b"gone", 0))
                admin.may(name, EVERYTHING, write)
                # With its will: MQTT-3.14.4-3.
                client.send(Disconnect(Reason.DISCONNECT_WITH_WILL))
                client.expect_end()
            assert len(watcher.ping()) == comes


def test_values_of_the_broker_obey_it_too(node: LiveNode, admin: Admin, name: str) -> None:
    admin.user(name, r"^(?!\$SYS/broker/version)")
    with RawMqtt(node) as client:
        login(client, name, name)
        client.subscribe("$SYS/broker/+")
        assert [each.topic for each in client.ping() if isinstance(each, Publish)] == [
            "$SYS/broker/uptime"
        ]


# --- bridges ---


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bridge_says_how_it_is_with_the_right_to(
    node: LiveNode, admin: Admin, name: str, version: int
) -> None:
    """And by its own name alone."""
    state = f"$SYS/broker/connection/{name}/state"
    admin.user(name, write="^sensors/")
    will = Will(state, b"0", 1, retain=True)
    with RawMqtt(node, version) as refused:
        assert login(refused, name, name, will=will)
        refused.expect_end()
    admin.may(name, EVERYTHING, write=rf"^\$SYS/broker/connection/{name}/state$")
    with RawMqtt(node, version) as bridge, RawMqtt(node) as watcher:
        watcher.connect()
        watcher.subscribe(state)
        assert login(bridge, name, name, will=will) == 0
        bridge.answer(bridge.publish(state, b"1", 1, retain=True))
        assert watcher.message().payload == b"1"
        bridge.sock.close()
        assert watcher.message().payload == b"0"
    with RawMqtt(node, Version.V3_1_1) as other:
        assert login(other, f"{name}-other", name, is_bridge=True) == 0
        other.publish(state, b"1", 1)
        other.expect_end()
