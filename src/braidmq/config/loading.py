"""Reading the configuration: flags win over the environment, that over the file, that over
defaults.

The file is TOML, one table a section; ``[listeners] http_port`` is ``BRAID_LISTENERS_HTTP_PORT``
in the environment. A key or variable nobody knows is refused rather than ignored: a misspelt limit
that silently keeps its default is found out in production. All mistakes are reported together, each
with the line, variable or flag it stands in.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from braidmq.config.settings import (
    SECTIONS,
    VARIABLE_PREFIX,
    Config,
    all_keys,
    flag_of,
    keys_in,
    keys_of,
)
from braidmq.model.errors import BadSetting
from braidmq.net.settings import (
    ListenerEntry,
    ListenerSettings,
    mistakes_in,
    with_default_ports,
)

NOT_KEYS = frozenset({"BRAID_CONFIG", "BRAID_URL", "BRAID_USER", "BRAID_PASSWORD"})
"""Variables of the command line: the file itself, and how its commands reach a node."""

PLACE = re.compile(r" - at `\$((?:\[\d+\]|\.\w+)+)`$")
STEP = re.compile(r"\[(\d+)\]|\.(\w+)")
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
"""How msgspec says where a value stands, and that nobody knows its name."""

LINE = re.compile(r"\(at line (\d+), column \d+\)")


class BadSettings(BadSetting):
    """Everything that is wrong with a configuration."""

    def __init__(self, mistakes: list[str], causes: Sequence[BadSetting] = ()) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes
        self.causes = causes
        """Those that have a type of their own."""


Origin = Callable[..., str]
"""Where a value was given, or what the way leads to inside of it."""


class Given(NamedTuple):
    """A value and where it was given, which is looked up only if there is something to say."""

    value: Any
    origin: Origin


class Loader:
    def __init__(self) -> None:
        self.mistakes: list[str] = []
        self.causes: list[BadSetting] = []
        self._given: dict[str, Given] = {}
        self._types = {key.dotted: key.type for key in all_keys()}

    def add_file(self, path: Path) -> None:
        text = _read(path)
        try:
            tree = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = LINE.search(str(error))
            line = int(found[1]) if found else max(text.count("\n"), 1)
            raise BadSetting(f"{path}:{line}: not valid TOML: {error}") from error
        lines = LineFinder(text)
        for section, table in tree.items():
            if section not in SECTIONS:
                where = f"{path}:{lines.of(section)}"
                self.mistakes.append(_unknown(where, "section", section, SECTIONS))
            elif not isinstance(table, dict):
                where = f"{path}:{lines.of(section)}"
                self.mistakes.append(f"{where}: {section}: expected a table, [{section}]")
            else:
                self._add_table(path, section, table, lines)

    def _add_table(
        self, path: Path, section: str, table: dict[str, Any], lines: "LineFinder"
    ) -> None:
        known = [key.dotted for key in keys_of(section)]
        for name, value in table.items():
            dotted = f"{section}.{name}"
            if dotted not in known:
                where = f"{path}:{lines.of(section, name)}"
                self.mistakes.append(_unknown(where, "key", dotted, known))
            else:
                self._give(dotted, value, partial(_in_file, path, lines, dotted))

    def add_environment(self, environment: Mapping[str, str]) -> None:
        known = {key.variable: key for key in all_keys()}
        for variable, text in sorted(environment.items()):
            if not variable.startswith(VARIABLE_PREFIX) or variable in NOT_KEYS:
                continue
            if variable not in known:
                self.mistakes.append(_unknown("environment", "variable", variable, known))
            elif known[variable].is_list:
                self._give_json(known[variable].dotted, text, variable)
            else:
                self._give(known[variable].dotted, text, partial(_named, variable), strict=False)

    def _give_json(self, dotted: str, text: str, variable: str) -> None:
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            self.mistakes.append(f"{variable}: expected a JSON array: {_lowered(str(error))}")
        else:
            self._give(dotted, value, partial(_named, variable))

    def add_flags(self, flags: Mapping[str, object]) -> None:
        """By dotted key, ``None`` where a flag was not given."""
        for dotted, value in flags.items():
            if value is not None:
                self._give(dotted, value, partial(_named, flag_of(dotted)))

    def _give(self, dotted: str, value: object, origin: Origin, *, strict: bool = True) -> None:
        try:
            converted = msgspec.convert(value, self._types[dotted], strict=strict)
        except msgspec.ValidationError as error:
            self.mistakes.append(_explained(str(error), origin))
        else:
            self._given[dotted] = Given(converted, origin)

    def finish(self) -> Config:
        """Raises BadSettings."""
        made: dict[str, msgspec.Struct] = {}
        for section, kind in SECTIONS.items():
            given = {
                key.name: self._given[key.dotted]
                for key in keys_of(section)
                if key.dotted in self._given
            }
            values = {name: each.value for name, each in given.items()}
            if kind is ListenerSettings:
                values = with_default_ports(values)
            try:
                made[section] = kind(**values)
            except ValueError as error:
                # Keys that contradict each other: the one given last decided it.
                origins = [each.origin for name, each in given.items() if name in str(error)]
                self.mistakes.append(f"{origins[-1]()}: {error}")
        self._check_listeners(cast(ListenerSettings, made["listeners"]))
        if self.mistakes:
            raise BadSettings(self.mistakes, self.causes)
        return Config(**made)  # type: ignore[arg-type]

    def _check_listeners(self, settings: ListenerSettings) -> None:
        given = {key.name for key in keys_of("listeners") if key.dotted in self._given}
        for mistake in mistakes_in(settings, given):
            key, *inside = mistake.at
            self.mistakes.append(f"{self._given[f'listeners.{key}'].origin(*inside)}: {mistake}")
            self.causes.append(mistake)


def load(
    path: Path | None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """What a node is to run with. ``environment`` is the process's own unless given."""
    loader = Loader()
    if path is not None:
        loader.add_file(path)
    loader.add_environment(os.environ if environment is None else environment)
    loader.add_flags(flags or {})
    return loader.finish()


class LineFinder:
    """Where in a TOML file a key stands.

    The parser does not say. But a file that is right is right up to every line that ends a
    statement, so the first such line up to which the key is there ends the statement that made it.
    """

    def __init__(self, text: str) -> None:
        # Not splitlines: TOML knows fewer ends of lines than Python.
        self._lines = text.split("\n")

    def of(self, *path: str | int) -> int:
        begins = 1
        for count in range(1, len(self._lines) + 1):
            try:
                tree = tomllib.loads("\n".join(self._lines[:count]))
            except tomllib.TOMLDecodeError:
                continue
            if _has(tree, path):
                return begins
            begins = count + 1
        raise AssertionError(f"{path} was found in the whole file")


def _in_file(path: Path, lines: LineFinder, dotted: str, *inside: str | int) -> str:
    line = lines.of(*dotted.split("."), *inside)
    return f"{path}:{line}: {_named(dotted, *inside)}"


def _named(name: str, *inside: str | int) -> str:
    """``listeners.entries[0].port``"""
    return name + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in inside)


def _has(tree: object, path: tuple[str | int, ...]) -> bool:
    for name in path:
        if isinstance(tree, list):
            tree = dict(enumerate(tree))
        if not isinstance(tree, dict) or name not in tree:
            return False
        tree = tree[name]
    return True


def _explained(reason: str, origin: Origin) -> str:
    """What msgspec says of a value, where it stands."""
    inside: list[str | int] = []
    if found := PLACE.search(reason):
        reason = reason[: found.start()]
        steps = STEP.findall(found[1])
        inside = [int(index) if index else name for index, name in steps]
    if found := UNKNOWN_FIELD.fullmatch(reason):
        known = [key.name for key in keys_in("entries", ListenerEntry)]
        return _unknown(origin(*inside, found[1]), "key", found[1], known)
    return f"{origin(*inside)}: {_lowered(reason)}"


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise BadSetting(f"--config: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadSetting(f"{path}:{line}: not valid TOML: {error}") from error


def _unknown(where: str, kind: str, name: str, known: Iterable[str]) -> str:
    every = list(known)
    close = difflib.get_close_matches(name, every, n=1)
    remedy = f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(every)}"
    return f"{where}: unknown {kind} {name}. {remedy}"


def _lowered(reason: str) -> str:
    return reason[:1].lower() + reason[1:]
