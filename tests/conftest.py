"""The models of the engine draw new examples in every run, from one seed that the first lines say;
other property tests the same every time, so that a red run means a change of ours.

``BRAIDMQ_SEED`` gives a seed again, and then all draw from it: run that with new ones before
trusting a change to a format. ``BRAIDMQ_SEED=steady`` draws the same examples everywhere.
"""

import logging
import os
import secrets
import signal
from collections import Counter
from collections.abc import Generator

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import core, settings
from xdist.scheduler import LoadFileScheduling

# Workers are started with this environment, and draw from the same seed.
SEED = os.environ.get("BRAIDMQ_SEED") or os.environ.get("BRAIDMQ_MODEL_SEED") or ""
SEED = os.environ["BRAIDMQ_MODEL_SEED"] = SEED or str(secrets.randbits(32))
STEADY = SEED == "steady"

settings.register_profile("models", deadline=None, derandomize=STEADY)
settings.register_profile(
    "others", deadline=None, derandomize=STEADY or not os.environ.get("BRAIDMQ_SEED")
)
settings.load_profile("others")


def pytest_configure(config: pytest.Config) -> None:
    if not STEADY and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = SEED
        core.global_force_seed = int(SEED)


def pytest_report_header() -> str:
    return f"property tests: BRAIDMQ_SEED={SEED}"


# A shell's background jobs are deaf to Ctrl-C, and so would be every program the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

SPARK = "tests/pipeline/"
JVMS_OF_THEIR_OWN = ("tests/pipeline/test_spark_crash.py", "tests/pipeline/test_clusters.py")
LONGEST = (
    SPARK,
    *JVMS_OF_THEIR_OWN,
    "tests/gateways/test_crossing.py",
    "tests/api/test_surface.py",
    "tests/cli/test_cli_storage.py",
)
"""What takes longest in one piece, and so begins first: the other workers do the rest meanwhile."""


def piece_of(nodeid: str) -> str:
    """What one worker does: a file; but of all that share a JVM everything, since a second worker
    would have to start and warm up another."""
    file = nodeid.partition("::")[0]
    return SPARK if file.startswith(SPARK) and file not in JVMS_OF_THEIR_OWN else file


class OneWorkerForSpark(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneWorkerForSpark | None:
    return OneWorkerForSpark(config, log) if config.getvalue("dist") == "loadfile" else None


MODEL_S = 600
"""A model's examples are one test, to make a failure small takes longer than to find it, and a busy
machine may give them a fifth of a core. What is cut off looks like a fault of the model's."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.name == "runTest":  # of Hypothesis's state machines
            item.add_marker(pytest.mark.timeout(MODEL_S))
    ranks = {piece: rank for rank, piece in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(piece_of(item.nodeid), len(ranks)))


OFTEN_SET = ("", "braidmq")
"""Loggers whose levels are set by what runs in a test's own process: a worker of Celery, a node."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Every test finds the levels of loggers as the first one did, whatever ran before it."""
    before = [(logger := logging.getLogger(name), logger.level) for name in OFTEN_SET]
    try:
        return (yield)
    finally:
        for logger, level in before:
            logger.setLevel(level)  # which forgets what children know of it, too


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """What was not tested here, a line for each reason; and how to draw the same again."""
    terminalreporter.write_line(pytest_report_header())
    for reason, count in skip_reasons(terminalreporter.stats.get("skipped", [])).most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


def skip_reasons(reports: list[pytest.TestReport]) -> Counter[str]:
    # Of a skipped test pytest keeps where, which line and "Skipped: why".
    reasons = (each.longrepr[2] for each in reports if isinstance(each.longrepr, tuple))
    return Counter(reason.removeprefix("Skipped: ") for reason in reasons)
