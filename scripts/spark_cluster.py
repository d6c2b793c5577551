"""A real Spark cluster on this machine: a standalone master, two workers, and a stream through it.

    python scripts/spark_cluster.py --messages 100000

Executors are processes of the workers, in directories of their own; the broker is another process
again. Prints what came through, and exits 1 unless that is everything, once.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pyspark
from spark_crash import World, publish, verify

from braidmq.testing.live import free_ports

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
READY_S_MAX = 120.0


def start(stack: ExitStack, directory: Path, name: str, *command: str) -> Path:
    """A process of the cluster, in a directory of its own; gives its log."""
    place = directory / name
    place.mkdir()
    log = place / "log"
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(place / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    process = subprocess.Popen(
        [str(SPARK_CLASS), *command],
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        cwd=place,
        env=environment,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return log


def wait_for(log: Path, word: str) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while word not in log.read_text(errors="replace"):
        if time.monotonic() > deadline:
            sys.exit(f"{log} does not say {word!r}:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--per-batch", type=int, default=20_000)
    arguments = parser.parse_args()
    arguments.every = 0
    with tempfile.TemporaryDirectory(prefix="braid-cluster-") as name, ExitStack() as stack:
        directory = Path(name)
        port, ui, broker_port = free_ports(3)
        address = f"spark://127.0.0.1:{port}"
        at = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui))
        wait_for(start(stack, directory, "master", MASTER, *at), "Starting Spark master")
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0")
            log = start(stack, directory, f"worker-{number}", WORKER, *size, address)
            wait_for(log, "Successfully registered")
        arguments.master = address
        world = World(directory, [broker_port], arguments)
        stack.callback(world.end)
        world.start_broker()
        publish(world, arguments.messages)
        began = time.monotonic()
        world.start_driver()
        assert world.driver is not None
        code = world.driver.wait()
        took_s = time.monotonic() - began
        if code:
            sys.exit((directory / "driver.log").read_text()[-4000:])
        wrong = verify(world, arguments.messages)
    print(f"{arguments.messages} messages through two workers, {took_s:.0f} s: {wrong or 'once'}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
