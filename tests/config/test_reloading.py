"""A configuration that is read again: every key is taken while the node runs, or named as one that
needs a restart. A new key is in neither table, and then these tests fail."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, cast

import httpx
import msgspec
import pytest

from braidmq import logs
from braidmq.api.resources.configuration import Reloaded
from braidmq.config import Config
from braidmq.config.live import ENTRIES, PART_OF, RESTART
from braidmq.config.reloading import masked
from braidmq.config.settings import NodeSettings, all_keys
from braidmq.gateways.amqp.connection import AmqpConnection
from braidmq.gateways.mqtt.connection import MqttConnection
from braidmq.model.errors import BadSetting
from braidmq.net.settings import ListenerEntry, ListenerSettings
from braidmq.net.tls_settings import CertificateEntry, ListenerTls, TlsSettings
from braidmq.security.jwt_settings import JwtSettings
from braidmq.storage.disk import MemoryDisk
from braidmq.testing.certificates import Authority
from braidmq.testing.hosted import SMALL, HostedNode, hosted_node
from braidmq.testing.live import free_ports

WAIT_S = 60
HOST = "broker.example.com"
ORIGIN = "https://app.example.com"


class World(NamedTuple):
    node: HostedNode
    first: Config
    loaded: list[Config]
    """What is found when the configuration is read again: the last."""
    authority: Authority

    def reload(self, changes: dict[str, Any]) -> Reloaded:
        """With these keys; all others as at the start."""
        self.loaded[:] = [with_keys(self.first, changes)]
        found = asyncio.run_coroutine_threadsafe(
            self.node.reloading.reload(), self.node.node_loop.loop
        )
        return found.result(WAIT_S)


def with_keys(config: Config, changes: dict[str, Any]) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in changes.items():
        section, _, name = dotted.partition(".")
        sections.setdefault(section, {})[name] = value
    made = {
        section: msgspec.structs.replace(getattr(config, section), **values)
        for section, values in sections.items()
    }
    return msgspec.structs.replace(config, **made)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("reloading")
    authority = Authority(directory)
    pair = authority.for_node()
    tls_port, *ports = free_ports(5)
    amqp, mqtt, ws, http = ports
    config = Config(
        node=NodeSettings(dev=True),
        tls=TlsSettings(cert=str(pair.cert), key=str(pair.key), watch_s=0),
        listeners=ListenerSettings(
            amqp_port=amqp,
            mqtt_port=mqtt,
            ws_port=ws,
            http_port=http,
            entries=(ListenerEntry("secure", "amqp", tls_port, tls=ListenerTls()),),
        ),
        storage=SMALL,
        jwt=JwtSettings(issuer="https://issuer.example.com", audience="braidmq"),
    )
    loaded: list[Config] = []
    level = logging.getLogger(logs.ROOT).level
    handler = logging.StreamHandler(StringIO())
    handler.setFormatter(logs.HumanFormat())
    logging.getLogger().addHandler(handler)
    with hosted_node(MemoryDisk(), None, config, lambda: loaded[-1]) as node:
        node.ports = {"amqp_port": amqp, "mqtt_port": mqtt, "ws_port": ws, "http_port": http}
        yield World(node, config, loaded, authority)
    logging.getLogger(logs.ROOT).setLevel(level)
    logging.getLogger().removeHandler(handler)


# --- where a key is used ---


def part(world: World, name: str) -> Any:
    """What takes the keys of a part."""
    return cast(Any, world.node.reloading.parts[name](world.first)).func.__self__


@contextmanager
def connected(world: World, protocol: str, hello: bytes = b"") -> Iterator[Any]:
    """The node's end of a new connection."""
    node, gateway = world.node, part(world, protocol)
    known = set(node.call(lambda: list(gateway.connections)))
    with socket.create_connection(("127.0.0.1", node.ports[f"{protocol}_port"]), WAIT_S) as link:
        if hello:
            link.sendall(hello)
            link.recv(1)
        until_s, new = monotonic() + WAIT_S, list[Any]()
        while not new:
            assert monotonic() < until_s, "it was not accepted"
            found = node.call(lambda: list(gateway.connections))
            new = [each for each in found if each not in known]
        yield new[0]


def offered(protocol: str, name: str) -> "Probe":
    """What a connection works by that begins now."""
    kind = {"amqp": AmqpConnection, "mqtt": MqttConnection}[protocol]

    def probe(world: World) -> object:
        with connected(world, protocol) as connection:
            assert isinstance(connection, kind)
            return getattr(connection.settings, name)

    return probe


Probe = Callable[[World], object]


def of_mqtt(read: Callable[[Any], object]) -> Probe:
    def probe(world: World) -> object:
        with connected(world, "mqtt", b"\x10\x0f\0\4MQTT\5\2\0\0\0\0\2ab") as connection:
            return read(connection.gateway)

    return probe


def of_amqp(read: Callable[[Any], object]) -> Probe:
    return lambda world: read(part(world, "amqp"))


def get(world: World, path: str, **headers: str) -> httpx.Response:
    return httpx.get(world.node.http_url + path, headers=headers, timeout=WAIT_S)


def websocket_status(world: World) -> int:
    port = world.node.ports["ws_port"]
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "sec-websocket-protocol": "mqtt",
        "origin": ORIGIN,
    }
    with httpx.stream("GET", f"http://127.0.0.1:{port}/", headers=headers) as answer:
        return answer.status_code


def state(read: Callable[[Any], object]) -> Probe:
    """Of what all connections share."""
    return lambda world: world.node.call(lambda: read(world.node))


def rate(name: str) -> Probe:
    return state(lambda node: getattr(node.node_loop.rates.settings, name))


def context(world: World) -> Any:
    (port,) = [each.tls for each in world.node.service.listeners if each.tls is not None]
    return port.current


def certificates(world: World) -> Any:
    return world.node.service.certificates


def metrics_of(world: World) -> Any:
    return part(world, "metrics")


MIB = 1 << 20

CASES: dict[str, tuple[Any, Probe, Any]] = {
    # Key → value, where its effect is seen, and what is seen then.
    "node.shutdown_deadline_s": (
        3.0,
        state(lambda node: node.reloading.running.node.shutdown_deadline_s),
        3.0,
    ),
    "tls.ciphers": (
        "ECDHE+CHACHA20",
        lambda world: any("AES" in each["name"] for each in tls12(context(world).ssl)),
        False,
    ),
    "tls.min_version": ("1.3", lambda world: context(world).ssl.minimum_version.name, "TLSv1_3"),
    "tls.handshake_timeout_s": (
        77.0,
        lambda world: certificates(world).handshakes._underway._linger_s,
        77.0,
    ),
    "tls.watch_s": (5.0, lambda world: certificates(world)._settings.watch_s, 5.0),
    "limits.memory_slow_bytes": (
        700 * MIB,
        state(lambda node: node.engine.pressure.marks.memory_slow_bytes),
        700 * MIB,
    ),
    "limits.memory_block_bytes": (
        4096 * MIB,
        state(lambda node: node.node_loop.input_budget.bytes_max),
        2048 * MIB,
    ),
    "limits.disk_slow_bytes": (
        4096 * MIB,
        state(lambda node: node.engine.pressure.marks.disk_slow_bytes),
        4096 * MIB,
    ),
    "limits.disk_block_bytes": (
        100 * MIB,
        state(lambda node: node.engine.pressure.marks.disk_block_bytes),
        100 * MIB,
    ),
    "limits.unconfirmed_messages_max": (
        7,
        of_amqp(lambda gateway: gateway.unconfirmed.messages),
        7,
    ),
    "limits.unconfirmed_bytes_max": (7, of_amqp(lambda gateway: gateway.unconfirmed.bytes), 7),
    "retention.check_messages": (
        7,
        state(lambda node: node.engine.state.upkeep.check_messages),
        7,
    ),
    "retention.check_interval_s": (
        7.0,
        state(
            lambda node: (
                node.engine.state.wheel.due_of(node.engine.retention._sweep_timer)
                - node.node_loop.clock.now_ms()
                <= 7000
            )
        ),
        True,
    ),
    "retention.compaction_interval_min_s": (
        7.0,
        state(lambda node: node.engine.state.upkeep.compaction_period_ms(1)),
        7000,
    ),
    "retention.first_compaction_s": (
        7.0,
        state(lambda node: node.engine.state.upkeep.first_compaction_ms(100_000)),
        7000,
    ),
    "amqp.consumer_timeout_s": (
        77.0,
        of_amqp(lambda gateway: gateway.settings.consumer_timeout_s),
        77.0,
    ),
    "mqtt.session_messages_max": (
        7,
        of_mqtt(lambda gateway: gateway.sessions.get("/", "ab").outbox._messages_max),
        7,
    ),
    "mqtt.delayed_messages_max": (7, of_mqtt(lambda gateway: delayed_max(gateway)), 7),
    "mqtt.retained_messages_max": (
        7,
        of_mqtt(lambda gateway: gateway.router.retained._settings.retained_messages_max),
        7,
    ),
    "mqtt.retained_bytes_max": (
        7,
        of_mqtt(lambda gateway: gateway.router.retained._settings.retained_bytes_max),
        7,
    ),
    "mqtt.foreign_client_ids": (
        True,
        of_mqtt(lambda gateway: gateway.sessions._settings.foreign_client_ids),
        True,
    ),
    "mqtt.share_strategy": (
        "random",
        of_mqtt(lambda gateway: gateway.router.settings.share_strategy),
        "random",
    ),
    "mqtt.sys_interval_s": (7, of_mqtt(lambda gateway: gateway.settings.sys_interval_s), 7),
    "mqtt.origins": (ORIGIN, websocket_status, 101),
    "http.allowed_hosts": (HOST, lambda world: get(world, "/health", host=HOST).status_code, 200),
    "http.allowed_origins": (
        ORIGIN,
        lambda world: get(world, "/health", origin=ORIGIN).status_code,
        200,
    ),
    "http.poll_wait_ms": (
        7,
        lambda world: get(world, "/v1/topics").is_success and waits(world),
        400,
    ),
    "log.level": (
        "error",
        lambda world: logging.getLogger(logs.ROOT).getEffectiveLevel(),
        logging.ERROR,
    ),
    "log.format": ("json", lambda world: logs.is_json(), True),
    "metrics.public": (True, lambda world: metrics_of(world).public, True),
    "metrics.local": (False, lambda world: metrics_of(world).local, False),
    "metrics.topics_max": (0, lambda world: metrics_of(world)._settings.topics_max, 0),
    "metrics.lanes_max": (0, lambda world: metrics_of(world)._settings.lanes_max, 0),
    "alerts.window_s": (7.0, lambda world: world.node.alerts._settings.window_s, 7.0),
    "alerts.timeout_s": (7.0, lambda world: world.node.alerts._settings.timeout_s, 7.0),
    "alerts.hosts": (
        "hooks.example.com",
        lambda world: world.node.alerts._may_reach("http://other.example.com/"),
        False,
    ),
    "usage.days": (7, state(lambda node: node.node_loop.usage._settings.days), 7),
    "audit.file_bytes_max": (
        MIB,
        state(lambda node: node.audit._settings.file_bytes_max),
        MIB,
    ),
    "audit.files_max": (7, state(lambda node: node.audit._settings.files_max), 7),
    "usage.rows_max": (700, state(lambda node: node.node_loop.usage._settings.rows_max), 700),
    "rates.limit_loopback": (
        True,
        state(lambda node: node.node_loop.rates.is_limited("127.0.0.1")),
        True,
    ),
    "rates.over_limit": ("refuse", state(lambda node: node.node_loop.rates.refuses), True),
    "rates.failed_logins": (7, state(lambda node: node._node.accounts.failed_logins.free), 7),
    "rates.failed_login_wait_max_s": (
        7,
        state(lambda node: node._node.accounts.failed_logins.wait_max_s),
        7,
    ),
}


def of_jwt(name: str) -> Probe:
    return lambda world: getattr(part(world, "jwt").settings, name)


JWT: dict[str, Any] = {
    "jwks": "/nowhere/jwks.json",
    "ca": "/nowhere/ca.pem",
    "issuer": "https://another.example.com",
    "audience": "another",
    "algorithms": "PS256",
    "leeway_s": 7.0,
    "users": "account",
    "user_claim": "preferred_username",
    "scope_claim": "roles",
    "scope_prefix": "braidmq.",
    "refresh_s": 77,
}
CASES |= {f"jwt.{name}": (value, of_jwt(name), value) for name, value in JWT.items()}

RATES = (
    *("connections_per_min", "connections_burst", "messages_per_s", "messages_burst"),
    *("bytes_per_s", "bytes_burst", "subscriptions_per_s", "subscriptions_burst"),
    *("user_messages_per_s", "user_bytes_per_s", "node_messages_per_s", "node_bytes_per_s"),
)
for _name in RATES:
    CASES[f"rates.{_name}"] = (7, rate(_name), 7)

OFFERED: dict[str, Any] = {
    "amqp.product": "BraidMQ",
    "amqp.frame_bytes_max": 8192,
    "amqp.channel_max": 7,
    "amqp.heartbeat_s": 7,
    "amqp.handshake_timeout_s": 77.0,
    "amqp.message_bytes_max": 7,
    "mqtt.receive_maximum": 7,
    "mqtt.packet_bytes_max": 2048,
    "mqtt.connect_bytes_max": 2048,
    "mqtt.topic_alias_maximum": 7,
    "mqtt.topic_levels_max": 7,
    "mqtt.maximum_qos": 1,
    "mqtt.keep_alive_s_max": 7,
    "mqtt.session_expiry_s_max": 7,
    "mqtt.queue_batch": 7,
    "mqtt.subscriptions_max": 7,
    "mqtt.output_bytes_max": 2048,
    "mqtt.redirect": "mqtt.example.com:1883",
}
for _key, _value in OFFERED.items():
    _protocol, _, _name = _key.partition(".")
    CASES[_key] = (_value, offered(_protocol, _name), _value)

FILES = ("cert", "key", "certificates", "client_certs", "ca", "crl", "user_from")
"""Of ``[tls]``: what the test below has, with files of its own."""

OTHER: dict[str, Any] = {
    "node.data_dir": "./elsewhere",
    "node.dev": False,
    "listeners.host": "0.0.0.0",
    "audit.enabled": False,
    "audit.directory": "./elsewhere",
    "audit.topic": True,
}


def tls12(made: Any) -> list[dict[str, Any]]:
    return [each for each in made.get_ciphers() if each["protocol"] == "TLSv1.2"]


def delayed_max(gateway: Any) -> object:
    queue = gateway.delayed._queue("/")
    return queue.open().policy.max_messages


def waits(world: World) -> int:
    url = world.node.http_url + "/v1/topics/patience"
    httpx.put(url, json={}, timeout=WAIT_S)
    httpx.put(f"{url}/subscriptions/one", json={}, timeout=WAIT_S)
    answer = httpx.post(f"{url}/subscriptions/one/receive", json={"wait_ms": 8}, timeout=WAIT_S)
    return answer.status_code


# --- the tables ---


def test_every_key_is_taken_or_needs_a_restart() -> None:
    keys = {key.dotted for key in all_keys()}
    assert PART_OF.keys() | RESTART.keys() == keys
    assert not PART_OF.keys() & RESTART.keys()


def test_every_key_that_is_taken_is_tried() -> None:
    tried = CASES.keys() | {f"tls.{name}" for name in FILES} | {ENTRIES}
    assert tried == PART_OF.keys()


def test_every_part_takes_its_keys(world: World) -> None:
    assert world.node.reloading.parts.keys() == set(PART_OF.values())


@pytest.mark.parametrize("key", CASES)
def test_a_key_is_taken_while_the_node_runs(world: World, key: str) -> None:
    value, probe, wanted = CASES[key]
    world.reload({})
    assert probe(world) != wanted
    found = world.reload({key: value})
    assert [each.key for each in found.changed] == [key]
    assert found.restart == []
    assert probe(world) == wanted
    world.reload({})
    assert probe(world) != wanted


@pytest.mark.parametrize("key", RESTART)
def test_a_key_that_needs_a_restart_is_named(world: World, key: str) -> None:
    world.reload({})
    before = world.node.reloading.running
    section, _, name = key.partition(".")
    value = OTHER.get(key)
    if value is None:
        value = cast(int, getattr(getattr(world.first, section), name)) + 4096
    found = world.reload({key: value})
    assert ([each.key for each in found.changed], [each.key for each in found.restart]) == (
        [],
        [key],
    )
    assert world.node.reloading.running == before


def test_files_of_tls_are_taken(world: World) -> None:
    """What goes together, in one reload."""
    world.reload({})
    second = world.authority.for_node("second.example.com", file="second")
    other = world.authority.for_node("third.example.com", file="third")
    crl = world.authority.revoke()
    before = {each.serial for each in context(world).certificates}
    found = world.reload(
        {
            "tls.cert": str(second.cert),
            "tls.key": str(second.key),
            "tls.certificates": (CertificateEntry(str(other.cert), str(other.key)),),
            "tls.client_certs": "required",
            "tls.ca": str(world.authority.file),
            "tls.crl": str(crl),
            "tls.user_from": "dns",
        }
    )
    assert sorted(each.key for each in found.changed) == sorted(f"tls.{name}" for name in FILES)
    now = context(world)
    assert not before & {each.serial for each in now.certificates}
    assert len(now.certificates) == 2
    assert (now.user_from, now.ssl.verify_mode.name) == ("dns", "CERT_REQUIRED")
    assert now.ssl.cert_store_stats()["crl"] == 1
    world.reload({})
    assert {each.serial for each in context(world).certificates} == before


def test_tls_of_an_entry_is_taken_and_a_new_entry_is_not(world: World) -> None:
    world.reload({})
    (entry,) = world.first.listeners.entries
    stricter = msgspec.structs.replace(entry, tls=ListenerTls(min_version="1.3"))
    more = ListenerEntry("another", "amqp", 1)
    found = world.reload({ENTRIES: (stricter, more)})
    assert [each.key for each in found.changed] == [ENTRIES]
    assert [each.key for each in found.restart] == [ENTRIES]
    assert context(world).ssl.minimum_version.name == "TLSv1_3"
    assert [each.spec.name for each in world.node.service.listeners].count("another") == 0


def test_one_mistake_and_nothing_changes(world: World) -> None:
    world.reload({})
    node = world.node
    before, failures = node.reloading.running, node.reloading.failures
    with pytest.raises(BadSetting):
        world.reload({"amqp.heartbeat_s": 7, "log.level": "error", "tls.cert": "/no/such/file"})
    assert node.reloading.running == before
    assert logs.level() == before.log.level
    assert offered("amqp", "heartbeat_s")(world) == 60
    assert node.reloading.failures == failures + 1


def test_a_level_set_by_other_ways_is_put_back(world: World) -> None:
    world.reload({})
    logs.set_level("debug")
    (change,) = world.reload({}).changed
    assert (change.key, change.before, change.after) == ("log.level", '"debug"', '"info"')
    assert logs.level() == "info"


def test_secrets_are_masked() -> None:
    assert masked("client_secret", "geheim") == masked("password", "geheim") == "***"
    assert masked("password", "") == '""'
    assert (
        masked("jwks_url", "https://ann:geheim@id.example.com/k")
        == '"https://***@id.example.com/k"'
    )
    assert masked("token_bytes_max", 7) == "7"


def test_over_http(world: World, tmp_path: Path) -> None:
    world.reload({})
    url = world.node.http_url + "/v1/config/reload"
    world.loaded[:] = [with_keys(world.first, {"amqp.heartbeat_s": 7, "node.dev": False})]
    answer = httpx.post(url, timeout=WAIT_S)
    assert answer.json() == {
        "changed": [{"key": "amqp.heartbeat_s", "before": "60", "after": "7"}],
        "restart": [{"key": "node.dev", "before": "true", "after": "false"}],
    }
    world.loaded[:] = [with_keys(world.first, {"tls.cert": str(tmp_path / "none")})]
    refused = httpx.post(url, timeout=WAIT_S)
    assert (refused.status_code, refused.json()["code"]) == (409, "bad-tls")
    shown = get(world, "/metrics").text
    assert f"\nbraid_config_reloads_total {float(world.node.reloading.reloads)}" in shown
    assert f"\nbraid_config_reload_failures_total {float(world.node.reloading.failures)}" in shown
