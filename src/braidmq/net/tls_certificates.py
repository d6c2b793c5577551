"""The certificates of a node: read at its start, and again when they change.

All listeners change together or none does: what can't be used is said, and the former stay. Who is
connected keeps the certificate it was shown; who comes next gets the new one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from braidmq.net.settings import ListenerSpec
from braidmq.net.tls_contexts import (
    BadTls,
    Certificate,
    TlsContext,
    context_of,
    date_of,
    files_of,
    fingerprint,
)
from braidmq.net.tls_handshakes import Handshakes, TlsPort
from braidmq.net.tls_settings import TlsSettings

logger = logging.getLogger(__name__)

DAY_S = 24 * 3600
WARN_S = 14 * DAY_S
"""Let's Encrypt's are renewed 30 days before their end: by now that has failed for two weeks."""

WARN_EVERY_S = DAY_S


class Certificates:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        specs: Iterable[ListenerSpec],
        settings: TlsSettings,
    ) -> None:
        """Raises BadTls."""
        self.handshakes = Handshakes(loop, settings.handshake_timeout_s)
        self.reloads = self.reload_failures = 0
        self.reloaded_s = 0.0
        """When that succeeded last, since 1970."""
        self._loop = loop
        self._settings = settings
        self._specs = _with_tls(specs)
        self._ports = {
            name: TlsPort(self.handshakes, name, context)
            for name, context in _made(self._specs, settings).items()
        }
        self._seen = _look(self._specs, settings)
        self._warned_s = -float(WARN_EVERY_S)
        self._timer: asyncio.TimerHandle | None = None

    def port(self, spec: ListenerSpec) -> TlsPort | None:
        return self._ports.get(spec.name)

    def in_use(self) -> list[tuple[str, Certificate]]:
        """With the listener that shows each."""
        return [
            (name, each) for name, port in self._ports.items() for each in port.current.certificates
        ]

    def start(self) -> None:
        """Look at the files from time to time."""
        if self._ports and self._timer is None:
            self._warn()
            self._arm()

    def stop(self) -> None:
        self.handshakes.close()
        if self._timer is not None:
            self._timer.cancel()

    def reload(self) -> None:
        """Read all files again, for connections that come from now on. Raises BadTls, and then
        nothing has changed."""
        self._seen = _look(self._specs, self._settings)
        try:
            use = self.prepare(self._specs, self._settings)
        except BadTls as error:
            self.reload_failures += 1
            logger.error(
                "certificates not reloaded: the former stay in use", extra={"reason": str(error)}
            )
            raise
        use()

    def prepare(self, specs: Iterable[ListenerSpec], settings: TlsSettings) -> Callable[[], None]:
        """Read all files, as these say, for the listeners there are; what comes back has them used
        by connections that come from then on. Raises BadTls."""
        specs = _with_tls(specs)
        return partial(self._use, specs, settings, _look(specs, settings), _made(specs, settings))

    def _use(
        self,
        specs: list[ListenerSpec],
        settings: TlsSettings,
        seen: dict[str, tuple[int, ...]],
        made: dict[str, TlsContext],
    ) -> None:
        self._specs, self._settings, self._seen = specs, settings, seen
        self.handshakes.replace(settings.handshake_timeout_s)
        if self._timer is not None:
            self._timer.cancel()
            self._arm()
        before = {(name, each.serial) for name, each in self.in_use()}
        for name, context in made.items():
            self._ports[name].current = context
        self.reloads += 1
        self.reloaded_s = time.time()
        new = [(name, each) for name, each in self.in_use() if (name, each.serial) not in before]
        for name, each in new:
            logger.info("new certificate", extra={"listener": name, **facts_of(each)})
        if made:
            logger.info("certificates reloaded", extra={"listeners": len(made), "new": len(new)})

    def _arm(self) -> None:
        every_s = self._settings.watch_s or WARN_EVERY_S
        self._timer = self._loop.call_later(every_s, self._watch)

    def _watch(self) -> None:
        self._arm()
        self._warn()
        if self._settings.watch_s and _look(self._specs, self._settings) != self._seen:
            # It is in the log; a file that is not complete yet will change again.
            with suppress(BadTls):
                self.reload()

    def _warn(self) -> None:
        """Of what ends soon, once a day."""
        now_s = time.time()
        if now_s < self._warned_s + WARN_EVERY_S:
            return
        self._warned_s = now_s
        for name, each in self.in_use():
            if each.not_after_s - now_s < WARN_S:
                logger.warning(
                    "certificate expires soon: renew it",
                    extra={"listener": name, **facts_of(each)},
                )


def _with_tls(specs: Iterable[ListenerSpec]) -> list[ListenerSpec]:
    return [each for each in specs if each.tls is not None]


def _made(specs: Iterable[ListenerSpec], settings: TlsSettings) -> dict[str, TlsContext]:
    found = {spec.name: context_of(spec, settings) for spec in specs}
    return {name: context for name, context in found.items() if context is not None}


def _look(specs: Iterable[ListenerSpec], settings: TlsSettings) -> dict[str, tuple[int, ...]]:
    files = (files_of(each.tls.over(settings)) for each in specs if each.tls)
    return fingerprint(sorted(set().union(*files)))


def facts_of(certificate: Certificate) -> dict[str, object]:
    return {
        "file": certificate.file,
        "subject": certificate.subject,
        "serial": certificate.serial,
        "expires": date_of(certificate.not_after_s),
    }
