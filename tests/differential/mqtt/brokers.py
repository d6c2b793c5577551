"""Both brokers, set up alike."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from braidmq.testing.live import free_ports, live_node

VERSION = "2.0.11"
"""Of the Mosquitto that was recorded: Debian 12."""
START_S_MAX = 20.0

MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
password_file {passwords}
max_packet_size 100000
max_inflight_messages 20
max_topic_alias 10
sys_interval 0
user root
log_dest file {log}
"""
BRAIDMQ = """\
[mqtt]
packet_bytes_max = 100000
receive_maximum = 20
topic_alias_maximum = 10
sys_interval_s = 0
"""


def mosquitto_program() -> str | None:
    return shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")


def mosquitto_version() -> str | None:
    """None when there is none."""
    program = mosquitto_program()
    if program is None:
        return None
    said = subprocess.run([program, "-h"], capture_output=True, text=True, check=False).stdout
    return said.split()[2] if said.startswith("mosquitto version ") else None


@contextmanager
def mosquitto(where: Path) -> Iterator[int]:
    """The port of one that is ready, with the user ``guest``."""
    program = mosquitto_program()
    assert program is not None, "Mosquitto is not installed"
    [port] = free_ports(1)
    passwords, config = where / "passwords", where / "mosquitto.conf"
    passwords.write_text("guest:guest\n")
    passwords.chmod(0o600)
    subprocess.run(["mosquitto_passwd", "-U", str(passwords)], check=True)
    config.write_text(MOSQUITTO.format(port=port, passwords=passwords, log=where / "log"))
    process = subprocess.Popen([program, "-c", str(config)])
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, "Mosquitto ended at once"
            assert time.monotonic() < deadline, "Mosquitto does not listen"
            time.sleep(0.02)


@contextmanager
def braidmq(where: Path) -> Iterator[int]:
    """The port of a node that is ready, and has to stop cleanly."""
    (where / "braid.toml").write_text(BRAIDMQ)
    with live_node(where / "data", config=where / "braid.toml") as node:
        yield node.ports["mqtt_port"]
        assert node.stop() == 0
        assert not node.complaints
