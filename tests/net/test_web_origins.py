"""Which Host and which Origin a node answers to."""

import socket

import pytest

from braidmq.net.web_origins import WebCallers, host_of, origin_allowed

RULES = ["https://app.example.com", "*.example.org"]


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("https://app.example.com", True),
        ("HTTPS://APP.example.com", True),
        ("https://app.example.com:8443", False),
        ("http://app.example.com", False),
        ("https://a.example.org", True),
        ("http://a.b.example.org:81", True),
        ("https://example.org", False),
        ("https://evilexample.org", False),
        ("https://a.example.org.evil.net", False),
        ("http://localhost:3000", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:80", True),
        ("http://localhost.evil.net", False),
        ("null", False),
        ("", False),
    ],
)
def test_origins(origin: str, allowed: bool) -> None:
    assert origin_allowed(origin, RULES) == allowed


def test_a_star_allows_everybody() -> None:
    assert origin_allowed("https://anybody.example", ["*"])


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8080", True),
        ("localhost.", True),
        ("127.0.0.1:8080", True),
        ("127.8.8.8", True),
        ("[::1]:8080", True),
        ("10.0.0.5:8080", True),
        ("[::ffff:10.0.0.5]", True),
        (f"{socket.gethostname()}:8080", True),
        ("broker.example.com", True),
        ("a.example.org:81", True),
        ("10.0.0.6", False),
        ("example.org", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:127.0.0.1", False),
        ("user@evil.example", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_hosts(host: str, allowed: bool) -> None:
    web = WebCallers(["0.0.0.0"], ["Broker.example.com", "*.example.org"])
    assert web.host_allowed(host_of(host), "10.0.0.5") == allowed


def test_a_star_is_any_host() -> None:
    assert WebCallers(["0.0.0.0"], ["*"]).host_allowed("evil.example", "10.0.0.5")
