"""One POST against real servers: what is sent, and what counts as taken."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from webhook_server import receiving

from braidmq.alerts import webhook
from braidmq.alerts.webhook import origin_of, post
from braidmq.testing.live import free_ports

WAIT_S = 60


async def test_a_document_is_posted_as_json() -> None:
    with receiving() as server:
        assert await post(server.url, b'{"a": 1}', WAIT_S) is None
        headers, document = server.arrived.get_nowait()
    assert document == {"a": 1}
    assert headers["path"] == "/alerts?key=secret-of-the-hook"
    assert headers["Content-Type"] == "application/json"
    assert headers["Host"] == f"localhost:{server.server_port}"


@pytest.mark.parametrize("status", [302, 307, 404, 500])
async def test_another_answer_than_2xx_is_a_refusal_and_redirects_are_one(status: int) -> None:
    with receiving() as server, receiving() as elsewhere:
        server.statuses, server.location = [status], elsewhere.url
        assert await post(server.url, b"{}", WAIT_S) == f"the answer was {status}"
        assert elsewhere.arrived.empty()


async def test_who_does_not_answer_is_not_waited_for() -> None:
    with receiving() as server:
        server.answers.clear()
        assert await post(server.url, b"{}", 0.05) == "no answer within 0.05 s"


@pytest.mark.parametrize("host", ["localhost:{port}", "no-such-host.invalid", "a" * 70 + ".b"])
async def test_nobody_there(host: str) -> None:
    url = f"http://{host.format(port=free_ports(1)[0])}/"
    assert await post(url, b"{}", WAIT_S)


@pytest.mark.parametrize("said", [b"220 mail.example.com ready\r\n\r\n", b""])
async def test_what_is_no_http_is_a_refusal(said: bytes) -> None:
    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        assert await post(f"http://127.0.0.1:{port}/", b"{}", WAIT_S)


async def test_certificates_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(
        [*command.split(), *names, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
        timeout=WAIT_S,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with receiving(tls=tls) as server:
        webhook._tls.cache_clear()
        refused = await post(server.url, b"{}", WAIT_S)
        assert refused is not None
        assert "certificate" in refused
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        webhook._tls.cache_clear()
        assert await post(server.url, b'{"a": 1}', WAIT_S) is None
        assert server.next() == {"a": 1}
    webhook._tls.cache_clear()


def test_logs_do_not_have_the_secrets_of_a_url() -> None:
    assert origin_of("https://hooks.example.com:8443/T1/secret?key=x") == (
        "https://hooks.example.com:8443"
    )
