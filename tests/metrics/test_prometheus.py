"""A live node's metrics: what pika did, what promtool says, what a real Prometheus scraped."""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from braidmq.testing.live import LiveNode, free_ports, live_node

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/braidmq.json"
WAIT_S = 60
DEAD = "dead"
TASKS = "tasks"


@pytest.fixture(scope="module")
def tools() -> None:
    """Debian's prometheus and promtool."""
    if shutil.which("promtool") is None:
        done = subprocess.run(
            ["apt-get", "install", "--yes", "--no-install-recommends", "prometheus"],
            capture_output=True,
            timeout=100,
        )
        if done.returncode:
            pytest.skip("apt can't install prometheus here")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("node")) as node:
        run_script(node)
        yield node


def run_script(node: LiveNode) -> None:
    """20 published, 10 of them acknowledged, 3 given back, 4 rejected, 6 left."""
    parameters = pika.ConnectionParameters(port=node.ports["amqp_port"])
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(DEAD, durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
        channel.queue_declare(TASKS, durable=True, arguments=arguments)
        for number in range(20):
            channel.basic_publish("", TASKS, b"%d" % number, pika.BasicProperties(delivery_mode=2))
        tags = [channel.basic_get(TASKS)[0].delivery_tag for _ in range(17)]
        channel.basic_ack(tags[9], multiple=True)
        for tag in tags[10:13]:
            channel.basic_nack(tag, requeue=True)
        for tag in tags[13:]:
            channel.basic_reject(tag, requeue=False)
        channel.queue_declare(TASKS, passive=True)  # everything before it is done


EXPECTED = {
    'braid_published_messages_total{namespace="/"}': 24,
    'braid_delivered_messages_total{namespace="/"}': 17,
    'braid_acknowledged_messages_total{namespace="/"}': 10,
    'braid_nacked_messages_total{namespace="/"}': 3,
    'braid_rejected_messages_total{namespace="/"}': 4,
    'braid_dead_lettered_messages_total{namespace="/",reason="rejected"}': 4,
    'braid_ready_messages{namespace="/"}': 10,
    'braid_in_flight_messages{namespace="/"}': 0,
    'braid_topic_published_messages_total{namespace="/",topic="tasks"}': 20,
    'braid_connections_opened_total{protocol="amqp"}': 1,
    "braid_delivery_latency_seconds_count": 17,
    "braid_storage_failed": 0,
    "braid_pressure_level": 0,
}


def metrics(node: LiveNode) -> str:
    answer = httpx.get(f"{node.http_url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return answer.text


def test_counters_agree_with_what_clients_did(node: LiveNode) -> None:
    lines = dict(
        line.rsplit(" ", 1) for line in metrics(node).splitlines() if not line.startswith("#")
    )
    assert {name: float(lines[name]) for name in EXPECTED} == EXPECTED
    assert float(lines["braid_journal_syncs_total"]) >= 1
    assert float(lines['braid_received_bytes_total{protocol="amqp"}']) > 1000
    assert float(lines["process_resident_memory_bytes"]) > 0


@pytest.mark.usefixtures("tools")
def test_promtool_has_nothing_to_say(node: LiveNode) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=metrics(node),
        text=True,
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_metric_of_the_dashboard_exists(node: LiveNode) -> None:
    families = text_string_to_metric_families(metrics(node))
    known = {sample.name for family in families for sample in family.samples}
    # Nothing was dropped for want of a place: this one has no sample yet, only its type.
    known.add("braid_dropped_messages_total")
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"][1:]]
    names = set(re.findall(r"\b(?:braid|process)_\w+", " ".join(asked)))
    assert len(names) > 30
    assert not names - known


@pytest.mark.usefixtures("tools")
def test_a_real_prometheus_scrapes_it(node: LiveNode, tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    target = f"127.0.0.1:{node.ports['http_port']}"
    config.write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
        f"scrape_configs: [{{job_name: braid, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    (port,) = free_ports(1)
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    command.append(f"--web.listen-address=127.0.0.1:{port}")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            found = {name: queried(process, port, name) for name in EXPECTED}
        finally:
            process.kill()
    assert found == EXPECTED


def queried(process: "subprocess.Popen[bytes]", port: int, query: str) -> float:
    """What Prometheus has of it, as soon as it has something."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "Prometheus did not stay"
        try:
            url = f"http://127.0.0.1:{port}/api/v1/query"
            answer = httpx.get(url, params={"query": query}, timeout=WAIT_S)
            result = answer.json()["data"]["result"] if answer.status_code == 200 else []
        except httpx.TransportError:
            result = []
        if result:
            return float(result[0]["value"][1])
        time.sleep(0.05)
    raise AssertionError(f"Prometheus never had {query}")


def test_metrics_can_be_kept_for_users_with_a_tag(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[metrics]\nlocal = false\n")
    with live_node(tmp_path / "data", config=config) as node:
        url, admin = node.http_url, ("guest", "guest")
        assert httpx.get(f"{url}/metrics").status_code == 401
        for name, tags in (("eye", ["monitoring"]), ("nobody", [])):
            body = {"password": "secret-of-it", "tags": tags}
            made = httpx.put(f"{url}/v1/users/{name}", json=body, auth=admin)
            assert made.status_code == 201
        assert httpx.get(f"{url}/metrics", auth=("nobody", "secret-of-it")).status_code == 403
        assert httpx.get(f"{url}/metrics", auth=("eye", "secret-of-it")).status_code == 200
        assert httpx.get(f"{url}/v1/log-level", auth=("eye", "secret-of-it")).status_code == 403


def test_publishers_are_slowed_and_everything_arrives(tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text("[limits]\nmemory_slow_bytes = 0\n")
    with live_node(tmp_path / "data", config=config) as node:
        run_script(node)
        lines = metrics(node).splitlines()
        assert "braid_pressure_level 1.0" in lines
        slowed = next(line for line in lines if line.startswith("braid_publishers_slowed_total"))
        assert float(slowed.rsplit(" ", 1)[1]) > 0
        assert node.stop() == 0
        assert not node.complaints
        assert [line for line in node.lines if "pressure changed  pressure=slow" in line]
