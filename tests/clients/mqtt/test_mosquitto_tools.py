"""mosquitto_pub, mosquitto_sub and mosquitto_rr from Debian."""

import os
import shutil
import subprocess

import pytest
from raw_mqtt import RawMqtt

from braidmq.testing.live import LiveNode

PACKAGE = "mosquitto-clients"
WAIT_S = 20

versions = pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    """Installed when missing and possible, skipped with the reason otherwise."""
    if shutil.which("mosquitto_pub"):
        return
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip(f"{PACKAGE} is missing, and only root on Debian can install it")
    command = ["apt-get", "install", "-y", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if done.returncode:
        pytest.skip(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")


def run(node: LiveNode, tool: str, *arguments: str, given: bytes = b"", code: int = 0) -> bytes:
    command = [tool, "-p", str(node.ports["mqtt_port"]), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=WAIT_S)
    assert done.returncode == code, done.stderr
    return done.stdout if not code else done.stderr


@versions
@pytest.mark.parametrize("qos", ["1", "2"])
def test_messages_wait_for_a_session(node: LiveNode, name: str, version: str, qos: str) -> None:
    keep = ["-c", "-i", name, "-V", version]
    if version == "mqttv5":
        keep += ["-x", "3600"]
    run(node, "mosquitto_sub", *keep, "-t", f"{name}/#", "-q", qos, "-E")
    lines = b"".join(b"line %d\n" % number for number in range(100))
    run(node, "mosquitto_pub", "-V", version, "-t", f"{name}/x", "-q", qos, "-l", given=lines)
    got = run(node, "mosquitto_sub", *keep, "-t", f"{name}/#", "-q", qos, "-C", "100", "-W", "10")
    assert got == lines


@versions
def test_retained(node: LiveNode, name: str, version: str) -> None:
    run(node, "mosquitto_pub", "-V", version, "-t", f"{name}/a/b", "-r", "-m", "kept", "-q", "1")
    got = run(
        node,
        "mosquitto_sub",
        "-V",
        version,
        "-t",
        f"{name}/+/b",
        "-C",
        "1",
        "-W",
        "10",
        "-F",
        "%r %p",
    )
    assert got == b"1 kept\n"


def test_wrong_credentials(node: LiveNode, name: str) -> None:
    error = run(node, "mosquitto_pub", "-u", "guest", "-P", "wrong", "-t", name, "-m", "x", code=4)
    assert b"bad user name or password" in error.lower()


@versions
def test_request_and_response(node: LiveNode, name: str, version: str) -> None:
    arguments = ["-V", version, "-t", f"{name}/q", "-e", f"{name}/a", "-m", "what", "-W", "15"]
    command = ["mosquitto_rr", "-p", str(node.ports["mqtt_port"]), *arguments]
    with RawMqtt(node) as answering:
        answering.connect()
        answering.subscribe(f"{name}/q")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
            question = answering.message()
            assert question.payload == b"what"
            if version == "mqttv5":
                assert question.properties.response_topic == f"{name}/a"
            answering.publish(f"{name}/a", b"that")
            assert asking.communicate(timeout=WAIT_S)[0] == "that\n"
    assert asking.returncode == 0
