"""Which Python Spark's workers run: the one of this process, unless PYSPARK_PYTHON says otherwise.

Spark would take ``python3`` from PATH. In a venv that is not activated that is another one, which
has no ``braidmq``, and all that Spark says is that it finds no data source ``braid``.
"""

import os
import shutil
import sys
import warnings
from pathlib import Path

PYTHON = "PYSPARK_PYTHON"


def use_this_python() -> None:
    """Before a session is made. After that it is too late, which is said where it matters."""
    if PYTHON in os.environ:
        return
    os.environ[PYTHON] = sys.executable
    if _has_session() and not _is_ours(shutil.which("python3")):
        warnings.warn(
            f"the Spark session was made before: its workers run another Python, which may not have"
            f" braidmq. Set {PYTHON}={sys.executable}, or import pyspark_braid first",
            RuntimeWarning,
            stacklevel=3,
        )


def _has_session() -> bool:
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    return getattr(context, "_active_spark_context", None) is not None


def _is_ours(python: str | None) -> bool:
    """In the same place: a venv has links to a Python that knows nothing of it."""
    return python is not None and Path(python).parent == Path(sys.executable).parent
