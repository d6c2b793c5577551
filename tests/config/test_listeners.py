"""Listeners in the configuration: the list, ports that are short for it, mistakes."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.config import Config, load
from braidmq.config.loading import BadSettings
from braidmq.config.reference import as_toml
from braidmq.net.settings import (
    PROTOCOLS,
    BadListener,
    DuplicateListenerAddress,
    DuplicateListenerName,
    ListenerEntry,
    ListenerSettings,
    ListenerSetTwice,
    UnknownProtocol,
    port_key,
)

PORTS = st.integers(1, 65_535)
HOSTS = st.sampled_from(["127.0.0.1", "127.0.0.2", "::1", "10.0.0.5", "node.example"])
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}", fullmatch=True)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("BRAID_")]:
        monkeypatch.delenv(name)


def loaded(text: str, flags: dict[str, object] | None = None) -> Config:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "braid.toml"
        path.write_text(text)
        return load(path, flags, {})


def listeners(config: Config) -> list[tuple[str, str, str, int]]:
    """In no order, and whatever set them."""
    return sorted(spec[:4] for spec in config.listeners.specs())


def entry(name: str, protocol: str, port: int, host: str = "") -> str:
    where = f'host = "{host}"\n' if host else ""
    return (
        f'[[listeners.entries]]\nname = "{name}"\nprotocol = "{protocol}"\nport = {port}\n{where}'
    )


AMQP_2 = entry("amqp-2", "amqp", 5673)


# --- what a list means ---


def test_without_a_list_there_are_the_usual_four() -> None:
    assert listeners(Config()) == [
        ("amqp", "amqp", "127.0.0.1", 5672),
        ("http", "http", "127.0.0.1", 8080),
        ("mqtt", "mqtt", "127.0.0.1", 1883),
        ("ws", "ws", "127.0.0.1", 8083),
    ]


@given(
    host=HOSTS,
    ports=st.fixed_dictionaries({protocol: st.just(0) | PORTS for protocol in PROTOCOLS}).filter(
        lambda ports: len(used := [port for port in ports.values() if port]) == len(set(used)) > 0
    ),
    is_told_by_entry=st.booleans(),
)
def test_ports_are_short_for_entries(
    host: str, ports: dict[str, int], is_told_by_entry: bool
) -> None:
    short = {port_key(protocol): port for protocol, port in ports.items()}
    lines = [f'host = "{host}"', *(f"{key} = {port}" for key, port in short.items())]
    section = "" if is_told_by_entry else f'[listeners]\nhost = "{host}"\n'
    long = section + "".join(
        entry(protocol, protocol, port, host if is_told_by_entry else "")
        for protocol, port in ports.items()
        if port
    )
    of_file = listeners(loaded("\n".join(["[listeners]", *lines])))
    flags = {f"listeners.{key}": value for key, value in {"host": host, **short}.items()}
    assert of_file == listeners(loaded("", flags)) == listeners(loaded(long))


def test_with_a_list_there_is_nothing_that_nobody_set() -> None:
    assert listeners(loaded(AMQP_2)) == [("amqp-2", "amqp", "127.0.0.1", 5673)]


def test_ports_that_are_set_are_there_beside_the_list() -> None:
    found = listeners(loaded("[listeners]\nhttp_port = 1\n" + AMQP_2, {"listeners.ws_port": 2}))
    assert [(name, port) for name, _, _, port in found] == [
        ("amqp-2", 5673),
        ("http", 1),
        ("ws", 2),
    ]


def test_entries_without_a_host_have_that_of_all() -> None:
    text = AMQP_2 + entry("mqtt-2", "mqtt", 1884, "127.0.0.2")
    found = listeners(loaded(text, {"listeners.host": "0.0.0.0"}))
    assert [host for _, _, host, _ in found] == ["0.0.0.0", "127.0.0.2"]


def test_the_environment_has_the_list_as_json() -> None:
    entries = [{"name": "amqp-2", "protocol": "amqp", "port": 5673}]
    variables = {"BRAID_LISTENERS_ENTRIES": msgspec.json.encode(entries).decode()}
    assert load(None, None, variables) == loaded(AMQP_2)


@given(
    st.lists(
        st.builds(
            ListenerEntry,
            name=NAMES,
            protocol=st.sampled_from(PROTOCOLS),
            port=PORTS,
            host=st.just("") | HOSTS,
        ),
        max_size=5,
        unique_by=(lambda each: each.name, lambda each: each.port),
    ),
    st.sets(st.sampled_from(PROTOCOLS)),
)
def test_any_list_is_the_same_after_being_written_and_read(
    entries: list[ListenerEntry], off: set[str]
) -> None:
    names = {each.name for each in entries}
    ports = {each.port for each in entries}
    shorthand = {
        port_key(protocol): 0 if protocol in names | off else port
        for protocol, port in zip(PROTOCOLS, sorted({*range(1, 10)} - ports), strict=False)
    }
    settings = ListenerSettings(entries=tuple(entries), **shorthand)
    config = msgspec.structs.replace(Config(), listeners=settings)
    assert loaded(as_toml(config)) == config


# --- what is wrong with one ---


def refused(text: str, flags: dict[str, object] | None = None) -> tuple[str, BadListener]:
    """The one mistake, with the line of the file and nothing else of its name."""
    with pytest.raises(BadSettings) as caught:
        loaded(text, flags)
    (mistake,) = caught.value.mistakes
    (cause,) = caught.value.causes
    assert isinstance(cause, BadListener)
    assert cause.remedy in mistake
    return mistake.partition("braid.toml:")[2], cause


def test_an_unknown_protocol() -> None:
    mistake, cause = refused(entry("a", "amqps", 5671))
    assert type(cause) is UnknownProtocol
    assert mistake == (
        "3: listeners.entries[0].protocol: listener 'a': unknown protocol 'amqps'."
        " Choose one of amqp, mqtt, ws, http"
    )


def test_two_with_one_name() -> None:
    mistake, cause = refused(AMQP_2 + entry("amqp-2", "mqtt", 1884))
    assert type(cause) is DuplicateListenerName
    assert mistake == (
        "6: listeners.entries[1].name: two listeners are called 'amqp-2':"
        " amqp://127.0.0.1:5673 and mqtt://127.0.0.1:1884. Give each a name of its own"
    )


@pytest.mark.parametrize(
    ("one", "other", "is_taken"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("0.0.0.0", "127.0.0.1", True),
        ("127.0.0.1", "0.0.0.0", True),
        ("::1", "0:0:0:0:0:0:0:1", True),
        ("::", "127.0.0.1", True),
        ("0.0.0.0", "::1", False),
        ("Node.example", "node.example", True),
    ],
)
def test_two_with_one_address(one: str, other: str, is_taken: bool) -> None:
    text = entry("a", "amqp", 5672, one) + entry("b", "amqp", 5672, other)
    if not is_taken:
        assert len(listeners(loaded(text))) == 2
        return
    mistake, cause = refused(text)
    assert type(cause) is DuplicateListenerAddress
    assert mistake.startswith("9: listeners.entries[1].port: listener 'b' would bind ")
    assert mistake.endswith(" Give one of them another port or host")


def test_a_port_that_is_anothers_by_default_is_named_where_it_is_set() -> None:
    mistake, cause = refused("[listeners]\namqp_port = 1883\n")
    assert type(cause) is DuplicateListenerAddress
    assert mistake == (
        "2: listeners.amqp_port: listener 'mqtt' would bind 127.0.0.1:1883, which 'amqp' has as"
        " 127.0.0.1:1883. Give one of them another port or host"
    )


@pytest.mark.parametrize("port", [5672, 5674, 0])
def test_one_that_a_port_and_the_list_both_set(port: int) -> None:
    """Also to turn it off: neither can win without somebody being surprised."""
    text = entry("amqp", "amqp", 5672)
    flags = {"listeners.amqp_port": port}
    for told in (refused(text, flags), refused(f"[listeners]\namqp_port = {port}\n" + text)):
        assert type(told[1]) is ListenerSetTwice
        assert told[0].endswith(
            ": listeners.entries[0].name: listener 'amqp' is set here and by listeners.amqp_port."
            " Keep one of them: leave out listeners.amqp_port, or give this entry another name"
        )


def test_all_mistakes_of_a_list_are_told_at_once() -> None:
    text = entry("a", "smtp", 25) + entry("a", "amqp", 26) + entry("b", "amqp", 25)
    with pytest.raises(BadSettings) as caught:
        loaded(text)
    kinds = [UnknownProtocol, DuplicateListenerName, DuplicateListenerAddress]
    assert [type(each) for each in caught.value.causes] == kinds


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        ({"port": 0}, "4: listeners.entries[0].port: expected `int` >= 1"),
        ({"port": "x"}, "4: listeners.entries[0].port: expected `int`, got `str`"),
        ({"name": "A b"}, "2: listeners.entries[0].name: expected `str` matching regex "),
        ({"name": None}, "1: listeners.entries[0]: object missing required field `name`"),
        (
            {"protocl": "amqp"},
            "5: listeners.entries[0].protocl: unknown key protocl. Did you mean protocol?",
        ),
    ],
)
def test_a_bad_entry_names_its_line(change: dict[str, Any], mistake: str) -> None:
    fields = {"name": "a", "protocol": "amqp", "port": 5673, **change}
    lines = [f"{key} = {value!r}" for key, value in fields.items() if value is not None]
    with pytest.raises(BadSettings) as caught:
        loaded("\n".join(["[[listeners.entries]]", *lines]))
    assert str(caught.value).partition("braid.toml:")[2].startswith(mistake)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("amqp:5673", "expected a JSON array: "),
        ("{}", "expected `array`, got `object`"),
        ('[{"name": "a", "protocol": "amqp", "port": 0}]', "[0].port: expected `int` >= 1"),
    ],
)
def test_a_bad_variable_is_named(text: str, mistake: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load(None, None, {"BRAID_LISTENERS_ENTRIES": text})
    said = str(caught.value).removeprefix("BRAID_LISTENERS_ENTRIES").removeprefix(": ")
    assert said.startswith(mistake)
