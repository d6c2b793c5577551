"""Record what Mosquitto answers: ``python -m tests.differential.mqtt.record``.

It is started for that. With ``--check N`` nothing is written: the set is run N times and compared
with what is recorded. ``--braidmq`` runs a node of ours instead: with ``--check 1`` it shows what
differs, without it writes what we answer to the known differences.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.differential.mqtt.brokers import VERSION, braidmq, mosquitto, mosquitto_version
from tests.differential.mqtt.known_differences import KNOWN_DIFFERENCES
from tests.differential.mqtt.registry import EXPECTED, OURS, load, observer
from tests.differential.running import JOBS, check, record, say


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--check", type=int, default=0, metavar="N")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--braidmq", action="store_true", help="a node of ours, not Mosquitto")
    options = parser.parse_args()
    if not options.braidmq and mosquitto_version() != VERSION:
        say(f"Mosquitto {VERSION} is wanted, and {mosquitto_version()} is there")
        return 1
    broker = braidmq if options.braidmq else mosquitto
    names = [name for name in load() if options.only in name]
    with tempfile.TemporaryDirectory() as where, broker(Path(where)) as port:
        observe = observer("127.0.0.1", port)
        if options.check:
            return check(EXPECTED, names, options.check, observe, options.jobs)
        if options.braidmq:
            return record(OURS, list(KNOWN_DIFFERENCES), options.only, observe, options.jobs)
        return record(EXPECTED, list(load()), options.only, observe, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
