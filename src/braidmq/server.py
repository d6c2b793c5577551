"""The composition root: builds a node from its configuration, runs it, takes it down in order."""

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import uvicorn
import uvloop

from braidmq import logs
from braidmq.alerts.sending import Alerts
from braidmq.api.app import App
from braidmq.api.assembly import make_api
from braidmq.api.http_timeouts import TimeoutProtocol
from braidmq.api.resources.health import Health
from braidmq.api.stream_protocol import ListenerProtocol
from braidmq.config import Config, flag_of
from braidmq.engine.engine import Engine
from braidmq.gateways.amqp.listener import AmqpGateway
from braidmq.gateways.mqtt.listener import MqttGateway
from braidmq.metrics.collector import Metrics
from braidmq.model.clock import Clock, SystemClock
from braidmq.model.errors import SetupError, StorageError
from braidmq.model.limits import MIB
from braidmq.net.admission import BACKLOG_CONNECTIONS
from braidmq.net.web_origins import WebCallers
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import AccountChange, Accounts, PermissionChanged, UserDeleted
from braidmq.security.logins import Logins
from braidmq.security.tokens import Tokens
from braidmq.storage.disk import RealDisk

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 75
"""How long HTTP connections stay without a request. Longer than most clients keep them: when both
let go at the same time, as httpx and uvicorn do after 5 s, a request may be lost."""

PROGRESS_EVERY_S = 1.0
"""A recovery that takes no longer than this says nothing before it is done."""

OPEN_WARNING = (
    "WARNING --dev: ANYONE who reaches this node may do ANYTHING: passwords and permissions are"
    " not checked. Never in production"
)


class Listener(Protocol):
    """One open port. ``start`` returns once it accepts; ``stop`` once it has let go, which takes
    no longer than ``deadline_s``."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    async def start(self) -> None: ...
    async def stop(self, deadline_s: float) -> None: ...


class Node:
    """One broker: a recovered store, its accounts, and the listeners in front of them."""

    def __init__(self, config: Config, engine: Engine, clock: Clock) -> None:
        self._config = config
        self._engine = engine
        self._store = engine.store
        self._clock = clock
        self.accounts = Accounts(engine.store, dev=config.node.dev)
        engine.references.enforce(self.accounts.allows)
        self.accounts.watch(self._on_account_change)
        self.logins = Logins(self.accounts)
        self.tokens = Tokens(engine.store, self.accounts)
        self._listening = False

    @classmethod
    def open(cls, config: Config) -> "Node":
        """Lock the data directory and recover what it holds. Nothing listens yet."""
        disk = _open_disk(Path(config.node.data_dir))
        clock = SystemClock()
        try:
            engine = Engine.open(
                disk, clock.now_ms(), config.storage, config.limits, RecoveryProgress()
            )
            return cls(config, engine, clock)
        except OSError as error:
            raise StorageError(f"recovery could not read or write {disk.root}: {error}") from error

    def _build_listeners(self, node_loop: NodeLoop, alerts: Alerts) -> list[Listener]:
        at = self._config.listeners
        config = self._config
        amqp = AmqpGateway(
            node_loop, self.accounts, self.logins, config.amqp, config.limits.unconfirmed
        )
        health = Health(self._store.failure, self.unready, lambda: len(self._store.quarantined()))
        mqtt = MqttGateway(node_loop, self.accounts, self.logins, config.mqtt)
        metrics = Metrics(
            self._engine,
            {"amqp": amqp, "mqtt": mqtt},
            config.metrics,
            lambda: node_loop.pipelines.list(None, node_loop.now_ms()),
            alerts.counts,
            self.accounts.failed_logins.counts,
        )
        data_dir = Path(config.node.data_dir).resolve()
        web = WebCallers(at.host, config.http.hosts, config.http.origins)
        http = make_api(
            node_loop, self.accounts, self.logins, self.tokens, health, metrics, data_dir, web
        )
        every: list[tuple[int, Listener]] = [
            (at.amqp_port, GatewayListener("amqp", at.host, at.amqp_port, amqp.start, amqp.stop)),
            (at.mqtt_port, GatewayListener("mqtt", at.host, at.mqtt_port, mqtt.listen, mqtt.stop)),
            (
                at.ws_port,
                GatewayListener("ws", at.host, at.ws_port, mqtt.listen_websocket, mqtt.stop),
            ),
            (at.http_port, HttpListener(at.host, at.http_port, http)),
        ]
        return [listener for port, listener in every if port]

    def _on_account_change(self, change: AccountChange) -> None:
        """What names other objects holds while whoever set it has the right to them."""
        references = self._engine.references
        if isinstance(change, PermissionChanged):
            references.recheck(change.user, change.namespace)
        elif isinstance(change, UserDeleted):
            references.forget_user(change.name)

    def unready(self) -> str | None:
        """Why no traffic should be sent here, or ``None``."""
        error = self._store.failure()
        if error is not None:
            return str(error)
        return None if self._listening else "listeners are starting or stopping"

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGHUP; another one does not wait for the first."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # it is under nohup
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, _on_signal, number, stop)
        self._say_recovered()
        if self._config.node.dev:
            say(OPEN_WARNING)
        node_loop = NodeLoop(self._engine, self._clock, loop)
        alerts = Alerts(self._config.alerts)
        node_loop.listeners.append(alerts.hear)
        started: list[Listener] = []
        try:
            for listener in self._build_listeners(node_loop, alerts):
                await listener.start()
                started.append(listener)
                say(f"{listener.name:<7} listening on {listener.url}")
            self._listening = True
            say("ready")
            await stop.wait()
        finally:
            self._listening = False
            # All at once: each has the whole time, and together they take no longer.
            deadline_s = self._config.node.shutdown_deadline_s
            over_s = loop.time() + deadline_s
            await asyncio.gather(*(each.stop(deadline_s) for each in started))
            # Last: consumers that let go may have left the last attempt of a message.
            await alerts.stop(max(over_s - loop.time(), 0))
            node_loop.stop()

    def failure(self) -> StorageError | None:
        return self._store.failure()

    def close(self) -> None:
        self.logins.close()
        self._store.close()

    def _say_recovered(self) -> None:
        found = self._store.recovery
        for note in found.notes:
            say(f"storage {note}")
        say(
            f"storage recovered {found.records} records in {found.partitions} partitions"
            f" from {self._config.node.data_dir} ({found.elapsed_ms:.0f} ms)"
        )


class RecoveryProgress:
    """Says how far recovery is, for whoever waits for the node: nothing listens before its end."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._said_s = now_s()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._now_s() - self._said_s < PROGRESS_EVERY_S:
            return
        self._said_s = self._now_s()
        if what.startswith("bytes "):
            amount = f"{done // MIB} of {total // MIB} MiB {what.removeprefix('bytes ')}"
        else:
            amount = f"{done} of {total} {what}"
        say(f"storage recovering: {amount}, {100 * done // max(total, 1)} %")


def _on_signal(number: signal.Signals, stop: asyncio.Event) -> None:
    if stop.is_set():
        if number is signal.SIGHUP:
            return  # a terminal that is closed says so twice, by its shell too
        # What was confirmed is on disk already; whoever asks twice does not want to wait.
        say("stopped immediately")
        os._exit(128 + number)
    logger.info("stopping", extra={"signal": number.name})
    stop.set()


def serve(config: Config) -> None:
    """Run a node in this process until it is told to stop.

    Recovery comes before the loop: there is nothing to serve yet, and Ctrl-C ends it at once.
    That is safe, because recovering again is what a crash would need too.
    """
    logs.configure(config.log)
    _allow_many_files()
    with closing(Node.open(config)) as node:
        # What start-up made is there to stay: collecting garbage need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        # A commit that is done waits for the loop to let go of the interpreter: at most this long.
        sys.setswitchinterval(0.0005)
        uvloop.run(node.run())
    if (failure := node.failure()) is not None:
        raise failure  # a supervisor must learn that this was no ordinary stop
    say("stopped")


def _allow_many_files() -> None:
    """A connection is a file, and the soft limit of most systems is 1024 of them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def say(line: str) -> None:
    # Flushed: scripts and tests wait for these lines through a pipe, and some read no further. A
    # node does not end because nobody can be told.
    with suppress(OSError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    if logs.is_json():
        # Machines read the log, and want all of it there.
        logger.info(line)


def _open_disk(root: Path) -> RealDisk:
    disk = RealDisk(root)
    try:
        # Through the disk, not Path.mkdir: it also syncs the names of the parents it makes.
        disk.make_directory("")
    except OSError as error:
        raise SetupError(
            f"cannot use {root} as the data directory: {error.strerror}",
            remedy="Give another --data-dir, or make that one writable",
        ) from error
    return disk


def bind(host: str, port: int, key: str) -> socket.socket:
    """A listening socket, or an error that names the flag to change."""
    sock: socket.socket | None = None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # With SO_REUSEADDR two sockets may bind one port; only listening makes it ours.
        sock.listen(BACKLOG_CONNECTIONS)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise _cannot_listen(host, port, key, error) from error
    sock.setblocking(False)
    return sock


def _cannot_listen(host: str, port: int, key: str, error: OSError) -> SetupError:
    wrong_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
    flag = "--host" if wrong_host else flag_of(key)
    off = "" if wrong_host else ", or 0 to turn this listener off"
    return SetupError(
        f"cannot listen on {host}:{port}: {error.strerror}", remedy=f"Give another {flag}{off}"
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Uvicorn takes a WebSocket that is refused with an answer for a mistake of the app: a line for
    every stranger who tries."""
    return "without completing handshake" not in record.getMessage()


logging.getLogger("uvicorn.error").addFilter(_is_news)


class _Uvicorn(uvicorn.Server):
    """Uvicorn as a guest in the node's loop: the node handles signals, and learns when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class GatewayListener:
    """A port whose connections a gateway takes itself. Its name is also the scheme of its URL."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        listen: Callable[[socket.socket], Awaitable[None]],
        stop: Callable[[float], Awaitable[None]],
    ) -> None:
        self.name = name
        self._host = host
        self._port = port
        self._listen = listen
        self._stop = stop

    @property
    def url(self) -> str:
        return f"{self.name}://{at_host(self._host)}:{self._port}"

    async def start(self) -> None:
        await self._listen(bind(self._host, self._port, f"listeners.{self.name}_port"))

    async def stop(self, deadline_s: float) -> None:
        await self._stop(deadline_s)


def at_host(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


class HttpListener:
    name = "http"

    def __init__(self, host: str, port: int, app: App) -> None:
        self._host = host
        self._port = port
        self._app = app
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{at_host(self._host)}:{self._port}"

    async def start(self) -> None:
        sock = bind(self._host, self._port, "listeners.http_port")
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            lifespan="off",
            http=TimeoutProtocol,
            ws=ListenerProtocol,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=BACKLOG_CONNECTIONS,
        )
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({up, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
            await self._serving  # it ended before it was up: raise what ended it

    async def stop(self, deadline_s: float) -> None:
        assert self._server is not None, "stopped before it was started"
        assert self._serving is not None
        self._server.config.timeout_graceful_shutdown = deadline_s  # type: ignore[assignment]
        self._server.should_exit = True
        self._app.stop()
        await self._serving
