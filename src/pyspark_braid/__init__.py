"""Spark looks for packages named ``pyspark_…``: ``spark.read.format("braid")`` needs no more.

In a venv that is not activated (``venv/bin/python job.py``) import it before the session is made:
Spark's workers run the same Python then.
"""

from braidmq.pipeline.interpreter import use_this_python
from braidmq.pipeline.source import BraidDataSource as DefaultSource

__all__ = ["DefaultSource"]

use_this_python()
