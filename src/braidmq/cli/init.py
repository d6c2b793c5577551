"""``braid init``: what a node needs to stand on a network."""

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from braidmq.cli.commands import Out
from braidmq.model.errors import Conflict, SetupError

CONFIG_FILE = "braid.toml"
TLS_DIRECTORY = "tls"
DATA_DIRECTORY = "data"
PASSWORD_BYTES = 18

LOCAL = ("127.0.0.1", "::1", "localhost")

TEMPLATE = """\
# Made by `braid init`. `braid config show --defaults` has everything that can be set, and
# `braid serve --config {config}` runs a node with this file.
[node]
data_dir = {data_dir}

[listeners]
host = {listen}
{ports}
[tls]
cert = {cert}
key = {key}
"""
PLAIN_OFF = """\
# Nobody speaks without TLS.
amqp_port = 0
mqtt_port = 0
ws_port = 0
http_port = 0
"""


def init(
    out: Out,
    directory: Annotated[
        Path, typer.Argument(help="Where all of it goes; made if it is missing.")
    ] = Path(),
    user: Annotated[str, typer.Option(help="The administrator's name.")] = "admin",
    new_password: Annotated[
        str | None,
        typer.Option(
            help="The administrator's password.", show_default="one that is made and printed"
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name or address that clients know the node by; may be given again.",
            show_default="this machine's name, localhost, 127.0.0.1, ::1",
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            help="Address that listeners bind; 0.0.0.0 opens it to the network, over TLS only."
        ),
    ] = "127.0.0.1",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The node's data directory, which must not be in use.",
            show_default="`data` in the directory",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Write over files that are there, and change the password of a user who is. What"
            " the data directory holds stays.",
        ),
    ] = False,
) -> None:
    """Set up a node: an administrator, certificates for trials, and a configuration file.

    Writes braid.toml, tls/ca.pem with tls/ca.key, tls/node.pem with tls/node.key, and into the data
    directory the one user there is: a node that begins with it has no `guest`. Files are readable
    for this user only. The authority is one for trials: in production name certificates of one
    that is looked after. Nothing that is there is written over.

    Example: braid init /etc/braid --host broker.example.com --listen 0.0.0.0
    """
    # Here and not above: the other commands need neither a node nor certificates.
    from braidmq.config.reference import as_value
    from braidmq.net.exposure import is_exposed
    from braidmq.net.settings import ListenerSpec
    from braidmq.security.authority import trial_files

    data = data_dir or directory / DATA_DIRECTORY
    hosts = list(dict.fromkeys(host or _own_names()))
    tls = {directory / TLS_DIRECTORY / name: made for name, made in trial_files(hosts).items()}
    config = directory / CONFIG_FILE
    exposed = is_exposed(ListenerSpec("", "http", listen, 0, ()))
    text = TEMPLATE.format(
        config=config,
        data_dir=as_value(str(data.resolve())),
        listen=as_value(listen),
        ports=PLAIN_OFF if exposed else "",
        cert=as_value(str((directory / TLS_DIRECTORY / "node.pem").resolve())),
        key=as_value(str((directory / TLS_DIRECTORY / "node.key").resolve())),
    )
    files = {**tls, config: text.encode()}
    there = [each for each in files if each.exists()]
    if there and not force:
        raise Conflict(
            f"{there[0]} is there already",
            remedy="Give another directory, or --force to write over it",
        )
    password = new_password or secrets.token_urlsafe(PASSWORD_BYTES)
    _make_administrator(data, user, password, force=force)
    for path, content in files.items():
        _write(path, content)
    found = {"config": str(config), "data_dir": str(data), "user": user, "hosts": hosts}
    out.done(
        "\n".join(_said(user, password if new_password is None else None, config, directory)),
        found | ({"password": password} if new_password is None else {}),
    )


def _said(user: str, password: str | None, config: Path, directory: Path) -> Iterator[str]:
    yield f"administrator {user!r}" + (f", password {password}" if password else "")
    yield f"start it:   braid serve --config {config}"
    ca = directory / TLS_DIRECTORY / "ca.pem"
    yield f"talk to it: braid --ca {ca} doctor --url https://localhost:8443 --user {user}"


def _own_names() -> Iterator[str]:
    yield socket.gethostname()
    yield from LOCAL[::-1]


def _make_administrator(data_dir: Path, user: str, password: str, *, force: bool) -> None:
    from braidmq.engine.engine import Engine
    from braidmq.model.clock import SystemClock
    from braidmq.security.accounts import Accounts
    from braidmq.security.permissions import EVERYTHING
    from braidmq.security.records import ADMINISTRATOR, ROOT_NAMESPACE
    from braidmq.storage.disk import RealDisk

    try:
        _private_directory(data_dir)
        engine = Engine.open(RealDisk(data_dir), SystemClock().now_ms())
    except OSError as error:
        raise SetupError(
            f"cannot use {data_dir} as the data directory: {error.strerror}"
        ) from error
    try:
        accounts = Accounts(engine.store, with_guest=False)
        if not accounts.has_user(user):
            accounts.add_user(user, password, [ADMINISTRATOR])
        elif force:
            accounts.update_user(user, password, {*accounts.user(user).tags, ADMINISTRATOR})
        else:
            raise Conflict(
                f"there is a user {user!r} in {data_dir} already",
                remedy="Give another --user, or --force to change its password",
            )
        accounts.set_permission(
            user, ROOT_NAMESPACE, EVERYTHING.configure, EVERYTHING.write, EVERYTHING.read
        )
    finally:
        engine.close()


def _private_directory(path: Path) -> None:
    """With those above it: modes that ``mkdir`` is given are only for the last."""
    for each in reversed((path.resolve(), *path.resolve().parents)):
        each.mkdir(mode=0o700, exist_ok=True)


def _write(path: Path, content: bytes) -> None:
    """At no time is there half a file, or one that others may read."""
    try:
        _private_directory(path.parent)
        beside = path.with_name(path.name + ".new")
        beside.unlink(missing_ok=True)
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        beside.replace(path)
    except OSError as error:
        raise SetupError(f"cannot write {path}: {error.strerror}") from error
