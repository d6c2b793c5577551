"""A node with listeners of TLS, and what its clients need."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography import x509

from braidmq.testing.certificates import Authority, Pair
from braidmq.testing.live import LiveNode, free_ports, live_node

CONFIG = """
[tls]
cert = "{cert}"
key = "{key}"
ca = "{ca}"
crl = "{crl}"
client_certs = "optional"
watch_s = {watch_s}

[listeners]
amqps_port = {amqps}
mqtts_port = {mqtts}
wss_port = {wss}
https_port = {https}

[[listeners.entries]]
name = "devices"
protocol = "mqtt"
port = {devices}
tls = {{ client_certs = "required" }}

[[listeners.entries]]
name = "machines"
protocol = "amqp"
port = {machines}
tls = {{ client_certs = "required", min_version = "1.3", user_from = "uri" }}
"""
NAMES = ("amqps", "mqtts", "wss", "https", "devices", "machines")
ALICE = "alice"
PASSWORD = "a-pass-word-of-alice"


@dataclass
class TlsNode:
    live: LiveNode
    ports: dict[str, int]
    authority: Authority
    clients: Authority
    pair: Pair
    alice: Pair
    bob: Pair
    """Whose certificate is revoked."""
    directory: Path

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """What a client that knows the authority uses, and shows."""
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context

    def http(self, pair: Pair | None = None) -> httpx.Client:
        return httpx.Client(
            base_url=f"https://localhost:{self.ports['https']}",
            verify=self.context(pair),
            auth=None if pair else ("guest", "guest"),
        )

    def refused(self, *words: str) -> str:
        """The line that says why somebody was not let in."""
        return self.live.wait_for_log("warning", *words)


@contextmanager
def tls_node(directory: Path, watch_s: float = 0) -> Iterator[TlsNode]:
    authority, clients = Authority(directory), Authority(directory, "devices-ca")
    pair = authority.for_node()
    uri = [x509.UniformResourceIdentifier(ALICE)]
    alice = clients.issue(ALICE, client=True, alternatives=uri)
    bob = clients.issue("bob", client=True, alternatives=uri)
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    config = directory / "braid.toml"
    config.write_text(
        CONFIG.format(
            cert=pair.cert,
            key=pair.key,
            ca=clients.file,
            crl=clients.revoke(bob),
            watch_s=watch_s,
            **ports,
        )
    )
    with live_node(directory / "data", config=config) as node:
        found = TlsNode(node, ports, authority, clients, pair, alice, bob, directory)
        with found.http() as http:
            for user in (ALICE, "bob"):
                http.put(f"/v1/users/{user}", json={"password": PASSWORD}).raise_for_status()
                everything = {"configure": ".*", "write": ".*", "read": ".*"}
                path = f"/v1/permissions/%2F/{user}"
                http.put(path, json=everything).raise_for_status()
        yield found
