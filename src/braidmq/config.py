"""What an operator may set, with its defaults. Flags win over the file, the file over defaults.

The file is TOML, one table per section. A key nobody knows is refused rather than ignored: a
misspelt limit that silently keeps its default is found out in production.
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from braidmq.engine.pressure import Watermarks
from braidmq.gateways.amqp.confirms import UnconfirmedLimit
from braidmq.model.errors import BadSetting
from braidmq.storage.settings import StorageSettings

Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
"""A TCP port; 0 turns the listener off."""


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    data_dir: Annotated[str, msgspec.Meta(min_length=1)] = "./data"
    dev: bool = False


class ListenerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # Loopback until there are users and permissions: a broker open to the network is a choice.
    host: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    amqp_port: Port = 5672
    mqtt_port: Port = 1883
    ws_port: Port = 8083
    http_port: Port = 8080


Size = Annotated[int, msgspec.Meta(ge=0)]
Bound = Annotated[int, msgspec.Meta(ge=1)]
MARKS = Watermarks()
UNCONFIRMED = UnconfirmedLimit()


class LimitSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory_slow_bytes: Size = MARKS.memory_slow_bytes
    """Messages in memory at which publishers are slowed, and at which they have to wait."""
    memory_block_bytes: Size = MARKS.memory_block_bytes
    disk_slow_bytes: Size = MARKS.disk_slow_bytes
    """Free space at which publishers are slowed, and at which they have to wait."""
    disk_block_bytes: Size = MARKS.disk_block_bytes
    unconfirmed_messages_max: Bound = UNCONFIRMED.messages
    """What one publisher may have sent and not yet been told of; then it is not read from."""
    unconfirmed_bytes_max: Bound = UNCONFIRMED.bytes

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(
            self.memory_slow_bytes,
            self.memory_block_bytes,
            self.disk_slow_bytes,
            self.disk_block_bytes,
        )

    @property
    def unconfirmed(self) -> UnconfirmedLimit:
        return UnconfirmedLimit(self.unconfirmed_messages_max, self.unconfirmed_bytes_max)


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: NodeSettings = NodeSettings()
    listeners: ListenerSettings = ListenerSettings()
    storage: StorageSettings = StorageSettings()
    limits: LimitSettings = LimitSettings()


SECTIONS: dict[str, type[msgspec.Struct]] = {
    "node": NodeSettings,
    "listeners": ListenerSettings,
    "storage": StorageSettings,
    "limits": LimitSettings,
}

Tree = dict[str, Any]


def load(path: Path | None, overrides: Mapping[str, object] | None = None) -> Config:
    """Read ``path`` if given, then apply ``overrides``: flags by dotted key, ``None`` if not given.

    The file is checked on its own first, so that an error names the file or the flag it came from.
    """
    tree: Tree = {}
    if path is not None:
        tree = _read(path)
        _refuse_unknown(tree, path)
        _convert(tree, str(path))
    for key, value in (overrides or {}).items():
        if value is not None:
            _override(tree, key, value)
    return _convert(tree)


def flag_of(key: str) -> str:
    """``listeners.http_port`` is set by ``--http-port``."""
    return "--" + key.rpartition(".")[2].replace("_", "-")


def _read(path: Path) -> Tree:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise BadSetting(f"--config: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path}: not valid TOML: {error}") from error


def _refuse_unknown(tree: Tree, path: Path) -> None:
    for section, table in tree.items():
        if section not in SECTIONS:
            raise _unknown(path, section, list(SECTIONS))
        known = [field.name for field in msgspec.structs.fields(SECTIONS[section])]
        for key in table if isinstance(table, dict) else ():
            if key not in known:
                raise _unknown(path, f"{section}.{key}", [f"{section}.{name}" for name in known])


def _unknown(path: Path, key: str, known: list[str]) -> BadSetting:
    close = difflib.get_close_matches(key, known, n=1)
    remedy = f"Did you mean {close[0]}?" if close else f"Known here: {', '.join(known)}"
    return BadSetting(f"{path}: unknown key {key}", remedy=remedy)


def _override(tree: Tree, key: str, value: object) -> None:
    section, _, name = key.partition(".")
    tree[section] = {**tree.get(section, {}), name: value}


def _convert(tree: Tree, source: str | None = None) -> Config:
    try:
        return msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        # msgspec writes: Expected `int` <= 65535 - at `$.listeners.http_port`
        reason, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$.")
        named = f"{source}: {key}" if source else flag_of(key)
        raise BadSetting(f"{named}: {reason[:1].lower()}{reason[1:]}") from error
