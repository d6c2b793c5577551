"""``braid``: what each command takes, and how an error becomes an exit code."""

import errno
import os
import sys
from collections.abc import Callable
from datetime import date
from functools import cache, partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.main

from braidmq import __version__
from braidmq.cli import (
    bench,
    config,
    connections,
    consumers,
    contexts,
    dead_letters,
    delayed,
    exchanges,
    groups,
    lake,
    leases,
    log_level,
    mqtt,
    namespaces,
    permissions,
    pipeline,
    policies,
    schedules,
    stats,
    storage,
    templates,
    tokens,
    topics,
    transactions,
    users,
)
from braidmq.cli.api import CA, CERT, KEY
from braidmq.cli.audit import audit
from braidmq.cli.commands import Commands
from braidmq.cli.consume import consume
from braidmq.cli.doctor import doctor
from braidmq.cli.init import init
from braidmq.cli.publish import publish
from braidmq.cli.top import top
from braidmq.cli.usage import usage
from braidmq.config import ListenerSettings, NodeSettings, load
from braidmq.model.errors import BadSetting, BraidError, Kind, SetupError

EXIT_CODES = {
    Kind.SETUP: 2,
    Kind.STORAGE: 3,
    Kind.UNAUTHENTICATED: 4,
    Kind.FORBIDDEN: 4,
    Kind.NOT_FOUND: 5,
    Kind.CONFLICT: 6,
}
"""2 is also what a misused flag gives: fix the command. 3 says: look at the disk. 4: you may not.
5: there is no such thing. 6: it is there already, or in the way. Anything else is 1."""

DECLINED = 1
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Of the library that typer is made of, which has moved from one version of typer to another."""

WORDS_OF_LIBRARIES = (
    (": Value error, ", ": "),
    (": Input should be ", ": it should be "),
    (", unable to parse string as an integer", ""),
    (", unable to parse string as a number", ""),
)

NODE = NodeSettings()
LISTENERS = ListenerSettings()

app = Commands(
    name="braid",
    help="BraidMQ: a message broker in which many protocols are strands of one durable log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(publish)
app.command()(consume)
app.command()(top)
app.command()(doctor)
app.command()(init)
app.command()(usage)
app.command()(audit)
app.add_typer(topics.app)
app.add_typer(groups.app)
app.add_typer(dead_letters.app)
app.add_typer(delayed.app)
app.add_typer(schedules.app)
app.add_typer(leases.app)
app.add_typer(transactions.app)
app.add_typer(exchanges.app)
app.add_typer(exchanges.bindings_app)
app.add_typer(connections.app)
app.add_typer(consumers.app)
app.add_typer(mqtt.app)
app.add_typer(stats.app)
app.add_typer(users.app)
app.add_typer(tokens.app)
app.add_typer(permissions.app)
app.add_typer(policies.app)
app.add_typer(templates.app)
app.add_typer(namespaces.app)
app.add_typer(contexts.app)
app.add_typer(log_level.app)
app.add_typer(pipeline.app)
app.add_typer(lake.app)
app.add_typer(storage.app)
app.add_typer(config.app)
app.add_typer(bench.app)


def main(arguments: list[str] | None = None) -> None:
    prepare_output()
    try:
        code = _command()(args=arguments, prog_name="braid", standalone_mode=False)
        # Written here: what a pipe refuses after this, nobody would hear of.
        sys.stdout.flush()
    except BraidError as error:
        complain(error)
    except UsageError as error:
        complain_of_usage(error)
    except typer.Abort:
        # Ctrl-C, or the end of the input, where something was asked.
        sys.stderr.write("\nbraid: nothing was changed\n")
        sys.exit(DECLINED)
    except BrokenPipeError:
        # Whoever reads has seen enough, as `head` has.
        sys.stdout = None
        sys.exit(1)
    except UnicodeEncodeError as error:
        remedy = "Set LC_ALL=C.UTF-8, or correct it"
        complain(BadSetting(f"{error.object!r} is not UTF-8", remedy=remedy))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        complain(
            SetupError(
                "the output can't be written: no space left on the device", remedy="Free some space"
            )
        )
    sys.exit(code or 0)


def prepare_output() -> None:
    if sys.stdout is None:  # whoever started this closed it
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        # Names may have letters that a terminal has not.
        sys.stdout.reconfigure(errors="backslashreplace")


def complain(error: BraidError) -> NoReturn:
    # One line, whatever the message holds: supervisors and scripts read it line by line.
    sys.stderr.write(f"braid: error: {' '.join(str(error).split())}\n")
    sys.exit(EXIT_CODES.get(error.kind, 1))


@cache
def _command() -> Callable[..., Any]:
    """All commands, made of their functions: a tenth of a second."""
    return typer.main.get_command(app)


def complain_of_usage(error: Exception) -> NoReturn:
    """What is wrong with the line that was typed, in one line as everything else."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
        sys.exit(2)
    said = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    for library, ours in WORDS_OF_LIBRARIES:
        said = said.replace(library, ours)
    context = getattr(error, "ctx", None)
    command = "braid" if context is None else context.command_path
    complain(BadSetting(said[:1].lower() + said[1:], remedy=f"`{command} --help` has the options"))


def version_line(today: date) -> str:
    # Catalogue row R6.
    name = "RabidMQ" if (today.month, today.day) == (4, 1) else "BraidMQ"
    return f"{name} {__version__}"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version_line(date.today()))
        raise typer.Exit


@app.callback()
def braid(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    ca: Annotated[
        str | None,
        typer.Option(
            envvar=CA,
            help="PEM file with the authority that signed the certificate of an https:// URL.",
            show_default="those of this machine",
        ),
    ] = None,
    cert: Annotated[
        str | None,
        typer.Option(envvar=CERT, help="PEM file with a certificate of your own to show there."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(envvar=KEY, help="PEM file with its key, if that is not in --cert."),
    ] = None,
) -> None:
    """BraidMQ: a message broker in which many protocols are strands of one durable log."""
    for name, value in ((CA, ca), (CERT, cert), (KEY, key)):
        if value is not None:
            os.environ[name] = value


@app.command()
def serve(
    data_dir: Annotated[
        str | None,
        typer.Option(
            help="Directory for messages; created if missing. One node per directory. Confirms are"
            " as fast as this disk can sync.",
            show_default=NODE.data_dir,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address every listener binds that has none of its own. The default is this"
            " machine only; 0.0.0.0 opens the node to the network.",
            show_default=LISTENERS.host,
        ),
    ] = None,
    amqp_port: Annotated[
        int | None,
        typer.Option(
            help="AMQP 0-9-1 over TCP; 0 turns it off.",
            show_default=str(LISTENERS.amqp_port),
        ),
    ] = None,
    mqtt_port: Annotated[
        int | None,
        typer.Option(
            help="MQTT 3.1.1 and 5.0 over TCP; 0 turns it off.",
            show_default=str(LISTENERS.mqtt_port),
        ),
    ] = None,
    ws_port: Annotated[
        int | None,
        typer.Option(
            help="MQTT over WebSocket; 0 turns it off.",
            show_default=str(LISTENERS.ws_port),
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(
            help="HTTP: /health, /ready, /metrics and the API under /v1; 0 turns it off.",
            show_default=str(LISTENERS.http_port),
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="BRAID_CONFIG",
            help="TOML file with everything that can be set; `braid config show --defaults` prints"
            " one. Variables such as BRAID_LISTENERS_HTTP_PORT win over it, and flags over them.",
            show_default="no file",
        ),
    ] = None,
    dev: Annotated[
        bool | None,
        typer.Option(
            "--dev/--no-dev",
            help="Development node: lets anyone in with any user and password, and lets them do"
            " everything. Also the way back in for an administrator who is locked out.",
            show_default="no-dev",
        ),
    ] = None,
) -> None:
    """Run a node until SIGTERM or Ctrl-C; SIGHUP has it read its configuration again.

    Prints what storage replayed and one line per listener, then `ready`; after a clean stop,
    `stopped`; the log is on stderr. A port is short for a listener of that name; more of a kind,
    or on other addresses, are [[listeners.entries]] in the file, and with those only ports that
    are given count. A stop waits for consumers to answer for what they have, at
    most for node.shutdown_deadline_s; a second signal ends it at once. Exits 0 after a clean stop,
    2 if something is set up wrongly, 3 if storage failed.

    Example: braid serve --data-dir /var/lib/braidmq --host 0.0.0.0
    """
    flags = {
        "node.data_dir": data_dir,
        "node.dev": dev,
        "listeners.host": host,
        "listeners.amqp_port": amqp_port,
        "listeners.mqtt_port": mqtt_port,
        "listeners.ws_port": ws_port,
        "listeners.http_port": http_port,
    }
    # Here and not above: `braid --version` should not wait for an event loop and a web server.
    from braidmq import server

    server.serve(partial(load, config_file, flags))
