"""A real etcd, of one member or several, in real processes: Debian's package ``etcd-server``."""

import ipaddress
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from braidmq.testing.certificates import Authority
from braidmq.testing.live import START_S_MAX, STOP_S_MAX, free_ports

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


def has_etcd() -> bool:
    return shutil.which("etcd") is not None


@dataclass
class EtcdMember:
    command: list[str]
    url: str
    log: Path
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def pause(self) -> None:
        self._running().send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_S_MAX)
            self.process = None

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self.process is not None
        return self.process


@dataclass
class LiveEtcd:
    members: list[EtcdMember] = field(default_factory=list)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(each.url for each in self.members)

    def wait_until_it_answers(self, context: ssl.SSLContext | None) -> None:
        end = time.monotonic() + START_S_MAX
        for member in self.members:
            while not _is_healthy(member.url, context):
                if time.monotonic() > end:
                    said = member.log.read_text()[-2000:]
                    raise AssertionError(f"no etcd at {member.url}: {said}")
                time.sleep(0.02)  # another process: nothing tells when it is there


def _is_healthy(url: str, context: ssl.SSLContext | None) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1, context=context) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


@contextmanager
def live_etcd(
    root: Path, members: int = 1, authority: Authority | None = None
) -> Iterator[LiveEtcd]:
    """With an authority it speaks TLS, and clients have to show a certificate, too."""
    context = None
    options_of_tls: dict[str, str] = {}
    if authority is not None:
        # etcd's gateway is a client of its own server: one certificate for both.
        pair = authority.issue("etcd", alternatives=[LOOPBACK], client=None)
        context = ssl.create_default_context(cafile=authority.file)
        context.load_cert_chain(pair.cert, pair.key)
        options_of_tls = {
            "cert-file": str(pair.cert),
            "key-file": str(pair.key),
            "trusted-ca-file": str(authority.file),
            "client-cert-auth": "true",
        }
    scheme = "http" if authority is None else "https"
    ports = free_ports(2 * members)
    names = [f"etcd-{number}" for number in range(members)]
    peers = dict(zip(names, (f"http://127.0.0.1:{port}" for port in ports[::2]), strict=True))
    cluster = ",".join(f"{name}={url}" for name, url in peers.items())
    found = LiveEtcd()
    for name, port in zip(names, ports[1::2], strict=True):
        url = f"{scheme}://127.0.0.1:{port}"
        options = {
            "name": name,
            "data-dir": str(root / name),
            "listen-client-urls": url,
            "advertise-client-urls": url,
            "listen-peer-urls": peers[name],
            "initial-advertise-peer-urls": peers[name],
            "initial-cluster": cluster,
            "heartbeat-interval": "100",
            "election-timeout": "1000",
            **options_of_tls,
        }
        command = ["etcd", *(f"--{option}={value}" for option, value in options.items())]
        found.members.append(EtcdMember(command, url, root / f"{name}.log"))
    try:
        for member in found.members:
            member.start()
        found.wait_until_it_answers(context)
        yield found
    finally:
        for member in found.members:
            member.kill()
