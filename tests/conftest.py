"""Property tests run the same examples every time, so that a red run means a change of ours.

``HYPOTHESIS_PROFILE=explore`` draws new ones: run that before trusting a change to a state machine.
"""

import os
import signal
from collections import Counter

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# A shell's background jobs are deaf to Ctrl-C, and so would be every program the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

SPARK = "tests/pipeline/"


class OneWorkerForSpark(LoadFileScheduling):
    """Files go to workers as they are, and all that share a JVM to one of them: a second would have
    to start and warm up another."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneWorkerForSpark | None:
    return OneWorkerForSpark(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # First what takes longest in one piece: the other worker does the rest meanwhile.
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """What was not tested here, a line for each reason."""
    for reason, count in skip_reasons(terminalreporter.stats.get("skipped", [])).most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


def skip_reasons(reports: list[pytest.TestReport]) -> Counter[str]:
    # Of a skipped test pytest keeps where, which line and "Skipped: why".
    reasons = (each.longrepr[2] for each in reports if isinstance(each.longrepr, tuple))
    return Counter(reason.removeprefix("Skipped: ") for reason in reasons)
