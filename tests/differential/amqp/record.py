"""Record what RabbitMQ answers: ``python -m tests.differential.amqp.record --port 5679``.

With ``--check N`` nothing is written: the set is run N times and compared with what is recorded.
"""

import argparse
import sys

from tests.differential.amqp.operators import RabbitmqCtl
from tests.differential.amqp.registry import EXPECTED, load, observer
from tests.differential.running import JOBS, check, record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--check", type=int, default=0, metavar="N")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--ctl", help="command that takes rabbitmqctl's arguments")
    options = parser.parse_args()
    operator = RabbitmqCtl(options.ctl) if options.ctl else None
    observe = observer(options.host, options.port, operator)
    names = [name for name in load() if options.only in name]
    if options.check:
        return check(EXPECTED, names, options.check, observe, options.jobs)
    return record(EXPECTED, list(load()), options.only, observe, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
