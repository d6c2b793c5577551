"""The configuration as text: TOML that says what every key means, and the page of the docs.

``python -m braidmq.config.reference`` writes docs/configuration.md.
"""

import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from braidmq.config.live import ENTRIES as ENTRIES_KEY
from braidmq.config.live import PART_OF
from braidmq.config.settings import SECTIONS, Config, Key, keys_in, keys_of
from braidmq.net.settings import ListenerEntry
from braidmq.net.tls_settings import CertificateEntry, ListenerTls

WIDTH = 98

INTRODUCTION = """\
# Configuration

Made from the code by `python -m braidmq.config.reference > docs/configuration.md`; a test compares.

A node runs without any of this. What it takes, it takes from, in order:

1. flags of `braid serve` (`braid serve --help`), for the keys that have one;
2. environment variables: `BRAID_`, the section, the key, as `BRAID_LISTENERS_HTTP_PORT=8081`;
3. a TOML file, given as `--config FILE` or `BRAID_CONFIG=FILE`;
4. the defaults below.

`braid config check FILE` says what is wrong with a file, with the line of each mistake, and exits
with 0 or 2. `braid config show` prints what a node would run with here, `braid config show
--defaults` the reference: both as TOML that can be kept as a file. Keys, sections and `BRAID_`
variables that don't exist are errors, so that a misspelt limit is not taken for none. (In
Kubernetes a service called `braid` adds variables of that name to pods; `enableServiceLinks: false`
stops it.)

A file that is wrong changes nothing: the node does not start and touches no directory.

## While the node runs

`braid config reload`, `POST /v1/config/reload` and SIGHUP have a node read all of it again, file
and environment as it was started with them. What is marked *live* below changes at once for all
there is, or for connections, sessions and requests that begin from then on where it is offered to
clients when they begin; what is marked *restart* is named in the answer and in the log and stays as
it is. If one thing is wrong, nothing changes, and the answer says what it is and where it stands.
See [operations.md](operations.md).
"""


ENTRIES = """
### [[listeners.entries]]

A node has a list of listeners. `amqp_port = 5672` is short for an entry `name = "amqp"`,
`protocol = "amqp"`, `port = 5672` that binds `listeners.host`; `mqtt_port`, `ws_port` and
`http_port` are the same for theirs, and `amqps_port` and so on for theirs with `tls = {}`. Who
needs more than one of a protocol, or other addresses, writes entries:

```toml
[listeners]
host = "127.0.0.1"   # of entries that have none
http_port = 8080     # a port that is set counts beside the list

[[listeners.entries]]
name = "amqp-here"
protocol = "amqp"
port = 5672

[[listeners.entries]]
name = "amqp-plant"
protocol = "amqp"
host = "10.0.0.5"
port = 5672
```

That node has three listeners: with entries, ports that are not set are 0. All listeners of a
protocol serve the same queues and topics. Two listeners can't have one name, or one address; an
entry can't have the name of a port that is set too, by whatever file, variable or flag. In the
environment the list is a JSON array, `BRAID_LISTENERS_ENTRIES='[{"name": "amqp-here", …}]'`.

| key | default | |
|---|---|---|
"""

ENTRY_TLS = """
### tls of an entry

`tls = {}` has a listener speak TLS as `[tls]` says. What is different for it is in the table; its
own certificate comes with its own key and companions, its own `ca` with its own `crl`:

```toml
[[listeners.entries]]
name = "devices"
protocol = "mqtt"
port = 8884
tls = { client_certs = "required", ca = "/etc/braid/devices-ca.pem" }
```

| key | default: as in `[tls]` | |
|---|---|---|
"""

CERTIFICATES = """
### [[tls.certificates]]

| key | default | |
|---|---|---|
"""


def as_tree(config: Config) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(config))
    return tree


def as_toml(config: Config) -> str:
    """Every key with its meaning and value; it loads as the same configuration."""
    return "\n".join(_section_toml(config, section) for section in SECTIONS)


def _section_toml(config: Config, section: str) -> str:
    lines = [*_commented(SECTIONS[section].__doc__ or ""), f"[{section}]"]
    for key in keys_of(section):
        value = getattr(getattr(config, section), key.name)
        if value == 0 and section == "listeners" and config.listeners.entries:
            continue  # with a list that is the default, and its entries may have the name
        lines += ["", *_commented(described(key))]
        if key.is_list and value:
            lines += ["", "\n\n".join(_entry_toml(key.dotted, each) for each in value)]
        else:
            lines.append(f"{key.name} = {as_value(value)}")
    return "\n".join(lines) + "\n"


def _entry_toml(dotted: str, entry: msgspec.Struct) -> str:
    return "\n".join([f"[[{dotted}]]", *_pairs(entry)])


def _pairs(table: msgspec.Struct) -> Iterator[str]:
    """TOML has no word for what is not there."""
    for name, value in msgspec.structs.asdict(table).items():
        if value is not None:
            yield f"{name} = {as_value(value)}"


def described(key: Key) -> str:
    text = key.meta.description or ""
    limits = ", ".join(_limits(key))
    return f"{text} {limits[:1].upper()}{limits[1:]}." if limits else text


def _limits(key: Key) -> Iterator[str]:
    if key.meta.gt is not None:
        yield f"more than {key.meta.gt}"
    if key.meta.ge:
        yield f"at least {key.meta.ge}"
    if key.meta.le is not None:
        yield f"at most {key.meta.le}"


def _commented(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,
    )


def as_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, msgspec.Struct):
        return "{ " + ", ".join(_pairs(value)) + " }" if any(_pairs(value)) else "{}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(as_value, value))}]"
    # A JSON string is a TOML basic string, except that TOML wants one more character escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def as_markdown() -> str:
    defaults = Config()
    parts = [INTRODUCTION]
    for section in SECTIONS:
        parts.append(f"\n## [{section}]\n\n{SECTIONS[section].__doc__}\n\n")
        parts.append("| key | default | | changes |\n|---|---|---|---|\n")
        for key in keys_of(section):
            value = as_value(getattr(getattr(defaults, section), key.name))
            parts.append(f"| `{key.name}` | `{value}` | {described(key)} | {_when(key.dotted)} |\n")
        if section == "listeners":
            parts += [ENTRIES, *_rows("listeners.entries", ListenerEntry), ENTRY_TLS]
            parts += _rows("listeners.entries.tls", ListenerTls)
        if section == "tls":
            parts += [CERTIFICATES, *_rows("tls.certificates", CertificateEntry)]
    return "".join(parts)


def _when(dotted: str) -> str:
    if dotted == ENTRIES_KEY:
        return "`tls`: live; else restart"
    return "live" if dotted in PART_OF else "restart"


def _rows(section: str, table: type[msgspec.Struct]) -> Iterator[str]:
    for key in keys_in(section, table):
        yield f"| `{key.name}` | {_default(key)} | {described(key)} |\n"


def _default(key: Key) -> str:
    if key.default is msgspec.NODEFAULT:
        return "must be given"
    return "" if key.default is None else f"`{as_value(key.default)}`"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
