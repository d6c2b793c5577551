import pytest

from braidmq.gateways.mqtt.websocket import origin_allowed

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
