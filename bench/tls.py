"""TLS beside plain, and beside RabbitMQ and Mosquitto over TLS: ``python -m bench.tls``.

All use one certificate with an ECDSA key. Rates are of one broker under load at a time, in turns.
"""

import getpass
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from bench.beside import Rivalry
from bench.harness import Bar, Benchmark, Context, Measure, at_least, at_most, main, paired_ratio
from bench.mqtt import mosquitto
from bench.rabbitmq import rabbitmq_node
from bench.tls_link import link
from braidmq.client.address import parse_address
from braidmq.loadgen import amqp, mqtt
from braidmq.loadgen.amqp_client import Client
from braidmq.loadgen.amqp_workloads import WORKLOADS as AMQP_WORKLOADS
from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.loadgen.mqtt_client import MqttClient, parse_mqtt_address
from braidmq.loadgen.mqtt_workloads import WORKLOADS as MQTT_WORKLOADS
from braidmq.loadgen.result import Result
from braidmq.model.limits import KIB
from braidmq.testing.certificates import Authority, Pair
from braidmq.testing.live import free_ports, live_node
from braidmq.wire.mqtt.constants import Version

IDLE = 2000
WARM = 200
ROUNDS_OF_CONNECTS = 5
CLIENTS = 4
"""Processes that connect: the broker is to wait for none of them."""

RABBITMQ = """
listeners.ssl.default = 127.0.0.1:{port}
ssl_options.certfile = {cert}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
"""


class Urls(NamedTuple):
    plain: str
    encrypted: str


def issued(root: Path) -> tuple[Authority, Pair]:
    root.mkdir(parents=True, exist_ok=True)
    authority = Authority(root)
    return authority, authority.for_node()


def trusting(authority: Authority) -> str:
    return "?" + urlencode({"ca": str(authority.file)})


@contextmanager
def braidmq(kind: str, root: Path) -> Iterator[Urls]:
    """``kind``: amqp or mqtt."""
    authority, pair = issued(root)
    (port,) = free_ports(1)
    config = root / "braid.toml"
    off = {"amqps": 0, "mqtts": 0, "wss": 0, "https": 0, f"{kind}s": port}
    ports = "\n".join(f"{name}_port = {number}" for name, number in off.items())
    config.write_text(f'[tls]\ncert = "{pair.cert}"\nkey = "{pair.key}"\n[listeners]\n{ports}\n')
    with live_node(root / "data", config=config) as node:
        plain = f"{kind}://127.0.0.1:{node.ports[f'{kind}_port']}/"
        yield Urls(plain, f"{kind}s://127.0.0.1:{port}/{trusting(authority)}")
        node.stop()


@contextmanager
def our_encrypted(kind: str, root: Path) -> Iterator[str]:
    with braidmq(kind, root) as urls:
        yield urls.encrypted


@contextmanager
def rabbitmq(root: Path) -> Iterator[str]:
    authority, pair = issued(root.with_name(f"{root.name}-files"))
    (port,) = free_ports(1)
    text = RABBITMQ.format(port=port, cert=pair.cert, key=pair.key)
    with rabbitmq_node(root, text):
        yield f"amqps://guest:guest@127.0.0.1:{port}/{trusting(authority)}"


@contextmanager
def mosquitto_encrypted(root: Path) -> Iterator[str]:
    authority, pair = issued(root.with_name(f"{root.name}-files"))
    # Another user could not read the key.
    config = f"persistence false\nuser {getpass.getuser()}\n"
    config += f"certfile {pair.cert}\nkeyfile {pair.key}\n"
    with mosquitto(
        root, storage=config, url="mqtts://127.0.0.1:{port}/" + trusting(authority)
    ) as at:
        yield at


def one_run(workload: str, url: str, seconds: float) -> Result:
    if url.startswith("amqp"):
        return amqp.run(AMQP_WORKLOADS[workload], url, seconds)
    return mqtt.run(MQTT_WORKLOADS[workload], url, seconds)


AMQP = Rivalry({"BraidMQ": partial(our_encrypted, "amqp"), "RabbitMQ": rabbitmq}, one_run)
MQTT = Rivalry(
    {"BraidMQ": partial(our_encrypted, "mqtt"), "Mosquitto": mosquitto_encrypted}, one_run
)


def beside_plain(kind: str, workload: str, context: Context) -> Iterator[Measure]:
    rates: dict[str, list[float]] = {"plain": [], "TLS": []}
    costs: dict[str, list[float]] = {"plain": [], "TLS": []}
    generator: dict[str, list[float]] = {"plain": [], "TLS": []}
    with braidmq(kind, context.directory() / "node") as urls:
        for number in range(context.rounds(7)):
            both = [("plain", urls.plain), ("TLS", urls.encrypted)]
            for name, url in both if number % 2 else reversed(both):
                result = one_run(workload, url, 1.5 if context.quick else 4.0)
                assert result.exactly_once, result.as_dict()
                rates[name].append(result.rate)
                costs[name].append(result.cpu_us_per_message or 0)
                generator[name].append(result.generator_busy / result.rate * 1e6)
                busy = result.generator_busy
    for what, unit, found, bar in (
        ("deliveries over TLS", "msg/s", rates, at_least(0.6)),
        ("processor time over TLS", "µs/msg", costs, None),
        ("processor time of the generator over TLS", "µs/msg", generator, None),
    ):
        yield Measure(
            f"{workload} {what}",
            statistics.median(found["TLS"]),
            unit,
            bar,
            ratio=paired_ratio(found["TLS"], found["plain"]),
            baseline=statistics.median(found["plain"]),
            against="plain",
            note=f"generator {busy:.2f} of a core",
        )


def beside(rivalry: Rivalry, workload: str, bar: Bar, context: Context) -> Iterator[Measure]:
    found = rivalry.alternated(workload, context)
    yield from rivalry.throughput(workload, found, "all over TLS", bar)


def connect_and_leave(url: str, seconds: float) -> float:
    """How often a second one process does it."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        if url.startswith("amqp"):
            Client(parse_address(url)).close()
        else:
            MqttClient(parse_mqtt_address(url), f"c-{count}-{id(url)}", Version.V3_1_1).close()
        count += 1
    return count / (time.perf_counter() - began)


def connects(
    ours: AbstractContextManager[str],
    theirs: AbstractContextManager[str],
    names: tuple[str, str],
    bar: Bar,
    context: Context,
) -> Iterator[Measure]:
    kind, rival = names
    rates: dict[str, list[float]] = {"BraidMQ": [], rival: []}
    with ExitStack() as stack, get_context("spawn").Pool(CLIENTS) as pool:
        urls = {"BraidMQ": stack.enter_context(ours), rival: stack.enter_context(theirs)}
        for _ in range(context.rounds(ROUNDS_OF_CONNECTS)):
            for name, url in urls.items():
                jobs = [(url, float(context.size(4, 2)))] * CLIENTS
                rates[name].append(sum(pool.starmap(connect_and_leave, jobs)))
    yield Measure(
        f"{kind} over TLS: connect, log in and leave",
        statistics.median(rates["BraidMQ"]),
        "connections/s",
        bar,
        ratio=paired_ratio(rates["BraidMQ"], rates[rival]),
        baseline=statistics.median(rates[rival]),
        against=rival,
    )


def mqtt_connects(context: Context) -> Iterator[Measure]:
    root = context.directory()
    ours, theirs = our_encrypted("mqtt", root / "ours"), mosquitto_encrypted(root / "theirs")
    yield from connects(ours, theirs, ("MQTT", "Mosquitto"), at_least(0.5), context)


def amqp_connects(context: Context) -> Iterator[Measure]:
    root = context.directory()
    ours, theirs = our_encrypted("amqp", root / "ours"), rabbitmq(root / "theirs")
    yield from connects(ours, theirs, ("AMQP", "RabbitMQ"), at_least(1), context)


def idle(context: Context) -> Iterator[Measure]:
    """MQTT connections that are logged in and silent."""
    count = context.size(IDLE, 500)
    with braidmq("mqtt", context.directory() / "node") as urls:
        parts = parse_mqtt_address(urls.encrypted)
        broker = BrokerProcess.listening_on(parts.port)
        assert parts.tls is not None
        assert broker is not None
        tls, held = parts.tls.context(), []
        for number in range(WARM + count):
            if number == WARM:
                before = broker.rss_bytes()
            plain = socket.create_connection((parts.host, parts.port))
            link = tls.wrap_socket(plain, server_hostname=parts.host)
            name = b"idle%06d" % number
            link.sendall(b"\x10\x16\0\4MQTT\4\2\0\0\0\x0a" + name)
            assert link.recv(4) == b"\x20\2\0\0"
            held.append(link)
        each = (broker.rss_bytes() - before) / count / KIB
        for link in held:
            link.close()
    yield Measure(f"memory of an idle connection over TLS, of {count}", each, "KiB", at_most(40))


BENCHMARKS: dict[str, Benchmark] = {
    "A": partial(beside_plain, "amqp", "A"),
    "qos1": partial(beside_plain, "mqtt", "qos1"),
    "A beside RabbitMQ": partial(beside, AMQP, "A", at_least(15)),
    "qos1 beside Mosquitto": partial(beside, MQTT, "qos1", at_least(15)),
    "amqp connects": amqp_connects,
    "mqtt connects": mqtt_connects,
    "idle": idle,
    "link": link,
}

if __name__ == "__main__":
    main("tls", BENCHMARKS)
