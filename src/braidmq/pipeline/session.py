"""The Spark session a pipeline runs in: here by default, on a cluster or behind Spark Connect."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from braidmq.model.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
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
    name: str, master: str = "", remote: str = "", settings: Mapping[str, object] | None = None
) -> "Iterator[SparkSession]":
    """A session that ends with its ``with``, unless there was one before."""
    require_spark()
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    found = make_session(name, master, remote, settings)
    try:
        yield found
    finally:
        if before is None:
            found.stop()


def make_session(
    name: str, master: str = "", remote: str = "", settings: Mapping[str, object] | None = None
) -> "SparkSession":
    """``settings`` of Spark win over what is set here."""
    require_spark()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"braid pipeline {name}")
    every: dict[str, object] = {"spark.sql.session.timeZone": "UTC"}
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
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
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
