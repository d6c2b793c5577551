"""Record what RabbitMQ answers: ``python -m tests.differential.amqp.record --port 5679``.

With ``--check N`` nothing is written: the set is run N times and compared with what is recorded.
"""

import argparse
import json
import sys

from tests.differential.amqp import expectations
from tests.differential.amqp.client import Observation
from tests.differential.amqp.operators import RabbitmqCtl
from tests.differential.amqp.registry import JOBS, load, observe_all


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def differences(
    recorded: dict[str, Observation], seen: dict[str, Observation]
) -> dict[str, tuple[Observation, Observation]]:
    return {
        name: (recorded.get(name), found)
        for name, found in seen.items()
        if json.loads(json.dumps(found)) != recorded.get(name)
    }


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
    names = [name for name in load() if options.only in name]

    for turn in range(1, options.check + 1):
        seen, _ = observe_all(names, options.host, options.port, options.jobs, operator)
        found = differences(expectations.read(), seen)
        for name, (was, now) in found.items():
            say(f"{name}\n  recorded {json.dumps(was)}\n  now      {json.dumps(now)}")
        say(f"run {turn}: {len(seen)} scenarios, {len(found)} differ")
        if found:
            return 1
    if not options.check:
        seen, took = observe_all(names, options.host, options.port, options.jobs, operator)
        failed = {name: found for name, found in seen.items() if "failed" in str(found)[:10]}
        if failed:
            say(f"nothing is recorded, these failed: {json.dumps(failed, indent=1)}")
            return 1
        kept = expectations.read() if options.only and expectations.EXPECTED.exists() else {}
        known = {name: value for name, value in kept.items() if name in load()}
        expectations.write({**known, **seen})
        say(f"recorded {len(seen)} scenarios, {sum(took.values()):.0f} s of waiting; the slowest:")
        for name in sorted(took, key=lambda name: -took[name])[:8]:
            say(f"  {took[name]:5.2f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
