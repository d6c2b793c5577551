"""Records that are damaged, cut, out of place or far too many: only that connection notices."""

import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tls_node import TlsNode

from braidmq.loadgen.broker_process import BrokerProcess
from braidmq.model.limits import KIB, MIB
from braidmq.wire.mqtt.text import write_variable

WAIT_S = 60
CONNECT, CONNACK = b"\x10\x0c\0\4MQTT\4\2\0\0\0\0", b"\x20\2\0\0"
PING, PONG = b"\xc0\0", b"\xd0\0"
OPENSSL = shutil.which("openssl")
HALVES = 200


class Raw:
    """A client of TLS whose records a test may change on their way."""

    def __init__(self, secure: TlsNode, port: str) -> None:
        self.socket = socket.create_connection(("localhost", secure.ports[port]), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = secure.context().wrap_bio(
            self.incoming, self.outgoing, server_hostname="localhost"
        )

    def shake(self, send: Callable[[bytes], None]) -> None:
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                send(self.outgoing.read())
                self.receive()
        send(self.outgoing.read())

    def receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionResetError
        self.incoming.write(data)

    def read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            try:
                got += self.tls.read(size - len(got))
            except ssl.SSLWantReadError:
                self.receive()
        return got

    def records(self, *writes: bytes) -> bytes:
        for each in writes:
            self.tls.write(each)
        return self.outgoing.read()

    def log_in(self) -> None:
        self.shake(self.socket.sendall)
        self.socket.sendall(self.records(CONNECT))
        assert self.read(4) == CONNACK


@contextlib.contextmanager
def raw(secure: TlsNode, port: str = "mqtts") -> Iterator[Raw]:
    client = Raw(secure, port)
    with client.socket:
        yield client


@pytest.fixture(scope="module")
def probe(secure: TlsNode) -> Iterator[Raw]:
    """Somebody else, who is there all the time."""
    with raw(secure) as client:
        client.log_in()
        yield client


def served(probe: Raw) -> None:
    probe.socket.sendall(probe.records(PING))
    assert probe.read(2) == PONG


def publish(topic: bytes, body: bytes) -> bytes:
    rest = len(topic).to_bytes(2, "big") + topic + b"\0\1" + body
    return b"\x32" + write_variable(len(rest)) + rest


def test_records_of_one_byte(secure: TlsNode, probe: Raw, name: str) -> None:
    with raw(secure) as client:
        client.log_in()
        packet = publish(name.encode(), b"x" * 3000)
        client.socket.sendall(client.records(*(bytes([each]) for each in packet)))
        assert client.read(4) == b"\x40\2\0\1"
    served(probe)


def test_a_record_of_16_kib_cut_at_every_byte(secure: TlsNode, probe: Raw, name: str) -> None:
    with raw(secure) as client:
        client.log_in()
        topic = name.encode()
        room = 16 * KIB - len(publish(topic, b"x" * 16_000)) + 16_000
        record = client.records(publish(topic, b"x" * room))
        for number in range(len(record)):
            client.socket.sendall(record[number : number + 1])
            if number % 4096 == 0:
                served(probe)
        assert client.read(4) == b"\x40\2\0\1"


def test_records_that_are_not_whole_take_no_more_than_they_are(
    secure: TlsNode, probe: Raw, name: str
) -> None:
    broker = BrokerProcess(secure.live.process.pid)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(raw(secure)) for _ in range(HALVES)]
        for client in clients:
            client.log_in()
        before = broker.rss_bytes()
        lasts = []
        for client in clients:
            record = client.records(publish(name.encode(), b"x" * 16_000))
            client.socket.sendall(record[:-1])
            lasts.append(record[-1:])
        served(probe)
        assert broker.rss_bytes() - before < HALVES * 24 * KIB + 20 * MIB
        for client, last in zip(clients, lasts, strict=True):
            client.socket.sendall(last)
            assert client.read(4) == b"\x40\2\0\1"


@pytest.mark.parametrize("said", [b"plain text", b"\x17\3\3\xff\xff", b"\x17\3\3\0\0\x18\3\3\0\0"])
def test_what_is_no_record_ends_it_at_once(secure: TlsNode, probe: Raw, said: bytes) -> None:
    """Nobody waits for the rest of it."""
    with raw(secure) as client:
        client.log_in()
        client.socket.sendall(said)
        with contextlib.suppress(ConnectionError):
            while client.socket.recv(1 << 16):
                pass
    served(probe)


def mutants() -> st.SearchStrategy[Callable[[bytes], bytes]]:
    """What may become of bytes on their way."""

    def flip(data: bytes, at: int, mask: int) -> bytes:
        at %= max(len(data), 1)
        return data[:at] + bytes(each ^ mask for each in data[at : at + 1]) + data[at + 1 :]

    def insert(data: bytes, at: int, what: bytes) -> bytes:
        at %= len(data) + 1
        return data[:at] + what + data[at:]

    at, some = st.integers(0, 1 << 16), st.binary(min_size=1, max_size=64)
    return st.one_of(
        st.builds(lambda at, mask: lambda data: flip(data, at, mask), at, st.integers(1, 255)),
        # The head of its first record, where lengths are.
        st.builds(lambda at, mask: lambda d: flip(d, at, mask), st.integers(0, 10), st.just(255)),
        st.builds(lambda at, what: lambda data: insert(data, at, what), at, some),
        st.builds(lambda at: lambda data: data[: at % (len(data) + 1)], at),
        st.just(lambda data: data + data),
        st.builds(lambda what: lambda _: what, some),
    )


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    port=st.sampled_from(["amqps", "mqtts", "wss", "https"]),
    change=mutants(),
    flight=st.integers(0, 2),
    body=st.binary(max_size=2000),
)
def test_whatever_becomes_of_records(
    secure: TlsNode,
    probe: Raw,
    port: str,
    change: Callable[[bytes], bytes],
    flight: int,
    body: bytes,
) -> None:
    """``flight`` 0 and 1 are the handshake's, 2 is what is said behind it."""
    left = flight
    with raw(secure, port) as client:

        def send(data: bytes) -> None:
            nonlocal left
            client.socket.sendall(change(data) if left == 0 else data)
            if left == 0:
                # What is too short now would be waited for.
                client.socket.shutdown(socket.SHUT_WR)
            left -= 1

        with contextlib.suppress(OSError, ssl.SSLError):
            client.shake(send)
            send(client.records(body or b"x", body * 3 or b"y"))
        with contextlib.suppress(OSError):
            while client.socket.recv(1 << 16):
                pass
    served(probe)


@contextlib.contextmanager
def s_client(secure: TlsNode, version: str) -> Iterator[subprocess.Popen[bytes]]:
    """``ssl`` can't ask for new keys; this does when it reads R or K."""
    assert OPENSSL is not None
    command = [OPENSSL, "s_client", "-connect", f"localhost:{secure.ports['mqtts']}", version]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, bufsize=0, **pipes) as process:
        try:
            said(process, CONNECT, CONNACK)
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[bytes]", what: bytes, expected: bytes) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(what)
    got = b""
    while expected not in got:
        more = process.stdout.read(1 << 16)
        assert more, got
        got += more


needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="openssl is needed")


@needs_openssl
def test_a_handshake_in_the_middle_is_refused(secure: TlsNode, probe: Raw) -> None:
    with s_client(secure, "-tls1_2") as process:
        said(process, b"R\n", b"no renegotiation")
    served(probe)


@needs_openssl
def test_new_keys_in_the_middle(secure: TlsNode, probe: Raw) -> None:
    with s_client(secure, "-tls1_3") as process:
        for _ in range(20):
            said(process, b"K\n", b"KEYUPDATE")
            said(process, PING, PONG)
    served(probe)
