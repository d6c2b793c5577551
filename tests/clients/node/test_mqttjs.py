"""mqtt.js on Node over TCP and WebSocket, and in a page in headless Chromium."""

import json
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from braidmq.testing.certificates import Authority
from braidmq.testing.live import LiveNode, free_ports, live_node

HERE = Path(__file__).parent
SCRIPT = HERE / "mqttjs_cases.js"
WAIT_S = 60
PAGE_S = 80
"""A browser has to start first."""
CASES = re.findall(r"^  async (\w+)\(", SCRIPT.read_text(), re.MULTILINE)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip

versions = pytest.mark.parametrize("version", [4, 5])


@versions
@pytest.mark.parametrize("transport", ["mqtt", "ws"])
@pytest.mark.usefixtures("node_packages")
def test_mqttjs(node: LiveNode, name: str, transport: str, version: int) -> None:
    port = node.ports["mqtt_port" if transport == "mqtt" else "ws_port"]
    url = f"{transport}://127.0.0.1:{port}"
    command = ["node", str(SCRIPT), url, name, str(version)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert json.loads(done.stdout or "{}") == dict.fromkeys(CASES, "ok"), done.stderr


class Pages(BaseHTTPRequestHandler):
    """The page with its scripts, and where it sends its results."""

    files: dict[str, Path]
    results: "queue.Queue[dict[str, str]]"

    def do_GET(self) -> None:
        path = self.files.get(self.path.partition("?")[0])
        self.send_response(200 if path else 404)
        kind = "text/html" if path and path.suffix == ".html" else "text/javascript"
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(path.read_bytes() if path else b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.results.put(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(files: dict[str, Path]) -> "Iterator[tuple[str, queue.Queue[dict[str, str]]]]":
    results: queue.Queue[dict[str, str]] = queue.Queue()
    handler = type("Handler", (Pages,), {"files": files, "results": results})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", results
        finally:
            server.shutdown()


@versions
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is needed: apt-get install chromium")
def test_mqttjs_in_a_page(
    node: LiveNode, name: str, version: int, node_packages: Path, tmp_path: Path
) -> None:
    files = page_files(node_packages)
    broker = f"ws://127.0.0.1:{node.ports['ws_port']}"
    assert in_a_page(files, tmp_path, broker, name, version) == dict.fromkeys(CASES, "ok")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is needed: apt-get install chromium")
def test_mqttjs_in_a_page_over_tls(name: str, node_packages: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.for_node()
    (port,) = free_ports(1)
    config = tmp_path / "braid.toml"
    config.write_text(
        f'[tls]\ncert = "{pair.cert}"\nkey = "{pair.key}"\n[listeners]\nwss_port = {port}\n'
        "amqps_port = 0\nmqtts_port = 0\nhttps_port = 0\n"
    )
    # The one certificate that is taken without its authority: a profile has no other way.
    trusted = f"--ignore-certificate-errors-spki-list={pair.key_hash}"
    with live_node(tmp_path / "data", config=config) as node:
        files, broker = page_files(node_packages), f"wss://localhost:{port}"
        found = in_a_page(files, tmp_path / "profile", broker, name, 5, trusted)
        assert found == dict.fromkeys(CASES, "ok")
        assert node.complaints == []


def page_files(node_packages: Path) -> dict[str, Path]:
    return {
        "/": HERE / "mqttjs_page.html",
        "/mqttjs_cases.js": SCRIPT,
        "/mqtt.min.js": node_packages / "mqtt" / "dist" / "mqtt.min.js",
    }


def in_a_page(
    files: dict[str, Path], profile: Path, broker: str, name: str, version: int, *flags: str
) -> dict[str, str]:
    assert CHROMIUM is not None
    with serving(files) as (address, results):
        page = f"{address}/?url={broker}&name={name}&version={version}"
        browser = subprocess.Popen(
            [CHROMIUM, *FLAGS, *flags, f"--user-data-dir={profile}", page],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return results.get(timeout=PAGE_S)
        finally:
            browser.kill()
            browser.wait()
