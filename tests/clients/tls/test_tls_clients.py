"""Real clients over TLS, with passwords and with certificates."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from threading import Event
from urllib.parse import urlencode

import aio_pika
import paho.mqtt.client as paho
import pika
import pytest
from npm import installed
from paho.mqtt.enums import CallbackAPIVersion
from pika.credentials import ExternalCredentials
from tls_node import ALICE, PASSWORD, TlsNode

import braidmq.client as braidmq

WAIT_S = 60
BODIES = [b"", b"x", b"y" * 20_000, b"z" * 3_000_000]
NODE = Path(__file__).parent.parent / "node"


def test_pika_with_a_password(secure: TlsNode, name: str) -> None:
    options = pika.SSLOptions(secure.context(), "localhost")
    with pika.BlockingConnection(
        pika.ConnectionParameters("localhost", secure.ports["amqps"], ssl_options=options)
    ) as connection:
        assert _round_trip(connection, name) == BODIES


def test_pika_with_a_certificate(secure: TlsNode, name: str) -> None:
    options = pika.SSLOptions(secure.context(secure.alice), "localhost")
    for port in ("amqps", "machines"):
        parameters = pika.ConnectionParameters(
            "localhost",
            secure.ports[port],
            credentials=ExternalCredentials(),
            ssl_options=options,
        )
        with pika.BlockingConnection(parameters) as connection:
            assert _round_trip(connection, name) == BODIES
            with secure.http() as http:
                listed = http.get("/v1/connections").json()
            assert [each["user"] for each in listed if each["listener"] == port] == [ALICE]


def _round_trip(connection: pika.BlockingConnection, name: str) -> list[bytes]:
    channel = connection.channel()
    channel.queue_declare(name)
    channel.confirm_delivery()
    for body in BODIES:
        channel.basic_publish("", name, body)
    got = []
    for _, _, body in channel.consume(name, auto_ack=True):
        got.append(body)
        if len(got) == len(BODIES):
            break
    channel.queue_delete(name)
    return got


def test_external_is_offered_to_who_shows_a_certificate(secure: TlsNode) -> None:
    parameters = pika.ConnectionParameters(
        "localhost",
        secure.ports["amqps"],
        credentials=ExternalCredentials(),
        ssl_options=pika.SSLOptions(secure.context(), "localhost"),
    )
    with pytest.raises(pika.exceptions.AuthenticationError, match="EXTERNAL"):
        pika.BlockingConnection(parameters)


async def test_aio_pika(secure: TlsNode, name: str) -> None:
    url = f"amqps://guest:guest@localhost:{secure.ports['amqps']}/?" + urlencode(
        {"cafile": str(secure.authority.file)}
    )
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(name, auto_delete=True)
        for body in BODIES:
            await channel.default_exchange.publish(aio_pika.Message(body), name)
        async with asyncio.timeout(WAIT_S), queue.iterator(no_ack=True) as messages:
            assert [(await anext(messages)).body for _ in BODIES] == BODIES


CELERY = """
import ssl, sys
from celery import Celery
port, ca = sys.argv[1:]
app = Celery("tls", broker=f"amqp://guest:guest@localhost:{port}//", backend="rpc://")
app.conf.broker_use_ssl = {"ca_certs": ca, "cert_reqs": ssl.CERT_REQUIRED}
app.conf.broker_use_ssl["server_hostname"] = "localhost"
app.conf.update(worker_hijack_root_logger=False)

@app.task
def double(number):
    return 2 * number

from celery.contrib.testing.worker import start_worker
with start_worker(app, perform_ping_check=False, pool="solo", loglevel="ERROR"):
    print([double.delay(number).get(timeout=30) for number in range(20)])
"""


def test_celery(secure: TlsNode) -> None:
    command = [sys.executable, "-c", CELERY, str(secure.ports["amqps"])]
    done = subprocess.run(
        [*command, str(secure.authority.file)], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stdout.splitlines()[-1:] == [str([2 * number for number in range(20)])], done.stderr


AMQPLIB = """
const amqp = require('amqplib');
const fs = require('fs');
const [, url, ca, cert, key, name] = process.argv;
(async () => {
  const options = { ca: [fs.readFileSync(ca)] };
  if (cert) {
    options.cert = fs.readFileSync(cert);
    options.key = fs.readFileSync(key);
    options.credentials = amqp.credentials.external();
  }
  const connection = await amqp.connect(url, options);
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue(name);
  for (const size of [0, 1, 20000, 3000000]) channel.sendToQueue(name, Buffer.alloc(size));
  await channel.waitForConfirms();
  const sizes = [];
  await new Promise((resolve) => channel.consume(name, (message) => {
    if (message) sizes.push(message.content.length);
    if (sizes.length === 4) resolve();
  }, { noAck: true }));
  await channel.deleteQueue(name);
  await connection.close();
  console.log(JSON.stringify(sizes));
})();
"""


@pytest.mark.parametrize("with_certificate", [False, True])
def test_amqplib(secure: TlsNode, name: str, with_certificate: bool) -> None:
    url = f"amqps://localhost:{secure.ports['amqps']}"
    pair = [str(secure.alice.cert), str(secure.alice.key)] if with_certificate else ["", ""]
    done = subprocess.run(
        ["node", "-e", AMQPLIB, url, str(secure.authority.file), *pair, name],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=os.environ | {"NODE_PATH": str(installed(NODE))},
    )
    assert json.loads(done.stdout or "[]") == [0, 1, 20_000, 3_000_000], done.stderr


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
@pytest.mark.parametrize("how", ["password", "certificate", "name and certificate"])
def test_paho(secure: TlsNode, name: str, transport: str, how: str) -> None:
    pair = None if how == "password" else secure.alice
    client = paho.Client(CallbackAPIVersion.VERSION2, transport=transport)  # type: ignore[arg-type]
    client.tls_set_context(secure.context(pair))
    if how == "password":
        client.username_pw_set(ALICE, PASSWORD)
    elif how == "name and certificate":
        client.username_pw_set(ALICE)
    subscribed, whole = Event(), Event()
    got: list[bytes] = []

    def on_message(_: object, __: object, message: paho.MQTTMessage) -> None:
        got.append(message.payload)
        if len(got) == len(BODIES):
            whole.set()

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_connect = lambda *_: client.subscribe(f"{name}/#", 1)
    client.connect("localhost", secure.ports["mqtts" if transport == "tcp" else "wss"])
    client.loop_start()
    try:
        assert subscribed.wait(WAIT_S)
        for body in BODIES:
            client.publish(f"{name}/x", body, 1)
        assert whole.wait(WAIT_S)
        assert got == BODIES
    finally:
        client.disconnect()
        client.loop_stop()


MQTTJS = """
const mqtt = require('mqtt');
const fs = require('fs');
const [, url, ca, name] = process.argv;
(async () => {
  const client = await mqtt.connectAsync(url, { ca: [fs.readFileSync(ca)] });
  await client.subscribeAsync(name, { qos: 1 });
  const got = new Promise((resolve) => client.on('message', (_, payload) => resolve(payload)));
  await client.publishAsync(name, Buffer.alloc(1000000), { qos: 1 });
  console.log((await got).length);
  await client.endAsync();
})();
"""


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
def test_mqttjs(secure: TlsNode, name: str, scheme: str) -> None:
    url = f"{scheme}://localhost:{secure.ports[scheme]}"
    done = subprocess.run(
        ["node", "-e", MQTTJS, url, str(secure.authority.file), name],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=os.environ | {"NODE_PATH": str(installed(NODE))},
    )
    assert done.stdout == "1000000\n", done.stderr


@pytest.mark.skipif(not shutil.which("mosquitto_pub"), reason="mosquitto-clients are needed")
def test_mosquitto_tools_with_a_certificate(secure: TlsNode, name: str) -> None:
    where = ["-h", "localhost", "-p", str(secure.ports["devices"])]
    trust = ["--cafile", str(secure.authority.file)]
    shown = ["--cert", str(secure.alice.cert), "--key", str(secure.alice.key)]
    pub = ["mosquitto_pub", *where, *trust, *shown, "-t", name, "-q", "1", "-r", "-m", "hello"]
    assert subprocess.run(pub, timeout=WAIT_S).returncode == 0
    sub = ["mosquitto_sub", *where, *trust, *shown, "-t", name, "-C", "1", "-W", "20"]
    assert subprocess.run(sub, capture_output=True, timeout=WAIT_S).stdout == b"hello\n"


def test_curl(secure: TlsNode) -> None:
    url = f"https://localhost:{secure.ports['https']}"
    trust = ["curl", "-sS", "--cacert", str(secure.authority.file)]
    shown = ["--cert", str(secure.alice.cert), "--key", str(secure.alice.key)]
    health = subprocess.run([*trust, f"{url}/health"], capture_output=True, timeout=WAIT_S)
    assert json.loads(health.stdout)["status"] == "ok"
    listed = [*trust, *shown, f"{url}/v1/connections"]
    assert json.loads(subprocess.run(listed, capture_output=True, timeout=WAIT_S).stdout) == []
    nobody = subprocess.run([*trust, f"{url}/v1/connections"], capture_output=True, timeout=WAIT_S)
    assert json.loads(nobody.stdout)["status"] == 401


def test_a_certificate_is_its_users_and_no_more(secure: TlsNode) -> None:
    with secure.http(secure.alice) as http:
        assert http.get("/v1/connections").status_code == 200
        assert http.get("/v1/users").status_code == 403
        # Who gives credentials is who they say.
        assert http.get("/v1/users", auth=("guest", "guest")).status_code == 200


@pytest.mark.parametrize("with_certificate", [False, True])
async def test_our_client(secure: TlsNode, name: str, with_certificate: bool) -> None:
    given = {"ca": secure.authority.file, "http": secure.ports["https"]}
    login = "guest:guest@"
    if with_certificate:
        given |= {"cert": secure.alice.cert, "key": secure.alice.key}
        login = ""
    url = f"amqps://{login}localhost:{secure.ports['amqps']}/?{urlencode(given)}"
    async with braidmq.connect(url) as broker, asyncio.timeout(WAIT_S):
        await broker.admin.create_topic(name)
        async with broker.producer() as producer:
            for number in range(1000):
                await producer.send(name, b"%d" % number)
        found = [int(bytes(each.value)) async for each in broker.read(name)]
        assert sorted(found) == list(range(1000))


def test_the_command_line(secure: TlsNode, name: str) -> None:
    braid = [sys.executable, "-m", "braidmq.cli", "--ca", str(secure.authority.file)]
    https, amqps = str(secure.ports["https"]), str(secure.ports["amqps"])
    where = ["--url", f"https://localhost:{https}", "--amqp-port", amqps]
    doctor = subprocess.run(
        [*braid, "doctor", "--json", *where], capture_output=True, text=True, timeout=WAIT_S
    )
    found = {each["check"]: each for each in json.loads(doctor.stdout)}
    assert found["amqp"]["verdict"] == "ok", doctor.stdout
    assert found["certificate"]["verdict"] == "ok"
    assert secure.pair.serial_text in found["certificate"]["finding"]
    unknown = [sys.executable, "-m", "braidmq.cli", "topics", "list", *where[:2]]
    done = subprocess.run(unknown, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    assert "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_a_user_who_is_deleted_leaves_the_connection(secure: TlsNode) -> None:
    pair = secure.clients.issue("carol", client=True)
    with secure.http() as http:
        http.put("/v1/users/carol", json={"password": "secret of carol"}).raise_for_status()
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        http.put("/v1/permissions/%2F/carol", json=everything).raise_for_status()
        parameters = pika.ConnectionParameters(
            "localhost",
            secure.ports["amqps"],
            credentials=ExternalCredentials(),
            ssl_options=pika.SSLOptions(secure.context(pair), "localhost"),
        )
        connection = pika.BlockingConnection(parameters)
        http.delete("/v1/users/carol").raise_for_status()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            connection.process_data_events(WAIT_S)
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(parameters)


@pytest.mark.parametrize(
    ("port", "protocol", "chosen"),
    [("mqtts", "mqtt", "mqtt"), ("https", "http/1.1", "http/1.1"), ("amqps", "mqtt", None)],
)
def test_alpn(secure: TlsNode, port: str, protocol: str, chosen: str | None) -> None:
    context = secure.context()
    context.set_alpn_protocols([protocol])
    with _connected(secure, port, context) as link:
        assert link.selected_alpn_protocol() == chosen


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("port", ["amqps", "mqtts", "wss", "https"])
def test_versions_ciphers_and_resumption(
    secure: TlsNode, port: str, version: ssl.TLSVersion
) -> None:
    context = secure.context()
    context.minimum_version = context.maximum_version = version
    session = None
    for is_resumed in (False, True):
        with _connected(secure, port, context, session) as link:
            assert link.session_reused == is_resumed
            cipher, protocol, bits = link.cipher() or ("", "", 0)
            assert protocol == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
            assert any(each in cipher for each in ("GCM", "CHACHA20"))
            assert protocol == "TLSv1.3" or cipher.startswith("ECDHE")
            assert bits >= 128
            assert link.compression() is None
            link.sendall(HELLO[port])
            assert link.recv(4)
            session = link.session


HELLO = {
    "amqps": b"AMQP\0\0\x09\x01",
    "mqtts": b"\x10\x10\0\4MQTT\4\2\0\0\0\4resu",
    "wss": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "https": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def _connected(
    secure: TlsNode,
    port: str,
    context: ssl.SSLContext,
    session: ssl.SSLSession | None = None,
) -> ssl.SSLSocket:
    plain = socket.create_connection(("localhost", secure.ports[port]), WAIT_S)
    return context.wrap_socket(plain, server_hostname="localhost", session=session)


def test_metrics_and_listeners(secure: TlsNode) -> None:
    with secure.http() as http:
        text = http.get("/metrics").text
        for name in secure.ports:
            label = f'listener="{name}",serial="{secure.pair.serial_text}",subject='
            (line,) = [each for each in text.splitlines() if label in each]
            assert 360 * 86_400 < float(line.rpartition(" ")[2]) <= 365 * 86_400
        assert 'braid_tls_handshakes_total{listener="https"}' in text
        listed = {each["name"]: each for each in http.get("/v1/listeners").json()}
        assert not listed["http"]["tls"]
        assert listed["devices"]["url"].startswith("mqtts://")
        (shown,) = listed["devices"]["certificates"]
        assert shown["serial"] == secure.pair.serial_text
