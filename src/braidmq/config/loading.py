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
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

import msgspec

from braidmq.config.settings import (
    SECTIONS,
    VARIABLE_PREFIX,
    Config,
    all_keys,
    flag_of,
    keys_of,
)
from braidmq.model.errors import BadSetting
from braidmq.net.settings import ListenerSettings, mistakes_in, with_default_ports
from braidmq.net.tls_settings import TlsSettings

if TYPE_CHECKING:
    from braidmq.net.tls_contexts import BadListenerTls

NOT_KEYS = frozenset(
    {"BRAID_CONFIG"}
    | {f"BRAID_{name}" for name in ("CONTEXT", "URL", "USER", "PASSWORD", "TOKEN")}
    | {f"BRAID_{name}" for name in ("NAMESPACE", "AMQP_PORT", "CA", "CERT", "KEY")}
)
"""Variables of the command line: the file itself, and how its commands reach a node. Whoever has
them set may run a node in the same shell."""

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
            self.mistakes.append(_explained(str(error), origin, self._types[dotted]))
        else:
            self._given[dotted] = Given(converted, origin)

    def finish(self, *, files: bool) -> Config:
        """``files``: look at those that are named, too. Raises BadSettings."""
        made: dict[str, msgspec.Struct] = {}
        for section, kind in SECTIONS.items():
            given = {
                key.name: self._given[key.dotted]
                for key in keys_of(section)
                if key.dotted in self._given
            }
            values = {name: each.value for name, each in given.items()}
            if kind is ListenerSettings:
                values = with_default_ports(values, self._is_given("tls.cert"))
            try:
                made[section] = kind(**values)
            except ValueError as error:
                # Keys that contradict each other: the one given last decided it.
                origins = [each.origin for name, each in given.items() if name in str(error)]
                self.mistakes.append(f"{origins[-1]()}: {error}")
        listeners = cast(ListenerSettings, made["listeners"])
        self._check_listeners(listeners)
        if files and not self.mistakes:
            self._check_certificates(listeners, cast(TlsSettings, made["tls"]))
        if self.mistakes:
            raise BadSettings(self.mistakes, self.causes)
        return Config(**made)  # type: ignore[arg-type]

    def _check_listeners(self, settings: ListenerSettings) -> None:
        given = {key.name for key in keys_of("listeners") if key.dotted in self._given}
        for mistake in mistakes_in(settings, given):
            key, *inside = mistake.at
            self.mistakes.append(f"{self._given[f'listeners.{key}'].origin(*inside)}: {mistake}")
            self.causes.append(mistake)

    def _check_certificates(self, listeners: ListenerSettings, settings: TlsSettings) -> None:
        specs = [each for each in listeners.specs() if each.tls is not None]
        if not specs:
            return
        # Here and not above: most configurations do without OpenSSL.
        from braidmq.net.tls_contexts import mistakes_in_files

        for mistake in mistakes_in_files(specs, settings):
            self.mistakes.append(f"{self._origin_of(mistake)}: {mistake}")
            self.causes.append(mistake)

    def _origin_of(self, mistake: "BadListenerTls") -> str:
        """Where the listener's own table says it, or that of all listeners; or else what asks for
        TLS."""
        spec, (field, *inside) = mistake.spec, mistake.at
        if getattr(spec.tls, str(field), None) is not None:
            return self._given["listeners.entries"].origin(spec.at[1], "tls", field, *inside)
        if self._is_given(f"tls.{field}"):
            return self._given[f"tls.{field}"].origin(*inside)
        key, *way = spec.at
        return self._given[f"listeners.{key}"].origin(*way)

    def _is_given(self, dotted: str) -> bool:
        return dotted in self._given and bool(self._given[dotted].value)


def load(
    path: Path | None,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    files: bool = True,
) -> Config:
    """What a node is to run with. ``environment`` is the process's own unless given; ``files`` that
    are named, as certificates, are looked at."""
    loader = Loader()
    if path is not None:
        loader.add_file(path)
    loader.add_environment(os.environ if environment is None else environment)
    loader.add_flags(flags or {})
    return loader.finish(files=files)


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


def _table_at(kind: Any, inside: Sequence[str | int]) -> type[msgspec.Struct]:
    """The table to which the way leads, inside of a value of this type."""
    for step in inside:
        table = _table_in(kind)
        if isinstance(step, str):
            kind = next(each.type for each in msgspec.structs.fields(table) if each.name == step)
    return _table_in(kind)


def _table_in(kind: Any) -> type[msgspec.Struct]:
    """That of which a list is, or which may be missing."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    found = [each for each in get_args(kind) if each not in (NoneType, ...)]
    return _table_in(found[0])


def _explained(reason: str, origin: Origin, kind: Any) -> str:
    """What msgspec says of a value of this type, where it stands."""
    inside: list[str | int] = []
    if found := PLACE.search(reason):
        reason = reason[: found.start()]
        steps = STEP.findall(found[1])
        inside = [int(index) if index else name for index, name in steps]
    if found := UNKNOWN_FIELD.fullmatch(reason):
        known = [each.name for each in msgspec.structs.fields(_table_at(kind, inside))]
        return _unknown(origin(*inside, found[1]), "key", found[1], known)
    return f"{origin(*inside)}: {_lowered(reason)}"


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise BadSetting(f"cannot read {path}: {error.strerror}") from error
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
