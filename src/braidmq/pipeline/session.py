"""The Spark session a pipeline runs in: here by default, on a cluster or behind Spark Connect."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from braidmq.model.errors import SetupError
from braidmq.pipeline.definition import state_dir
from braidmq.pipeline.interpreter import use_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
STDERR = 2
LOGS_MAX = 20
"""Of one pipeline."""
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""On disk, and the only one that transformWithState works with."""

TASK_FAILURES_MAX = 4
"""Spark's own for clusters; a local one would give up at the first time a broker restarts."""


class SparkMissing(SetupError):
    code = "spark-missing"
    remedy = "pip install braidmq[spark], and Java 17"


def require_spark() -> None:
    """Raises SparkMissing."""
    try:
        import deltalake  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SparkMissing(f"pipelines run on Spark, and {error.name} is not installed") from None


@contextmanager
def session(
    name: str,
    master: str = "",
    remote: str = "",
    settings: Mapping[str, object] | None = None,
    log: Path | None = None,
) -> "Iterator[SparkSession]":
    """A session that ends with its ``with``, unless there was one before.

    ``log``: where what Spark writes to standard error goes.
    """
    require_spark()
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    with errors_to(log):
        found = make_session(name, master, remote, settings)
    if log is not None and not remote and before is None:
        found.sparkContext.setLogLevel("WARN")
    try:
        yield found
    finally:
        if before is None:
            found.stop()


@contextmanager
def errors_to(log: Path | None) -> Iterator[None]:
    """A JVM that is started meanwhile keeps it for its life, and Python workers that it starts."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    ours = os.dup(STDERR)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), STDERR)
        yield
    finally:
        os.dup2(ours, STDERR)
        os.close(ours)


def log_file(name: str) -> Path:
    """For a run that begins now; logs of the oldest runs of that name go."""
    place = state_dir() / "logs"
    older = sorted(place.glob(f"{name}-[0-9]*.log"))
    for path in older[: max(len(older) - LOGS_MAX + 1, 0)]:
        path.unlink(missing_ok=True)
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    return place / f"{name}-{when}-{os.getpid()}.log"


def make_session(
    name: str, master: str = "", remote: str = "", settings: Mapping[str, object] | None = None
) -> "SparkSession":
    """``settings`` of Spark win over what is set here."""
    require_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"braid pipeline {name}")
    every: dict[str, object] = {
        "spark.sql.session.timeZone": "UTC",
        # A checkpoint remembers what it was begun with: one from before goes on as it was.
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
    }
    if remote:
        builder = builder.remote(remote)
    else:
        builder = builder.master(_master(master or LOCAL))
        every |= _defaults(master or LOCAL)
    for key, value in (every | dict(settings or {})).items():
        builder = builder.config(key, setting_text(value))
    try:
        session = builder.getOrCreate()
    except Exception as error:
        remedy = f"Does Spark Connect listen at {remote}?" if remote else "Is Java 17 installed?"
        raise SetupError(f"Spark did not start: {error}", remedy=remedy) from error
    if not remote:
        session.sparkContext.setLogLevel("ERROR")
    return session


def _master(master: str) -> str:
    """``local[2]`` gives a failed task no second chance unless it is told how many."""
    if master.startswith("local[") and "," not in master:
        return f"{master[:-1]},{TASK_FAILURES_MAX}]"
    return f"local[1,{TASK_FAILURES_MAX}]" if master == "local" else master


def _defaults(master: str) -> dict[str, object]:
    use_this_python()
    found: dict[str, object] = {"spark.ui.showConsoleProgress": False}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        found |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": os.cpu_count() or 2,
        }
    return found


def setting_text(value: object) -> str:
    """As Spark writes settings and options."""
    return str(value).lower() if isinstance(value, bool) else str(value)
