"""Who is not let in over TLS: a clear end of that connection, and a line that says why."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pika
import pytest
from pika.credentials import ExternalCredentials
from tls_node import TlsNode, tls_node

from braidmq.testing.certificates import Authority, Pair

WAIT_S = 60
CONNECT = b"\x10\x10\0\4MQTT\4\2\0\0\0\4stra"


def connected(secure: TlsNode, port: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("localhost", secure.ports[port]), WAIT_S)
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


def refused(secure: TlsNode, port: str, context: ssl.SSLContext) -> str:
    """How it ends: with TLS 1.3 a client learns of it when it reads."""
    try:
        with connected(secure, port, context) as link:
            link.sendall(CONNECT)
            link.recv(4)
    except ssl.SSLError as error:
        return str(error)
    raise AssertionError("it was let in")


def test_a_client_with_another_authority(secure: TlsNode, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(Authority(tmp_path).file))
    assert "CERTIFICATE_VERIFY_FAILED" in refused(secure, "amqps", context)
    secure.refused("amqps", "does not know the authority")


def test_a_client_that_wants_another_host(secure: TlsNode) -> None:
    with (
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
        socket.create_connection(("localhost", secure.ports["mqtts"]), WAIT_S) as plain,
    ):
        secure.context().wrap_socket(plain, server_hostname="broker.example.com")
    secure.refused("mqtts", "does not take the node's certificate")


def test_no_certificate_where_one_is_required(secure: TlsNode) -> None:
    assert "CERTIFICATE_REQUIRED" in refused(secure, "devices", secure.context()).upper()
    secure.refused("devices", "shows no certificate")


def test_a_revoked_certificate(secure: TlsNode) -> None:
    assert "REVOKED" in refused(secure, "devices", secure.context(secure.bob)).upper()
    secure.refused("devices", "certificate revoked")


def test_an_expired_certificate(secure: TlsNode) -> None:
    pair = secure.clients.issue(
        "dave", client=True, begins_in=timedelta(days=-2), ends_in=timedelta(days=-1)
    )
    assert "EXPIRED" in refused(secure, "mqtts", secure.context(pair)).upper()
    secure.refused("mqtts", "certificate has expired")


def test_a_certificate_of_another_authority(secure: TlsNode, tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("alice", client=True)
    assert "UNKNOWN_CA" in refused(secure, "https", secure.context(pair)).upper()
    secure.refused("https", "not accepted")


def test_old_versions(secure: TlsNode) -> None:
    context = secure.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.deprecated_call():
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.deprecated_call():
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert "PROTOCOL_VERSION" in refused(secure, "amqps", context).upper()
    secure.refused("amqps", "too old")
    context = secure.context(secure.alice)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert "PROTOCOL_VERSION" in refused(secure, "machines", context).upper()
    secure.refused("machines", "too old")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    """Of more lines than a few in a while the log says only how many there were."""
    with tls_node(tmp_path_factory.mktemp("tls")) as node:
        yield node
        assert node.live.complaints == []


@pytest.mark.parametrize(
    ("port", "said", "what"),
    [
        ("amqps", b"AMQP\0\0\x09\x01", "plain AMQP"),
        ("mqtts", CONNECT, "plain MQTT"),
        ("https", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", "plain HTTP"),
        ("wss", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "plain HTTP"),
        ("devices", b"\xff" * 20, "something else"),
    ],
)
def test_plain_bytes_on_a_port_of_tls(other: TlsNode, port: str, said: bytes, what: str) -> None:
    with socket.create_connection(("localhost", other.ports[port]), WAIT_S) as link:
        link.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(100) == b""
    other.refused(port, what)


@pytest.mark.parametrize("port", ["amqp_port", "mqtt_port", "ws_port", "http_port"])
def test_tls_on_a_plain_port(other: TlsNode, port: str) -> None:
    with (
        pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"),
        socket.create_connection(("localhost", other.live.ports[port]), WAIT_S) as link,
    ):
        other.context().wrap_socket(link, server_hostname="localhost")
    other.refused(f"listener={port.removesuffix('_port')} ", "the client speaks TLS")


def test_a_certificate_of_nobody(other: TlsNode) -> None:
    pair = other.clients.issue("nobody", client=True)
    with other.http(pair) as http:
        answer = http.get("/v1/connections")
        assert answer.status_code == 401
        assert "'nobody', who does not exist" in answer.json()["detail"]
    other.refused("login refused", "http", "nobody")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(external(other, pair))
    other.refused("login refused", "amqp", "nobody")
    with connected(other, "devices", other.context(pair)) as link:
        link.sendall(CONNECT)
        assert link.recv(4) == b"\x20\x02\x00\x04"
    other.refused("login refused", "mqtt", "nobody")


def test_a_certificate_does_not_stand_for_another_user(other: TlsNode) -> None:
    with connected(other, "devices", other.context(other.alice)) as link:
        link.sendall(b"\x10\x15\0\4MQTT\4\x82\0\0\0\4stra\0\3bob")
        assert link.recv(4) == b"\x20\x02\x00\x04"
    other.refused("login refused", "mqtt", "bob")


def test_guest_is_a_user_as_any(other: TlsNode) -> None:
    """Over loopback, as with a password."""
    pair = other.clients.issue("guest", client=True)
    pika.BlockingConnection(external(other, pair)).close()


def external(secure: TlsNode, pair: Pair) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        "localhost",
        secure.ports["amqps"],
        credentials=ExternalCredentials(),
        ssl_options=pika.SSLOptions(secure.context(pair), "localhost"),
    )
