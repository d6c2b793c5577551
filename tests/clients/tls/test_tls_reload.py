"""Certificates that change while a node runs: who is connected stays, who comes sees the new."""

import os
import signal
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from tls_node import TlsNode, tls_node

from braidmq.testing.live import live_node

WAIT_S = 60
ROUNDS = int(os.environ.get("TLS_RELOADS", "5"))
CONNECT = b"\x10\x0c\0\4MQTT\4\2\0\0\0\0"
PING, PONG = b"\xc0\0", b"\xd0\0"


def connected(node: TlsNode, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(("localhost", node.ports["mqtts"]), WAIT_S)
    return context.wrap_socket(plain, server_hostname="localhost")


def serial_shown(node: TlsNode) -> str:
    with connected(node, node.context()) as link:
        found = link.getpeercert() or {}
    return str(found["serialNumber"])


def test_replaced_under_load(tmp_path: Path) -> None:
    """``TLS_RELOADS=100`` has it done as often."""
    with tls_node(tmp_path, watch_s=0.05) as node:
        stop = threading.Event()
        failures: list[BaseException] = []
        counts = [0, 0]

        def ping_on() -> None:
            """A connection that is there all the time."""
            try:
                with connected(node, node.context()) as link:
                    link.sendall(CONNECT)
                    assert link.recv(4) == b"\x20\2\0\0"
                    while not stop.is_set():
                        link.sendall(PING)
                        assert link.recv(2) == PONG
                        counts[0] += 1
            except BaseException as error:
                failures.append(error)

        def connect_on() -> None:
            try:
                context = node.context()
                while not stop.is_set():
                    with connected(node, context) as link:
                        link.sendall(CONNECT)
                        assert link.recv(4) == b"\x20\2\0\0"
                    counts[1] += 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=each) for each in (ping_on, connect_on)]
        for each in threads:
            each.start()
        try:
            for number in range(ROUNDS):
                pair = node.authority.for_node()
                if number % 2:
                    node.live.process.send_signal(signal.SIGHUP)
                node.live.wait_for_log("new certificate", "mqtts", pair.serial_text)
                # The line of each listener is said once all of them have it.
                assert serial_shown(node) == pair.serial_text
        finally:
            stop.set()
            for each in threads:
                each.join(WAIT_S)
        assert not failures
        assert min(counts) > 0
        assert node.live.stop() == 0


def test_what_can_t_be_used_changes_nothing(tmp_path: Path) -> None:
    with tls_node(tmp_path) as node:
        before = node.pair.serial_text
        node.pair.key.write_text("no key")
        node.live.process.send_signal(signal.SIGHUP)
        node.live.wait_for_log("error", "not reloaded", "no private key")
        assert serial_shown(node) == before
        with node.http() as http:
            assert "\nbraid_config_reload_failures_total 1.0" in http.get("/metrics").text
        pair = node.authority.for_node()
        node.live.process.send_signal(signal.SIGHUP)
        node.live.wait_for_log("certificates reloaded")
        assert serial_shown(node) == pair.serial_text


def test_a_certificate_that_is_revoked_later(tmp_path: Path) -> None:
    """Also for who has a session to resume, and would not show its certificate again."""
    with tls_node(tmp_path, watch_s=0.05) as node:
        context = node.context(node.alice)
        with connected(node, context) as link:
            link.sendall(CONNECT)
            assert link.recv(4) == b"\x20\2\0\0"
            session = link.session
            node.clients.revoke(node.bob, node.alice)
            node.live.wait_for_log("certificates reloaded")
            link.sendall(PING)
            assert link.recv(2) == PONG
            with pytest.raises(ssl.SSLError, match=r"(?i)revoked"):
                resume(node, context, session)


def resume(node: TlsNode, context: ssl.SSLContext, session: ssl.SSLSession | None) -> None:
    plain = socket.create_connection(("localhost", node.ports["mqtts"]), WAIT_S)
    with context.wrap_socket(plain, server_hostname="localhost", session=session) as link:
        link.sendall(CONNECT)
        link.recv(4)


def test_names_choose_the_certificate(tmp_path: Path) -> None:
    with tls_node(tmp_path) as node:
        pair = node.authority.for_node("a.example.com", "*.example.org", file="second")
        config = tmp_path / "braid.toml"
        more = f'\n[[tls.certificates]]\ncert = "{pair.cert}"\nkey = "{pair.key}"\n'
        config.write_text(config.read_text() + more)
        assert node.live.stop() == 0
        with live_node(node.directory / "data", config=config) as live:
            shown = {}
            for name in ("localhost", "a.example.com", "x.example.org", "other.example.com"):
                context = node.context()
                context.check_hostname = False
                address = ("localhost", node.ports["mqtts"])
                with (
                    socket.create_connection(address, WAIT_S) as plain,
                    context.wrap_socket(plain, server_hostname=name) as link,
                ):
                    found = x509.load_der_x509_certificate(link.getpeercert(True) or b"")
                    shown[name] = found.serial_number
            assert live.complaints == []
        first, second = node.pair.serial, pair.serial
        assert list(shown.values()) == [first, second, second, first]
