"""Jobs that reach their broker by TLS, with a token."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="braidmq[spark] is not installed")

from braid_topics import GUEST, Topics, rows
from pyspark.sql.pandas.types import from_arrow_schema

from braidmq.model.errors import NotAuthenticated
from braidmq.pipeline.errors import BrokerUnreachable
from braidmq.pipeline.source import BatchReader, BraidDataSource
from braidmq.testing.certificates import Authority
from braidmq.testing.live import free_ports, live_node

CONFIG = """
[tls]
cert = "{cert}"
key = "{key}"
[listeners]
https_port = {port}
"""


@dataclass
class Secure:
    topics: Topics
    url: str
    token: str
    authority: Path

    def source(self, **options: str) -> BraidDataSource:
        return BraidDataSource({"url": self.url, "token": self.token, **options})

    def read(self, topic: str, **options: str) -> list[bytes]:
        source = self.source(topic=topic, **options)
        reader = source.reader(source.schema())
        assert isinstance(reader, BatchReader)
        batches = (each for part in reader.partitions() for each in reader.read(part))
        return sorted(row["value"] for row in rows(batches))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    directory = tmp_path_factory.mktemp("https")
    authority, port = Authority(directory), free_ports(1)[0]
    pair = authority.for_node()
    config = directory / "braid.toml"
    config.write_text(CONFIG.format(cert=pair.cert, key=pair.key, port=port))
    with (
        live_node(directory / "data", config=config, ws_port=0) as node,
        httpx.Client(base_url=node.http_url, auth=GUEST, timeout=60) as client,
    ):
        made = client.post("/v1/tokens", json={"description": "a job"}).json()
        url = f"https://localhost:{port}"
        yield Secure(Topics(node, client), url, made["token"], authority.file)


def test_writing_and_reading(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly once, and everything over the wire."""
    monkeypatch.setenv("SSL_CERT_FILE", str(secure.authority))
    topic = secure.topics.create(partitions=2)
    made = pa.record_batch({"value": [b"%04d" % at for at in range(500)]})
    writer = secure.source(topic=topic).writer(from_arrow_schema(made.schema), False)
    writer.commit([writer.write(iter([made]))])
    assert secure.read(topic, readMode="broker") == made["value"].to_pylist()
    with pytest.raises(NotAuthenticated):
        secure.read(topic, token="none")


def test_a_broker_that_nobody_vouches_for(secure: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(BrokerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        secure.read("any", retrySeconds="1")
