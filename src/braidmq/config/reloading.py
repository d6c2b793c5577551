"""Reading the configuration again while the node runs.

file, environment, flags ─ load ─► wanted    wrong: said with its line, and nothing changes
wanted and running ─ compare ─► what can change now, and what needs a restart (live.py)
what can change ─ prepare ─► files are read   wrong: as above
                ─ use ─► all parts take theirs in one step of the loop
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from braidmq import logs
from braidmq.api.resources.configuration import Reloaded, SettingChange
from braidmq.config.live import ENTRIES, LISTENER, RESTART
from braidmq.config.loading import BadSettings
from braidmq.config.reference import as_value
from braidmq.config.settings import SECTIONS, Config, Key, all_keys
from braidmq.model.errors import BraidError
from braidmq.net.settings import ListenerEntry

logger = logging.getLogger(__name__)

Prepare = Callable[[Config], Callable[[], None]]
"""A part of a node looks at what it is to run with, and reads what that names. Raises BadSetting.
What comes back has it used, which can't fail."""

Table = TypeVar("Table", bound=msgspec.Struct)

SECRET: Final = re.compile(r"(^|_)(password|secret|token)$")
CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@\"]+(?=@)")
MASKED: Final = "***"


def taking(section: str, replace: Callable[[Table], None]) -> Prepare:
    """For a part that takes the table of a section as it is."""
    return lambda config: partial(replace, getattr(config, section))


class Reloading:
    """Of one node. ``parts`` is filled while that is built."""

    def __init__(self, running: Config, load: Callable[[], Config]) -> None:
        """``load`` reads what the node was started with again. Raises BadSetting."""
        self.running = running
        self.parts: dict[str, Prepare] = {}
        self.reloads = self.failures = 0
        self.reloaded_s = 0.0
        """When that succeeded last, since 1970."""
        self._load = load
        self._lock = asyncio.Lock()

    async def reload(self) -> Reloaded:
        """Raises BadSetting, or StorageFailed, and then nothing has changed."""
        async with self._lock:
            try:
                # Files may be slow, and there are connections to serve.
                wanted = await asyncio.to_thread(self._load)
                found = self._use(wanted)
            except BraidError as error:
                self.failures += 1
                for mistake in error.mistakes if isinstance(error, BadSettings) else [str(error)]:
                    logger.error(
                        "configuration not reloaded: nothing changed", extra={"reason": mistake}
                    )
                raise
            self.reloads += 1
            self.reloaded_s = time.time()
        self._say(found)
        return found

    def _use(self, wanted: Config) -> Reloaded:
        before = _with_level(self.running, logs.level())
        now = _taken(before, wanted)
        uses = [prepare(now) for prepare in self.parts.values()]
        # From here on nothing can fail: all parts change, or none has.
        for use in uses:
            use()
        self.running = now
        return Reloaded(list(_differences(before, now)), list(_differences(now, wanted)))

    def _say(self, found: Reloaded) -> None:
        for each in found.changed:
            logger.info("setting changed", extra=msgspec.structs.asdict(each))
        for each in found.restart:
            why = RESTART.get(each.key, LISTENER)
            logger.warning(
                "setting needs a restart", extra=msgspec.structs.asdict(each) | {"reason": why}
            )
        logger.info(
            "configuration reloaded",
            extra={"changed": len(found.changed), "restart": len(found.restart)},
        )


def _with_level(config: Config, level: logs.Level) -> Config:
    """It can be changed by other ways, and a reload has it be as the configuration says."""
    return msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, level=level))


def _taken(running: Config, wanted: Config) -> Config:
    """What is wanted, as far as it takes no restart."""
    made: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key in all_keys():
        before, after = _value(running, key), _value(wanted, key)
        if key.dotted == ENTRIES:
            after = _entries_taken(before, after)
        elif key.dotted in RESTART:
            after = before
        made[key.section][key.name] = after
    sections = {section: SECTIONS[section](**values) for section, values in made.items()}
    return Config(**sections)  # type: ignore[arg-type]


def _entries_taken(
    running: tuple[ListenerEntry, ...], wanted: tuple[ListenerEntry, ...]
) -> tuple[ListenerEntry, ...]:
    """The listeners there are, those that speak TLS with what is wanted of it."""
    tls = {each.name: each.tls for each in wanted}
    return tuple(
        msgspec.structs.replace(each, tls=tls.get(each.name) or each.tls) if each.tls else each
        for each in running
    )


def _value(config: Config, key: Key) -> Any:
    return getattr(getattr(config, key.section), key.name)


def _differences(before: Config, after: Config) -> Iterator[SettingChange]:
    for key in all_keys():
        old, new = _value(before, key), _value(after, key)
        if old != new:
            yield SettingChange(key.dotted, masked(key.name, old), masked(key.name, new))


def masked(name: str, value: object) -> str:
    """As TOML has it, without what nobody should read in a log."""
    if SECRET.search(name) and value:
        return MASKED
    return CREDENTIALS.sub(MASKED, as_value(value))
