"""The composition root: builds a node from its configuration, runs it, takes it down in order."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import uvloop

from braidmq import __version__, logs
from braidmq.alerts.sending import Alerts
from braidmq.api.assembly import make_api
from braidmq.api.listener import HttpListener
from braidmq.api.resources.health import Health
from braidmq.audit.topic import AuditTopic
from braidmq.audit.trail import AuditTrail
from braidmq.config import Config
from braidmq.config.reloading import Reloading, taking
from braidmq.engine.engine import Engine
from braidmq.gateways.amqp.listener import AmqpGateway
from braidmq.gateways.mqtt.listener import MqttGateway
from braidmq.gateways.mqtt.lists import MqttLists
from braidmq.logs import log_change, testify
from braidmq.metrics.collector import Metrics
from braidmq.model.clock import Clock, SystemClock
from braidmq.model.errors import BraidError, SetupError, StorageError
from braidmq.model.limits import MIB
from braidmq.net.exposure import is_exposed, warnings_of
from braidmq.net.listeners import Listener
from braidmq.net.settings import ListenerSpec
from braidmq.net.tls_certificates import Certificates
from braidmq.net.tls_handshakes import TlsPort, refuse_tls
from braidmq.net.web_origins import WebCallers
from braidmq.runtime.namespace_limits import NamespaceQuotas
from braidmq.runtime.namespaces import NamespaceContents
from braidmq.runtime.node_loop import NodeLoop
from braidmq.runtime.rate_settings import RateSettings
from braidmq.security.accounts import AccountChange, Accounts, PermissionChanged, UserDeleted
from braidmq.security.logins import Logins
from braidmq.security.token_logins import TokenLogins
from braidmq.security.tokens import Tokens
from braidmq.storage.directory import AUDIT_DIRECTORY
from braidmq.storage.disk import RealDisk

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 1.0
"""A recovery that takes no longer than this says nothing before it is done."""

OPEN_WARNING = (
    "WARNING --dev: ANYONE who reaches this node may do ANYTHING: passwords and permissions are"
    " not checked. Never in production"
)


class Node:
    """One broker: a recovered store, its accounts, and the listeners in front of them."""

    def __init__(
        self,
        config: Config,
        engine: Engine,
        clock: Clock,
        load: Callable[[], Config] | None = None,
        audit_dir: Path | None = None,
    ) -> None:
        """``load`` reads the configuration again. Without ``audit_dir`` there is no audit log."""
        self._config = config
        self.reloading = Reloading(config, load or (lambda: config))
        self._engine = engine
        self._store = engine.store
        self._clock = clock
        self._exposed = [each for each in config.listeners.specs() if is_exposed(each)]
        self.accounts = Accounts(
            engine.store,
            dev=config.node.dev,
            with_guest=config.node.dev or not self._exposed,
        )
        engine.references.enforce(self.accounts.allows)
        engine.schedules.enforce(self.accounts.allows)
        self.accounts.watch(self._on_account_change)
        self.tokens = Tokens(engine.store, self.accounts)
        self.token_logins = TokenLogins(self.accounts, self.tokens, clock, config.jwt)
        self.logins = Logins(self.accounts, self.token_logins)
        self.audit = AuditTrail(audit_dir, config.audit, clock.wall_ms)
        self._listeners: Sequence[Listener] = ()
        self._listening = False

    @classmethod
    def open(cls, config: Config, load: Callable[[], Config] | None = None) -> "Node":
        """Lock the data directory and recover what it holds. Nothing listens yet."""
        disk = _open_disk(Path(config.node.data_dir))
        clock = SystemClock()
        try:
            engine = Engine.open(
                disk,
                clock.now_ms(),
                config.storage,
                config.limits,
                RecoveryProgress(),
                upkeep=config.retention,
            )
            audit_dir = Path(config.audit.directory or disk.root / AUDIT_DIRECTORY)
            return cls(config, engine, clock, load, audit_dir)
        except OSError as error:
            raise StorageError(f"recovery could not read or write {disk.root}: {error}") from error

    def build(self, node_loop: NodeLoop, alerts: Alerts) -> "Service":
        """Everything that clients reach, not yet open to them."""
        config = self._config
        specs = config.listeners.specs()
        certificates = Certificates(node_loop.loop, specs, config.tls)
        listeners: list[Listener] = []
        amqp = AmqpGateway(
            node_loop, self.accounts, self.logins, config.amqp, config.limits.unconfirmed
        )
        health = Health(self._store.failure, self.unready, lambda: len(self._store.quarantined()))
        mqtt = MqttGateway(node_loop, self.accounts, self.logins, config.mqtt)
        metrics = Metrics(
            self._engine,
            {"amqp": amqp, "mqtt": mqtt},
            node_loop.now_ms,
            config.metrics,
            lambda: node_loop.pipelines.list(None, node_loop.now_ms()),
            alerts.counts,
            self.accounts.failed_logins.counts,
            listeners,
            certificates,
            self.reloading,
            self.token_logins,
            self.audit,
            node_loop.rates.counts,
            lambda: self.accounts.failed_logins.held_back,
        )
        data_dir = Path(config.node.data_dir).resolve()
        web = WebCallers(
            [each.host for each in specs if each.protocol == "http"],
            config.http.hosts,
            config.http.origins,
        )
        NamespaceContents(node_loop, self.accounts)
        NamespaceQuotas(node_loop, self.accounts).restore()
        http = make_api(
            node_loop,
            self.accounts,
            self.logins,
            self.tokens,
            health,
            metrics,
            data_dir,
            web,
            listeners,
            config.http,
            MqttLists(mqtt),
            self.reloading,
            self.audit,
            self.warnings_of,
        )

        def rates(settings: RateSettings) -> None:
            node_loop.rates.replace(settings)
            self.accounts.failed_logins.replace(
                settings.failed_logins, settings.failed_login_wait_max_s, settings.limit_loopback
            )

        rates(config.rates)

        def ready(_: Config) -> Callable[[], None]:
            """What follows is journaled in part. Raises StorageFailed."""
            node_loop.engine()
            return lambda: None  # what is left of the node asks for it when it stops

        self.reloading.parts |= {
            "node": ready,
            "certificates": lambda now: certificates.prepare(now.listeners.specs(), now.tls),
            "pressure": taking("limits", node_loop.replace_marks),
            "retention": taking("retention", node_loop.replace_upkeep),
            "amqp": lambda now: partial(amqp.replace, now.amqp, now.limits.unconfirmed),
            "mqtt": taking("mqtt", mqtt.replace),
            "http": taking("http", http.replace),
            "log": taking("log", logs.replace),
            "metrics": taking("metrics", metrics.replace),
            "alerts": taking("alerts", alerts.replace),
            "usage": taking("usage", node_loop.usage.replace),
            "jwt": taking("jwt", self.token_logins.replace),
            "audit": taking("audit", self.audit.replace),
            "rates": taking("rates", rates),
        }
        make: dict[str, Callable[[ListenerSpec, TlsPort | None], Listener]] = {
            "amqp": amqp.listener,
            "mqtt": mqtt.listener,
            "ws": mqtt.websocket_listener,
            "http": partial(HttpListener, app=http, poller=node_loop.poller),
        }
        node_loop.poller.on_tls = refuse_tls
        listeners += [make[each.protocol](each, certificates.port(each)) for each in specs]
        return Service(listeners, [amqp, mqtt], certificates)

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
        if self._listening:
            return None
        closed = ", ".join(each.spec.name for each in self._listeners if not each.is_open)
        return "listeners are starting or stopping" + (f": {closed}" if closed else "")

    def assemble(self, loop: asyncio.AbstractEventLoop) -> "Assembled":
        """Put the gateways in front of what was recovered. Before the loop runs: what they keep in
        the store, as MQTT's sessions, is back when the first listener starts, whichever it is."""
        self._say_recovered()
        if self._config.node.dev:
            say(OPEN_WARNING)
        self._say_exposed()
        node_loop = NodeLoop(self._engine, self._clock, loop, usage=self._config.usage)
        try:
            alerts = Alerts(self._config.alerts)
            node_loop.listeners.append(alerts.hear)
            return Assembled(node_loop, alerts, self.build(node_loop, alerts))
        except BaseException:
            node_loop.stop()
            raise

    async def run(self, assembled: "Assembled") -> None:
        """Serve until SIGTERM or SIGINT; another one does not wait for the first. SIGHUP has what
        can change meanwhile read again."""
        node_loop, alerts, service = assembled
        if self._config.audit.enabled and self._config.audit.topic:
            topic = AuditTopic(node_loop, self.accounts, self._config.audit, self.audit)
        else:
            topic = None
        self.audit.start()
        testify("administration", "start", {"protocol": "node", "version": __version__})
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _on_signal, number, stop)
        reloads = set[asyncio.Task[None]]()
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup, reloads)
        self._listeners = service.listeners
        self.token_logins.start(loop)
        try:
            async for listener in service.start():
                say(f"{listener.spec.name:<7} listening on {listener.spec.url}")
            self._listening = True
            say("ready")
            await stop.wait()
        finally:
            self._listening = False
            self.token_logins.stop()
            deadline_s = self.reloading.running.node.shutdown_deadline_s
            over_s = loop.time() + deadline_s
            await service.stop(deadline_s)
            # Last: consumers that let go may have left the last attempt of a message.
            await alerts.stop(max(over_s - loop.time(), 0))
            testify("administration", "stop", {"protocol": "node"})
            self.audit.stop()
            if topic is not None:
                topic.publish()
            node_loop.stop()

    def _on_hangup(self, reloads: set[asyncio.Task[None]]) -> None:
        logger.info("reloading", extra={"signal": signal.SIGHUP.name})
        reload = asyncio.get_running_loop().create_task(self._reload(), context=Context())
        reloads.add(reload)  # a task that nobody knows may be collected
        reload.add_done_callback(reloads.discard)

    async def _reload(self) -> None:
        with suppress(BraidError):  # it is in the log
            found = await self.reloading.reload()
            log_change(
                "signal",
                "read the configuration again",
                "",
                kind="administration",
                settings=[each.key for each in found.changed],
                after_restart=[each.key for each in found.restart],
            )

    def _say_exposed(self) -> None:
        for each in self._exposed:
            for warning in self.warnings_of(each):
                logger.warning(
                    "a listener is open to the network",
                    extra={"listener": each.name, "why": warning},
                )
        if not self._exposed or self._config.node.dev:
            return
        if not self.accounts.users():
            say(
                "WARNING nobody can log in: this node listens beyond this machine, and so it begins"
                " without the user guest, whose password everybody knows. Stop it, then make an"
                f" administrator: braid init --data-dir {self._config.node.data_dir}"
            )
        elif self.accounts.has_known_password():
            logger.warning(
                "user guest has the password that everybody knows: who speaks through a proxy on"
                " this machine may log in with it. Change it with `braid users password guest`, or"
                " delete the user"
            )

    def warnings_of(self, spec: ListenerSpec) -> Iterator[str]:
        """What is careless about a listener, as it is configured now."""
        now = self.reloading.running
        return warnings_of(spec, now.mqtt.allowed_origins, now.http.origins, now.http.hosts)

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
            f"storage replayed {_grouped(found.records)} journal records,"
            f" {_grouped(found.partitions)} partitions, {_grouped(found.messages)} messages"
            f" in {self._config.node.data_dir} ({found.elapsed_ms:.0f} ms)"
        )


class Assembled(NamedTuple):
    """A node that is ready to listen."""

    node_loop: NodeLoop
    alerts: Alerts
    service: "Service"


class Gateway(Protocol):
    async def stop(self, deadline_s: float) -> None:
        """Let go of all connections, which takes no longer than ``deadline_s``."""


class Service:
    """The listeners of a node and the gateways behind them."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        gateways: Sequence[Gateway],
        certificates: Certificates,
    ) -> None:
        self.listeners = listeners
        self.certificates = certificates
        self._gateways = gateways
        self._started: list[Listener] = []

    async def start(self) -> AsyncIterator[Listener]:
        """Open them one after the other; yields each that accepts connections."""
        for listener in self.listeners:
            await listener.start()
            self._started.append(listener)
            yield listener
        self.certificates.start()

    async def stop(self, deadline_s: float) -> None:
        """All at once: each has the whole time, and together they take no longer. Listeners come
        first, so that nobody is let in by one gateway while another says goodbye."""
        self.certificates.stop()
        await asyncio.gather(*(each.stop(deadline_s) for each in (*self._started, *self._gateways)))


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
        # What was confirmed is on disk already; whoever asks twice does not want to wait.
        say("stopped immediately")
        os._exit(128 + number)
    logger.info("stopping", extra={"signal": number.name})
    stop.set()


def serve(load: Callable[[], Config]) -> None:
    """Run a node in this process until it is told to stop. ``load`` reads its configuration, now
    and whenever it is to be read again.

    Recovery comes before the loop: there is nothing to serve yet, and Ctrl-C ends it at once.
    That is safe, because recovering again is what a crash would need too.
    """
    config = load()
    logs.configure(config.log)
    _allow_many_files()
    with (
        closing(Node.open(config, load)) as node,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        assembled = node.assemble(runner.get_loop())
        # What start-up made is there to stay: collecting garbage need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        # A commit that is done waits for the loop to let go of the interpreter: at most this long.
        sys.setswitchinterval(0.0005)
        runner.run(node.run(assembled))
    if (failure := node.failure()) is not None:
        raise failure  # a supervisor must learn that this was no ordinary stop
    say("stopped")


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


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
