"""amqp-tools from Debian: the C client library behind command lines."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from raw_client import RawClient, content_frames

from braidmq.testing.live import LiveNode
from braidmq.wire.amqp import methods as m

PACKAGE = "amqp-tools"
WAIT_S = 20


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    """Installed when missing and possible, skipped with the reason otherwise."""
    if shutil.which("amqp-publish"):
        return
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip(f"{PACKAGE} is missing, and only root on Debian can install it")
    command = ["apt-get", "install", "-y", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if done.returncode:
        pytest.skip(f"{' '.join(command)} failed: {done.stderr.strip().splitlines()[-1:]}")


@pytest.fixture
def watcher(node: LiveNode) -> Iterator[RawClient]:
    with RawClient(node) as client:
        yield client.open(1)


def run(node: LiveNode, tool: str, *arguments: str, code: int = 0, given: bytes = b"") -> bytes:
    url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}"
    done = subprocess.run(
        [tool, "--url", url, *arguments], input=given, capture_output=True, timeout=WAIT_S
    )
    assert done.returncode == code, done.stderr
    return done.stdout if not code else done.stderr


def test_declare_publish_get_delete(node: LiveNode, name: str) -> None:
    assert run(node, "amqp-declare-queue", "-d", "-q", name) == f"{name}\n".encode()
    for body in ("one", "two"):
        run(node, "amqp-publish", "-p", "-r", name, "-C", "text/plain", "-b", body)
    run(node, "amqp-publish", "-r", name, given=b"from standard input")
    assert run(node, "amqp-get", "-q", name) == b"one"
    assert run(node, "amqp-get", "-q", name) == b"two"
    assert run(node, "amqp-delete-queue", "-q", name) == b"1\n"
    assert b"404" in run(node, "amqp-get", "-q", name, code=1)


def test_get_on_an_empty_queue_exits_with_2(node: LiveNode, name: str) -> None:
    run(node, "amqp-declare-queue", "-q", name)
    assert run(node, "amqp-get", "-q", name, code=2) == b""


def test_consume_runs_a_command_for_each_message(
    node: LiveNode, watcher: RawClient, name: str
) -> None:
    watcher.declare(name)
    for body in (b"1 ", b"2 ", b"3 "):
        watcher.publish(1, name, body)
    assert watcher.declare(name, passive=True).message_count == 3
    out = run(node, "amqp-consume", "-q", name, "-c", "3", "-p", "1", "cat")
    assert out == b"1 2 3 "
    assert watcher.declare(name, passive=True).message_count == 0


def test_a_command_that_fails_leaves_its_message(
    node: LiveNode, watcher: RawClient, name: str
) -> None:
    watcher.declare(name)
    watcher.publish(1, name, b"try")
    # grep reads all it is given, then fails: amqp-consume dies of SIGPIPE when a command does not.
    run(node, "amqp-consume", "-q", name, "-c", "1", "grep", "nowhere in it")
    watcher.ask(1, m.BasicGet(name), m.BasicGetOk)
    assert watcher.content()[1] == b"try"


def test_consume_declares_and_binds_its_own_queue(
    node: LiveNode, watcher: RawClient, name: str
) -> None:
    watcher.ask(1, m.ExchangeDeclare(name, "topic"), m.ExchangeDeclareOk)
    url = f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}"
    command = ["amqp-consume", "--url", url, "-e", name, "-r", "a.#", "-c", "1", "cat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"Server provided queue name: amq.gen-")
        # The binding follows the name: publish until it is there.
        publish = m.BasicPublish(name, "a.b", mandatory=True)
        while not routed(watcher, publish):
            pass
        out, _ = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out) == (0, b"bound")


def routed(client: RawClient, publish: m.BasicPublish) -> bool:
    """Publish, and say whether it did not come back."""
    client.send(content_frames(1, publish, b"bound"))
    client.method(1, m.BasicQos())
    _, answer = client.next_method()
    if isinstance(answer, m.BasicReturn):
        client.content()
        client.expect(m.BasicQosOk)
        return False
    assert isinstance(answer, m.BasicQosOk)
    return True


def test_a_large_body(node: LiveNode, name: str) -> None:
    body = bytes(range(256)) * 4000
    run(node, "amqp-declare-queue", "-q", name)
    run(node, "amqp-publish", "-r", name, given=body)
    assert run(node, "amqp-get", "-q", name) == body


def test_a_wrong_password_is_refused(node: LiveNode) -> None:
    url = f"amqp://guest:wrong@127.0.0.1:{node.ports['amqp_port']}"
    done = subprocess.run(
        ["amqp-declare-queue", "--url", url, "-q", "x"], capture_output=True, timeout=WAIT_S
    )
    assert done.returncode == 1
    assert b"403" in done.stderr
