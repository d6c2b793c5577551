"""This installation beside another one of BraidMQ: ``OTHER_PYTHON=… python -m bench.revisions``.

``OTHER_PYTHON`` is the other one's Python: that of a virtual environment, or a script that sets
``PYTHONPATH`` and goes on with one. Both nodes are up at once and take turns under AMQP workload A.
For "does it cost anything" questions: the other is the revision before, or this one without the
code in question.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.amqp import braidmq, one_run
from bench.beside import Rivalry, cpu, rate
from bench.harness import Context, Measure, at_least, main
from braidmq.testing.live import live_node

NOTHING_MEASURABLE = 0.97


@contextmanager
def other(root: Path) -> Iterator[str]:
    python = os.environ["OTHER_PYTHON"]
    with live_node(root, python, mqtt_port=0, ws_port=0, http_port=0) as node:
        yield f"amqp://guest:guest@127.0.0.1:{node.ports['amqp_port']}/"
        node.stop()
    shutil.rmtree(root, ignore_errors=True)


RIVALRY = Rivalry({"this": braidmq, "the other": other}, one_run)


def workload_a(context: Context) -> Iterator[Measure]:
    found = RIVALRY.alternated("A", context)
    yield RIVALRY.compared("A deliveries", "msg/s", found, rate, at_least(NOTHING_MEASURABLE))
    yield RIVALRY.compared("A broker processor time", "µs/msg", found, cpu)


if __name__ == "__main__":
    main("revisions", {"A": workload_a})
