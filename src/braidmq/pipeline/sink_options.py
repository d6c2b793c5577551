"""The options of ``df.write.format("braid")``, checked and typed. docs/spark.md lists them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol

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

TRANSACTION_S_MAX = 24 * 60 * 60

OF_TRANSACTIONS = frozenset(
    {"application", "epoch", "batch", "instance", "transaction_s", "session_s"}
)

RECORD_BYTES_MAX = 16 * MIB
"""Of one request, and so of one message."""


@dataclass(frozen=True)
class SinkOptions(BrokerOptions):
    topic: str = ""
    delivery: str = EXACTLY_ONCE
    keep_partition: bool = False
    application: str = ""
    epoch: int = 0
    batch: int | None = None
    instance: str = ""
    transaction_s: int = TRANSACTION_S_MAX
    session_s: int = 15
    checkpoint: str = ""
    request_bytes: int = 4 * MIB


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises BadOption, naming the option as users write it."""
    options = SinkOptions(**read_options(given, _READERS))
    if options.delivery == AT_LEAST_ONCE:
        names = {attribute: name for name, (attribute, _) in _READERS.items()}
        for each in fields(SinkOptions):
            if each.name in OF_TRANSACTIONS and getattr(options, each.name) != each.default:
                raise BadOption(
                    f"{names[each.name]} is for exactly_once: with delivery={AT_LEAST_ONCE} there"
                    " is no transaction, and no count of batches",
                    remedy="Take one of the two out",
                )
    if options.transaction_s > TRANSACTION_S_MAX or options.session_s > TRANSACTION_S_MAX:
        raise BadOption(
            f"transactionSeconds and sessionSeconds can be at most {TRANSACTION_S_MAX}, a day"
        )
    if options.request_bytes > REQUEST_BYTES_MAX:
        raise BadOption(f"requestBytes can be at most {REQUEST_BYTES_MAX}")
    return options


class Counted(Protocol):
    """Options by which batches are counted."""

    @property
    def application(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def instance(self) -> str: ...


def check_counting(options: Counted, *, streams: bool) -> None:
    """Raises BadOption for what would have no effect, and where a batch would be taken for
    another."""
    if streams and options.batch is not None:
        raise BadOption(
            "batchId is for df.write: a stream counts its batches itself", remedy="Take it out"
        )
    given = {
        "batchId": options.batch is not None,
        "applicationEpoch": options.epoch,
        "applicationInstance": options.instance,
    }
    alone = next((name for name, is_there in given.items() if is_there), "")
    if alone and not options.application:
        raise BadOption(f"{alone} is nothing without applicationId", remedy="Give both, or none")
    if options.application and not streams and options.batch is None:
        raise BadOption(
            "batchId is needed beside applicationId: each run would be the same batch, and only"
            " the first be written",
            remedy="Count the runs of the job, or take applicationId out",
        )


def counts_batches(given: Mapping[str, object]) -> bool:
    """Whether a topic takes each batch once, by the options of its sink."""
    said = {name.lower(): str(value).lower() for name, value in given.items()}
    return said.get("delivery", EXACTLY_ONCE) == EXACTLY_ONCE


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
    "applicationInstance": ("instance", text),
    "transactionSeconds": ("transaction_s", positive),
    "sessionSeconds": ("session_s", positive),
    "checkpointLocation": ("checkpoint", text),
    "requestBytes": ("request_bytes", size),
}
