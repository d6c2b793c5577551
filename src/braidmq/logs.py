"""The log: one line an event, for people or for machines, with who it is about.

The standard library's ``logging`` carries it. Facts that belong to a line go in ``extra``, by name:
``logger.info("login refused", extra={"user": name})``; whose doing it is comes from ``about``,
which a gateway sets while it handles what a connection asked for. Passwords and message bodies
never go in.
"""

import json
import logging
import os
import select
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from time import monotonic
from typing import IO, Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import Meta

ROOT = "braidmq"
Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
Format = Literal["human", "json"]

UNREAD_MS = 200
"""How long a line waits for a reader of the log that is slow, before there is none."""

TRACE = logging.getLogger("braidmq.trace")
"""What was asked for by name, connection by connection: it is shown whatever the level."""


CHANGES = logging.getLogger("braidmq.changes")


WitnessKind = Literal["administration", "object", "login", "refused"]
witnesses: list[Callable[[WitnessKind, str, dict[str, object]], None]] = []
"""Who is told of changes and log-ins with all their facts, whatever the level: the audit log."""


def log_change(
    protocol: str,
    operation: str,
    changed: str,
    *,
    kind: WitnessKind = "object",
    **facts: object,
) -> None:
    """Who changed what, once it is done, whatever it came over: ``about`` says who and from where.
    Never the body of a request: it may be a password."""
    said = {"protocol": protocol, "object": changed, **facts}
    CHANGES.info(operation, extra=said)
    subject = about.get()
    testify(kind, operation, (subject.log_fields() if subject is not None else {}) | said)


def testify(kind: WitnessKind, operation: str, facts: dict[str, object]) -> None:
    for witness in witnesses:
        witness(kind, operation, facts)


def log_login(protocol: str, user: str, peer: str, by: str) -> None:
    """Somebody was let in; ``by`` says with what. Not in the log, where it would be all there is:
    connections that begin are there."""
    testify("login", "log in", {"protocol": protocol, "user": user, "peer": peer, "by": by})


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log, on stderr. What a node says of its start and stop is on stdout too."""

    level: Annotated[
        Level,
        Meta(
            description="The least important lines shown: `debug`, `info`, `warning` or `error`."
            " It can be changed at run time: `PUT /v1/log-level`."
        ),
    ] = "info"
    format: Annotated[
        Format, Meta(description="`human` for a terminal; `json` for machines, an object a line.")
    ] = "human"


class Subject(Protocol):
    """Somebody whose doing a line may be."""

    def log_fields(self) -> dict[str, Any]: ...


about: ContextVar[Subject | None] = ContextVar("about", default=None)

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The facts of a line: who it is about, then what it says of its own."""
    subject = about.get()
    found = dict(subject.log_fields()) if subject is not None else {}
    found |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
    return found


WINDOW_S: Final = 10.0
LINES_MAX: Final = 10
"""Logged singly in one window; then they are only counted."""


class FewLines:
    """Lines that strangers cause, as many as a person can read.

    They may be thousands a second, and the log must not grow with them. Within each window the
    first few are logged one by one, the rest as a number when the window is over.
    """

    def __init__(self, logger: logging.Logger, rest: str) -> None:
        """``rest``: what is said of those that were only counted."""
        self._logger = logger
        self._rest = rest
        self._window_s = -WINDOW_S
        self._lines = 0
        self._unsaid = 0

    def say(self, what: str, facts: dict[str, object]) -> None:
        now_s = monotonic()
        if now_s >= self._window_s + WINDOW_S:
            self._say_rest()
            self._window_s, self._lines = now_s, 0
        if self._lines >= LINES_MAX:
            self._unsaid += 1
            return
        self._lines += 1
        self._logger.warning(what, extra=facts)

    def _say_rest(self) -> None:
        if self._unsaid:
            self._logger.warning(self._rest, extra={"count": self._unsaid})
            self._unsaid = 0


def _time_of(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class HumanFormat(logging.Formatter):
    """``2026-04-01T12:00:00.000Z info  gateways.amqp.connection opened  connection=3 …``"""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix(f"{ROOT}.")
        line = f"{_time_of(record)} {record.levelname.lower():<7} {name}: {record.getMessage()}"
        facts = " ".join(f"{key}={_shown(value)}" for key, value in fields_of(record).items())
        if facts:
            line = f"{line}  {facts}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormat(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def _shown(value: object) -> str:
    """One word, or quoted: what a peer sent must not forge another line or steer a terminal."""
    text = str(value)
    plain = text and text.isprintable() and not any(mark in text for mark in ' "=')
    return text if plain else json.dumps(text, ensure_ascii=not text.isprintable())


class PipeHandler(logging.Handler):
    """Writes to a file, a terminal or a pipe, and never waits for long for who reads it.

    A pipe that nobody empties is full after a few hundred lines. Whoever writes on then waits for
    ever, and with it all that the node serves.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd
        self._room = select.poll()
        self._room.register(fd, select.POLLOUT)
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            if self._dropped and self._has_room():
                line = f"({self._dropped} lines dropped: nobody read them)\n{line}"
                self._dropped = 0
            self._write(line.encode("utf-8", "backslashreplace"))
        except Exception:
            self.handleError(record)

    def _write(self, data: bytes) -> None:
        while data:
            if not self._has_room():
                self._dropped += 1
                return
            data = data[os.write(self._fd, data[: select.PIPE_BUF]) :]

    def _has_room(self) -> bool:
        """For as much as PIPE_BUF, without waiting. It is waited for if it was there before."""
        return bool(self._room.poll(0 if self._dropped else UNREAD_MS))


FORMATS: dict[str, type[logging.Formatter]] = {"human": HumanFormat, "json": JsonFormat}


def configure(settings: LogSettings, stream: IO[str] | None = None) -> None:
    """Have everything logged in this process go one way. Libraries speak up from warnings on."""
    handler = logging.StreamHandler(stream) if stream is not None else _on_stderr()
    handler.setFormatter(FORMATS[settings.format]())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a log that can't be written is no reason to write more
    TRACE.setLevel(logging.INFO)
    set_level(settings.level)


def _on_stderr() -> logging.Handler:
    # None: whoever started this process closed it.
    return logging.NullHandler() if sys.stderr is None else PipeHandler(sys.stderr.fileno())


def is_json() -> bool:
    return any(isinstance(each.formatter, JsonFormat) for each in logging.getLogger().handlers)


def replace(settings: LogSettings) -> None:
    """Log as these say from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, HumanFormat | JsonFormat):
            handler.setFormatter(FORMATS[settings.format]())
    set_level(settings.level)


def set_level(level: str) -> None:
    logging.getLogger(ROOT).setLevel(level.upper())


def level() -> Level:
    number = logging.getLogger(ROOT).getEffectiveLevel()
    return next(each for each in LEVELS if logging.getLevelNamesMapping()[each.upper()] >= number)
