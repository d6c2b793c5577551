"""The options of ``df.write.format("braid")``, checked and typed. docs/spark.md lists them."""

from collections.abc import Mapping
from dataclasses import dataclass

from braidmq.model.limits import MIB
from braidmq.pipeline.errors import BadOption
from braidmq.pipeline.options import (
    BROKER_READERS,
    BrokerOptions,
    Readers,
    boolean,
    one_of,
    positive,
    read_options,
    size,
    text,
)

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"
REQUEST_BYTES_MAX = 12 * MIB
"""Under what the broker takes, with room for what records add to their values."""


@dataclass(frozen=True)
class SinkOptions(BrokerOptions):
    topic: str = ""
    delivery: str = EXACTLY_ONCE
    keep_partition: bool = False
    application: str = ""
    epoch: int = 0
    batch: int | None = None
    transaction_s: int = 600
    request_bytes: int = 4 * MIB


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises BadOption, naming the option as users write it."""
    options = SinkOptions(**read_options(given, _READERS))
    if options.batch is not None and not options.application:
        raise BadOption("batchId and applicationId must be given together", remedy="Give both")
    if options.request_bytes > REQUEST_BYTES_MAX:
        raise BadOption(f"requestBytes can be at most {REQUEST_BYTES_MAX}")
    return options


def number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise BadOption(f"{name} must be 0 or above, not {value!r}")
    return int(value)


_READERS: Readers = {
    **BROKER_READERS,
    "topic": ("topic", text),
    "delivery": ("delivery", one_of(EXACTLY_ONCE, AT_LEAST_ONCE)),
    "keepPartition": ("keep_partition", boolean),
    "applicationId": ("application", text),
    "applicationEpoch": ("epoch", number),
    "batchId": ("batch", number),
    "transactionSeconds": ("transaction_s", positive),
    "requestBytes": ("request_bytes", size),
}
