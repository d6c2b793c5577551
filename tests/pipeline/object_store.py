"""An object store on loopback: moto's."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import boto3

from braidmq.testing.live import free_ports

KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "not to be shown"}


@contextmanager
def object_store(bucket: str) -> Iterator[dict[str, str]]:
    """How to get there, as deltalake names it."""
    (port,) = free_ports(1)
    # A process of its own: deltalake holds the interpreter's lock while it waits for the store.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    while "Running on" not in (line := server.stderr.readline()):
        assert line, "moto's server did not start"
    drain = threading.Thread(target=server.stderr.read)
    drain.start()
    found = {
        "aws_endpoint_url": f"http://127.0.0.1:{port}",
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
        **KEYS,
    }
    client = boto3.client(
        "s3", endpoint_url=found["aws_endpoint_url"], region_name="us-east-1", **KEYS
    )
    client.create_bucket(Bucket=bucket)
    try:
        yield found
    finally:
        client.close()
        server.terminate()
        server.wait()
        drain.join()
        server.stderr.close()
