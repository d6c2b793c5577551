"""Who asks, where a source or sink says so itself."""

from pathlib import Path
from typing import Any

from braidmq.pipeline.definition import load
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.runner import Runner

ELSEWHERE = """
name = "elsewhere"
[[source]]
name = "orders"
topic = "orders"
options = { url = "http://other:8080", user = "me", password = "mine" }
[[sink]]
from = "orders"
topic = "copies"
"""


def test_a_token_goes_to_no_other_broker(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.toml"
    file.write_text(ELSEWHERE)
    definition, spark = load(file), Any
    runner = Runner(definition, spark, BrokerOptions(token="t"))  # type: ignore[arg-type]
    read = runner._of_broker(definition.sources[0])
    assert (read["url"], read["user"], read["password"]) == ("http://other:8080", "me", "mine")
    assert "token" not in read
    written = runner.sink_options(definition.sinks[0])
    assert written["token"] == "t"
    assert not {"user", "password"} & set(written)
