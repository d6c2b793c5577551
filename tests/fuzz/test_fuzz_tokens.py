"""Hostile tokens at a live node, over every protocol: nothing but that connection ends.

A bounded number; ``python -m tests.fuzz.test_fuzz_tokens 100000`` goes on.
"""

import base64
import json
import random
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest
from tests.fuzz.watching import Found

from braidmq.testing.issuer import AUDIENCE, ISSUER, Issuer, served
from braidmq.testing.live import LiveNode, live_node
from braidmq.wire.mqtt.constants import Version
from braidmq.wire.mqtt.packets import Connect, encode
from braidmq.wire.mqtt.properties import Properties

COUNT = 400
BATCH = 50
CONFIG = """
[jwt]
jwks = "{url}"
issuer = "{issuer}"
audience = "{audience}"
"""
SCOPE = "configure:*/* write:*/* read:*/*"
WAIT_S = 20


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Hostile:
    """Texts that are nearly tokens."""

    def __init__(self, issuer: Issuer, own: str, rng: random.Random) -> None:
        self._issuer, self._own, self._rng = issuer, own, rng
        self._good = issuer.token("ann", SCOPE)
        self._stranger = Issuer("stranger")

    def next(self) -> str:
        makers = (
            self._mutated,
            self._headed,
            self._claimed,
            self._nested,
            self._huge,
            self._unknown,
            self._of_ours,
        )
        return self._rng.choice(makers)()

    def _mutated(self) -> str:
        text, rng = list(self._good), self._rng
        for _ in range(rng.randint(1, 20)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 3)] = rng.choice(["", ".", "=", "A", "-", "~", "eyJ"])
        return "".join(text)

    def _headed(self) -> str:
        _, body, signature = self._good.split(".")
        anything = ["none", "HS256", "RS256", None, [], {}, 5, "x" * 3000, "é\u0000"]
        head = {
            name: self._rng.choice(anything)
            for name in ("alg", "kid", "typ", "crit", "b64", "jwk", "jku", "x5u", "zip")
            if self._rng.random() < 0.6
        }
        return f"{b64(json.dumps(head).encode())}.{body}.{signature}"

    def _claimed(self) -> str:
        """With a signature that is right."""
        anything = [None, -1, 1e308, "x", [], {}, [[]] * 50, True, "a:b", "\n", "x" * 2000]
        claims: dict[str, Any] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "ann",
            "exp": time.time() + 60,
        }
        claims[self._rng.choice(["iss", "aud", "sub", "exp", "nbf"])] = self._rng.choice(anything)
        return self._issuer.signed(claims)

    def _nested(self) -> str:
        deep = b"[" * self._rng.choice([100, 2000, 5000])
        head = b'{"alg":"RS256","kid":"one","x":' if self._rng.random() < 0.5 else b""
        _, body, signature = self._good.split(".")
        return f"{b64(head + deep)}.{body}.{signature}"

    def _huge(self) -> str:
        return "eyJ" + "A" * self._rng.choice([8_000, 9_000, 11_000]) + ".A.A"

    def _unknown(self) -> str:
        self._stranger.kid = f"kid-{self._rng.random()}"
        return self._stranger.token("ann", SCOPE)

    def _of_ours(self) -> str:
        at = self._rng.randrange(len(self._own))
        return self._own[:at] + self._rng.choice("0f_z ") + self._own[at + 1 :]


def url_of(node: LiveNode, path: str) -> str:
    return node.http_url + path


def by_http(node: LiveNode, text: str) -> None:
    shown = text.encode("ascii", "replace").decode()
    shown = "".join(each if each.isprintable() else "?" for each in shown)
    request = urllib.request.Request(url_of(node, "/v1/topics"))
    request.add_header("Authorization", f"Bearer {shown}")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    if status not in (200, 400, 401, 403, 431):
        raise Found(f"{status} for {text!r}")


def by_amqp(node: LiveNode, text: str) -> None:
    credentials = pika.PlainCredentials("", text)
    parameters = pika.ConnectionParameters(
        "127.0.0.1", node.ports["amqp_port"], "/", credentials, socket_timeout=WAIT_S
    )
    with suppress(pika.exceptions.AMQPError):  # refused, as it should
        pika.BlockingConnection(parameters).close()


def by_mqtt(node: LiveNode, text: str, version: int, *, with_method: bool) -> None:
    data = text.encode("utf-8", "replace")
    connect = Connect(version, "fuzz", user_name="", password=data)
    if with_method:
        said = Properties(authentication_method="token", authentication_data=data)
        connect = Connect(version, "fuzz", properties=said)
    with socket.create_connection(("127.0.0.1", node.ports["mqtt_port"]), WAIT_S) as link:
        link.sendall(encode(connect, version))
        answer = link.recv(64)
        if answer and answer[0] not in (0x20, 0xE0):
            raise Found(f"{answer!r} for {text!r}")


def issued(node: LiveNode) -> str:
    request = urllib.request.Request(
        url_of(node, "/v1/tokens"), b"{}", {"content-type": "application/json"}
    )
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return str(json.load(answer)["token"])


def works(neighbour: Any, node: LiveNode, issuer: Issuer) -> None:
    """Somebody with a good token, all the while, and somebody new with one."""
    channel = neighbour.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.basic_publish("", queue, b"still here")
    found = channel.basic_get(queue, auto_ack=True)[2]
    channel.close()
    if found != b"still here":
        raise Found("the neighbour got something else")
    by_http(node, issuer.token("ann", SCOPE))


def run(node: LiveNode, issuer: Issuer, count: int, seed: int) -> None:
    rng = random.Random(seed)
    hostile = Hostile(issuer, issued(node), rng)
    neighbour = pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            node.ports["amqp_port"],
            "/",
            pika.PlainCredentials("", issuer.token("neighbour", SCOPE, lasts_s=86_400)),
        )
    )
    for number in range(count):
        text, way = hostile.next(), rng.randrange(5)
        if way == 0:
            by_http(node, text)
        elif way == 1:
            by_amqp(node, text)
        else:
            version = Version.V3_1_1 if way == 2 else Version.V5
            by_mqtt(node, text, version, with_method=way == 4)
        if number % BATCH == BATCH - 1:
            works(neighbour, node, issuer)
    neighbour.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_tokens_end_their_connection_and_nothing_else(tmp_path: Path, seed: int) -> None:
    fuzz(tmp_path, COUNT, seed)


def fuzz(directory: Path, count: int, seed: int) -> None:
    with served(Issuer()) as issuer:
        file = directory / "braid.toml"
        file.write_text(CONFIG.format(url=issuer.url, issuer=ISSUER, audience=AUDIENCE))
        with live_node(directory / "data", config=file) as node:
            run(node, issuer, count, seed)
            assert node.stop() == 0
            assert not node.complaints
            assert not any("Traceback" in line for line in node.lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        fuzz(Path(made), int(sys.argv[1]), random.randrange(1 << 30))
