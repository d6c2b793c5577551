"""A real HTTP server that alerts are posted to, which may be slow, refuse, or redirect."""

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any

WAIT_S = 60


class Receiver(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int = 0, tls: SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.statuses: list[int] = []
        """What to answer with, one after the other; then 204."""
        self.location = ""
        self.answers = threading.Event()
        """Cleared: requests get no answer until it is set."""
        self.answers.set()
        self.arrived: queue.Queue[tuple[dict[str, str], Any]] = queue.Queue()
        self.busy = 0
        self.busy_max = 0
        self._scheme = "http"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
            self._scheme = "https"

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self.server_port}/alerts?key=secret-of-the-hook"

    def next(self) -> Any:
        """The document that comes next."""
        return self.arrived.get(timeout=WAIT_S)[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or did not like our certificate."""


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        server = self.server
        server.busy += 1
        server.busy_max = max(server.busy_max, server.busy)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server.arrived.put(({**self.headers, "path": self.path}, json.loads(body)))
        server.answers.wait(WAIT_S)
        server.busy -= 1
        self.send_response(server.statuses.pop(0) if server.statuses else 204)
        if server.location:
            self.send_header("Location", server.location)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def receiving(port: int = 0, tls: SSLContext | None = None) -> Iterator[Receiver]:
    with Receiver(port, tls) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.answers.set()
            server.shutdown()
            thread.join()
