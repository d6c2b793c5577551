"""Contexts, kept in a file: nodes by name, with whom to log in as."""

import os
import tempfile
import tomllib
from pathlib import Path

import msgspec

from braidmq.model.errors import BadSetting, NotFound, SetupError

FILE_MODE = 0o600
"""It has passwords in it."""


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a command need not be told."""

    url: str | None = None
    user: str | None = None
    password: str | None = None
    token: str | None = None
    namespace: str | None = None
    amqp_port: int | None = None


class Contexts(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The file, ``contexts.toml``."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            raise NotFound(
                f"there is no context {name!r}", remedy="`braid context list` has all names"
            )
        return found


def contexts_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "braidmq" / "contexts.toml"


def read_contexts() -> Contexts:
    path = contexts_file()
    try:
        return msgspec.convert(tomllib.loads(path.read_bytes().decode()), Contexts)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise SetupError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        # Not what stands there: it may be a password.
        reason = error if isinstance(error, msgspec.ValidationError) else "it is not valid TOML"
        raise BadSetting(f"{path}: {reason}", remedy="Mend the file, or remove it") from None


def write_contexts(every: Contexts) -> None:
    path = contexts_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made with mode 0600, whole when it gets its name.
        handle, made = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(_toml(every))
                os.fchmod(handle, FILE_MODE)
            Path(made).replace(path)
        except BaseException:
            Path(made).unlink()
            raise
    except OSError as error:
        raise SetupError(f"cannot write {path}: {error.strerror}") from None


def _toml(every: Contexts) -> str:
    lines = [] if every.current is None else [f"current = {_text(every.current)}"]
    for name, context in sorted(every.contexts.items()):
        given = msgspec.to_builtins(context)
        lines += ["", f"[contexts.{_text(name)}]"]
        lines += [f"{field} = {_text(value)}" for field, value in given.items()]
    return "\n".join(lines).lstrip("\n") + "\n"


def _text(value: str | int) -> str:
    # As in JSON, where DEL may stand for itself.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def context_names() -> list[str]:
    """For a shell that completes them: a file that can't be read has none."""
    try:
        return sorted(read_contexts().contexts)
    except (BadSetting, SetupError):
        return []
