"""BraidMQ beside Mosquitto: ``python -m bench.mqtt``.

Both run on this machine at once, on ports and data of their own; only one is under load at a time,
in turns. What each promises differs and stands beside each figure: see ``PROMISES``.
"""

import getpass
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.beside import Rivalry, install, stop_session
from bench.harness import Bar, Benchmark, Context, Measure, at_least, at_most, main
from braidmq.gateways.mqtt.session import Session
from braidmq.gateways.mqtt.subscription_index import Subscription, SubscriptionIndex
from braidmq.loadgen.mqtt import run
from braidmq.loadgen.mqtt_client import MqttClient, parse_mqtt_address
from braidmq.loadgen.mqtt_workloads import WORKLOADS
from braidmq.loadgen.result import Result
from braidmq.model.errors import BraidError
from braidmq.runtime.turns import Turns
from braidmq.security.accounts import Accounts
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.store import Store
from braidmq.testing.live import free_ports, live_node
from braidmq.wire.mqtt.constants import Version

MOSQUITTO = Path("/usr/sbin/mosquitto")
START_S_MAX = 30.0
SUBSCRIPTIONS = 100_000

CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
# It drops what is above these: no limit, so that it need not.
max_queued_messages 0
max_queued_bytes 0
# As many in flight to a subscriber as the window of a publisher.
max_inflight_messages 1000
log_dest none
"""
IN_MEMORY = "persistence false"
SAVING = """\
persistence true
persistence_location {root}/
# As often as it can: after every change, all that it has. PUBACK does not wait for that.
autosave_on_changes true
autosave_interval 1
user {user}
"""

PROMISES = {
    "qos0": "neither promises anything",
    "persistent": "PUBACK and PUBREC here: fdatasync of the message for the subscriber's session;"
    " there: it is in memory",
    "memory": "PUBACK and PUBREC on both sides: it is in memory",
    "saved": "PUBACK here: fdatasync of the message for the subscriber's session; there: it is in"
    " memory, and all of that is written to a file after every change",
}


# --- the brokers ---


@contextmanager
def mosquitto(
    root: Path, *, storage: str = IN_MEMORY, url: str = "mqtt://127.0.0.1:{port}"
) -> Iterator[str]:
    install(MOSQUITTO, "mosquitto")
    root.mkdir(parents=True)
    (port,) = free_ports(1)
    config = root / "mosquitto.conf"
    storage = storage.format(root=root, user=getpass.getuser())
    config.write_text(CONFIG.format(port=port) + storage)
    log = (root / "output").open("wb")
    process = subprocess.Popen(
        [str(MOSQUITTO), "-c", str(config)], stdout=log, stderr=log, start_new_session=True
    )
    url = url.format(port=port)
    try:
        _wait_until_up(url, process)
        yield url
    finally:
        stop_session(process)
        log.close()


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            MqttClient(parse_mqtt_address(url), "is-it-up", Version.V3_1_1).close()
            return
        except BraidError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextmanager
def braidmq(root: Path) -> Iterator[str]:
    with live_node(root, amqp_port=0, ws_port=0, http_port=0) as node:
        yield f"mqtt://127.0.0.1:{node.ports['mqtt_port']}"
        node.stop()
    shutil.rmtree(root, ignore_errors=True)


def one_run(workload: str, url: str, seconds: float) -> Result:
    return run(WORKLOADS[workload], url, seconds)


RIVALRY = Rivalry({"BraidMQ": braidmq, "Mosquitto": mosquitto}, one_run)
WITH_DISKS = Rivalry({"BraidMQ": braidmq, "Mosquitto": partial(mosquitto, storage=SAVING)}, one_run)


# --- figures ---


def promise(workload: str) -> str:
    work = WORKLOADS[workload]
    if not work.qos:
        return PROMISES["qos0"]
    return PROMISES["persistent" if work.persistent else "memory"]


def throughput(workload: str, context: Context, *, bar: Bar | None = None) -> Iterator[Measure]:
    found = RIVALRY.alternated(workload, context)
    yield from RIVALRY.throughput(workload, found, promise(workload), bar)
    yield from RIVALRY.latencies(workload, found, confirms=bool(WORKLOADS[workload].qos))


def paced(workload: str, context: Context, *, bar: Bar | None = None) -> Iterator[Measure]:
    found = RIVALRY.alternated(workload, context)
    yield from RIVALRY.latencies(
        workload, found, bar, confirms=bool(WORKLOADS[workload].qos), note=promise(workload)
    )
    yield RIVALRY.processor_time(workload, found)


def paced_with_disks(context: Context, *, bar: Bar) -> Iterator[Measure]:
    """Beside a Mosquitto that has the messages on its disk, too, if a little later."""
    found = WITH_DISKS.alternated("paced1", context)
    yield from WITH_DISKS.latencies(
        "paced1, both with disks", found, bar, confirms=True, note=PROMISES["saved"]
    )


# --- subscriptions ---


def many_subscriptions(context: Context) -> Iterator[Measure]:
    """A third each of filters without wildcards, with one level open, and with the rest open."""
    count = context.size(SUBSCRIPTIONS, 3000)
    accounts = Accounts(Store.open(MemoryDisk()), dev=True)
    index = SubscriptionIndex("/", accounts, Turns())
    devices = range(count // 3)
    filters = [
        pattern.format(n)
        for n in devices
        for pattern in ("devices/{}/state", "+/{}/state", "devices/{}/#")
    ]
    owner = Session.__new__(Session)
    owner.grants = accounts.grants("guest", "/")
    used = time.process_time()
    for each in filters:
        index.add(Subscription(owner, each, 0))
    used = time.process_time() - used
    yield Measure(f"subscribe, up to {count}", used / len(filters) * 1e6, "µs of processor")
    topics = [
        f"devices/{n}/state".encode() for n in random.sample(devices, min(count // 3, 10_000))
    ]
    for name in ("not seen before", "seen before"):
        used = time.process_time()
        for topic in topics:
            index.match(topic)
        used = time.process_time() - used
        name = f"match among {count}, a topic {name}"
        yield Measure(name, used / len(topics) * 1e6, "µs of processor")


BENCHMARKS: dict[str, Benchmark] = {
    "qos0": partial(throughput, "qos0", bar=at_least(25)),
    "qos1": partial(throughput, "qos1", bar=at_least(12)),
    "qos1-clean": partial(throughput, "qos1-clean"),
    "qos2": partial(throughput, "qos2", bar=at_least(10)),
    "qos2-clean": partial(throughput, "qos2-clean"),
    "fan-out": partial(throughput, "fan-out", bar=at_least(40)),
    "fan-in": partial(throughput, "fan-in", bar=at_least(12)),
    "fan-in-20": partial(throughput, "fan-in-20"),
    "paced0": partial(paced, "paced0", bar=at_most(1)),
    "paced1": partial(paced, "paced1", bar=at_most(1)),
    "paced1-clean": partial(paced, "paced1-clean", bar=at_most(1)),
    "paced1-disks": partial(paced_with_disks, bar=at_most(1)),
    "subscriptions": many_subscriptions,
}


if __name__ == "__main__":
    main("mqtt", BENCHMARKS)
