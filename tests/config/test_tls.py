"""What is wrong with TLS is said before a node starts: with the line, and what to do."""

import json
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from braidmq.config import load
from braidmq.config.loading import BadSettings
from braidmq.config.reference import as_toml
from braidmq.net.settings import TLS_PORTS, ListenerSpec
from braidmq.net.tls_contexts import make_context, user_of
from braidmq.net.tls_settings import ListenerTls, TlsSettings
from braidmq.testing.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def mistakes(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "braid.toml"
    path.write_text(text)
    with pytest.raises(BadSettings) as error:
        load(path, environment={})
    return [each.removeprefix(f"{path}:") for each in error.value.mistakes]


def test_a_certificate_opens_the_usual_ports(authority: Authority, tmp_path: Path) -> None:
    pair = authority.for_node()
    path = tmp_path / "braid.toml"
    path.write_text(f'[tls]\ncert = "{pair.cert}"\nkey = "{pair.key}"\n[listeners]\nwss_port = 0\n')
    config = load(path, environment={})
    found = {spec.name: spec for spec in config.listeners.specs() if spec.tls is not None}
    assert {name: spec.port for name, spec in found.items()} == {
        name: port for name, port in TLS_PORTS.items() if name != "wss"
    }
    assert found["https"].url == "https://127.0.0.1:8443"
    assert [spec.url for spec in load(None, environment={}).listeners.specs()][-1].startswith(
        "http://"
    )


def test_it_can_be_kept_as_a_file(authority: Authority, tmp_path: Path) -> None:
    pair, second = authority.for_node(), authority.for_node("a.example.com", file="second")
    entry = {"name": "x", "protocol": "mqtt", "port": 1, "tls": {"user_from": "dns"}}
    variables = {
        "BRAID_TLS_CERT": str(pair.cert),
        "BRAID_TLS_KEY": str(pair.key),
        "BRAID_TLS_CERTIFICATES": json.dumps([{"cert": str(second.cert), "key": str(second.key)}]),
        "BRAID_LISTENERS_ENTRIES": json.dumps([entry]),
    }
    config = load(None, environment=variables)
    path = tmp_path / "kept.toml"
    path.write_text(as_toml(config))
    assert load(path, environment={}) == config


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[listeners]\namqps_port = 1\n", 2, "'amqps' speaks TLS and has no certificate"),
        (
            '[[listeners.entries]]\nname = "x"\nprotocol = "ws"\nport = 1\ntls = {}\n',
            1,
            "'x' speaks TLS and has no certificate",
        ),
        ('[tls]\ncert = "/none.pem"\n', 2, "/none.pem can't be read: No such file"),
        ('[tls]\nkey = "/none.key"\ncert = "CERT"\n', 2, "/none.key can't be read"),
        ('[tls]\ncert = "CERT"\n', 2, "has no private key"),
        ('[tls]\ncert = "KEY"\nkey = "KEY"\n', 2, "no certificate in PEM form"),
        ('[tls]\ncert = "CERT"\nkey = "OTHER"\n', 3, "is not that of the certificate"),
        ('[tls]\ncert = "OLD"\nkey = "OLDKEY"\n', 2, "expired on 20"),
        ('[tls]\ncert = "EARLY"\nkey = "EARLYKEY"\n', 2, "is not valid before"),
        ('[tls]\ncert = "CLIENT"\nkey = "CLIENTKEY"\n', 2, "not good for a server"),
        ('[tls]\ncert = "CERT"\nkey = "LOCKED"\n', 3, "has a password"),
        ('[tls]\ncert = "CERT"\nkey = "KEY"\nciphers = "FOO"\n', 4, "no cipher in 'FOO'"),
        (
            '[tls]\ncert = "CERT"\nkey = "KEY"\nclient_certs = "required"\n',
            4,
            "no authority is known",
        ),
        (
            '[tls]\ncert = "CERT"\nkey = "KEY"\nclient_certs = "optional"\nca = "KEY"\n',
            5,
            "as a list of certificates",
        ),
        (
            '[tls]\ncert = "CERT"\nkey = "KEY"\nclient_certs = "optional"\nca = "CA"\ncrl = "CA"\n',
            6,
            "as a list of crls",
        ),
        (
            '[tls]\ncert = "CERT"\nkey = "KEY"\n'
            '[[tls.certificates]]\ncert = "OLD"\nkey = "OLDKEY"\n',
            5,
            "expired on",
        ),
        (
            '[tls]\ncert = "CERT"\nkey = "KEY"\n[[listeners.entries]]\nname = "x"\n'
            'protocol = "mqtt"\nport = 1\ntls = { client_certs = "required", ca = "/none.pem" }\n',
            8,
            "listeners.entries[0].tls.ca: /none.pem can't be read",
        ),
    ],
)
def test_what_is_wrong_and_where(
    authority: Authority, tmp_path: Path, text: str, line: int, words: str
) -> None:
    day = timedelta(days=1)
    pair, other = authority.for_node(), authority.for_node("b.example.com", file="other")
    old = authority.for_node(ends_in=-day, file="old")
    early = authority.issue("early", begins_in=day)
    client = authority.issue("client", client=True)
    locked = tmp_path / "locked.key"
    locked.write_bytes(_with_password(pair.key))
    for name, path in (
        ("OLDKEY", old.key),
        ("EARLYKEY", early.key),
        ("CLIENTKEY", client.key),
        ("CERT", pair.cert),
        ("OTHER", other.key),
        ("LOCKED", locked),
        ("OLD", old.cert),
        ("EARLY", early.cert),
        ("CLIENT", client.cert),
        ("KEY", pair.key),
        ("CA", authority.file),
    ):
        text = text.replace(f'"{name}"', f'"{path}"')
    (mistake,) = mistakes(tmp_path, text)
    number, _, said = mistake.partition(": ")
    assert number == str(line)
    assert words in said
    assert ". " in said  # what to do


def _with_password(key: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization

    found = serialization.load_pem_private_key(key.read_bytes(), None)
    return found.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


def test_keys_of_tables_inside_of_tables(tmp_path: Path) -> None:
    text = '[[listeners.entries]]\nname = "x"\nprotocol = "mqtt"\nport = 1\n'
    text += "tls = { client_cert = 1 }\n"
    (mistake,) = mistakes(tmp_path, text)
    assert "unknown key client_cert. Did you mean client_certs?" in mistake
    (mistake,) = mistakes(tmp_path, '[[tls.certificates]]\ncert = "x"\nkeys = "y"\n')
    assert "unknown key keys. Did you mean key?" in mistake


def test_what_a_listener_has_of_its_own() -> None:
    general = TlsSettings(cert="c", key="k", ca="a", crl="l", client_certs="optional")
    assert ListenerTls().over(general) == general
    own = ListenerTls(cert="own", ca="other").over(general)
    assert (own.cert, own.key, own.ca, own.crl) == ("own", "", "other", "")
    assert own.client_certs == "optional"


@pytest.mark.parametrize(
    ("user_from", "user"),
    [("cn", "the-last"), ("dns", "host"), ("email", "a@b"), ("uri", "urn:x")],
)
def test_the_user_of_a_certificate(user_from: str, user: str) -> None:
    names = (("DNS", "host"), ("DNS", "host2"), ("email", "a@b"), ("URI", "urn:x"))
    subject = ((("commonName", "first"),), (("commonName", "the-last"),))
    certificate = {"subject": subject, "subjectAltName": names}
    assert user_of(certificate, user_from) == user  # type: ignore[arg-type]
    assert user_of({}, user_from) is None  # type: ignore[arg-type]


def test_rsa_keys_and_one_file_for_both(authority: Authority, tmp_path: Path) -> None:
    pair = authority.for_node(key="rsa", file="rsa")
    both = tmp_path / "both.pem"
    both.write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    spec = ListenerSpec("x", "mqtt", "", 1, ("entries", 0), ListenerTls())
    found = make_context(spec, TlsSettings(cert=str(both)))
    assert [each.serial for each in found.certificates] == [pair.serial_text]
    assert found.ssl.minimum_version == ssl.TLSVersion.TLSv1_2
    assert found.ssl.options & ssl.OP_NO_RENEGOTIATION
