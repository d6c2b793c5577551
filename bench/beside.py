"""BraidMQ beside another broker: both up, one under load at a time, in turns."""

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from bench.harness import Bar, Context, Measure, paired_ratio
from braidmq.loadgen.result import Latency, Result

STOP_S_MAX = 30.0
ROUNDS = 5

Results = dict[str, list[Result]]
Reading = Callable[[Result], float]
Start = Callable[[Path], AbstractContextManager[str]]
"""Starts a broker in a directory, gives its URL, stops it."""
OneRun = Callable[[str, str, float], Result]
"""A workload by name, on a URL, for some seconds."""


def install(program: Path, package: str) -> None:
    """From Debian, unless it is there."""
    if program.exists():
        return
    print(f"… installing {package}", file=sys.stderr, flush=True)
    # Runlevel 1: the package starts its service otherwise, on the default port.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet, stdout=sys.stderr)
    subprocess.run(
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
        check=True,
        env=quiet,
        stdout=sys.stderr,
    )


def stop_session(process: subprocess.Popen[bytes]) -> None:
    """The whole session that was started for it: of RabbitMQ a shell, and Erlang below."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            process.wait(STOP_S_MAX)
        return


def rate(result: Result) -> float:
    return result.rate


def cpu(result: Result) -> float:
    assert result.cpu_us_per_message is not None, "the broker is on this machine"
    return result.cpu_us_per_message


def _end_to_end(percentile: str, result: Result) -> float:
    return _at(result.end_to_end_ms, percentile)


def _confirm(percentile: str, result: Result) -> float:
    return _at(result.confirm_ms, percentile)


def _at(latency: Latency | None, percentile: str) -> float:
    assert latency is not None, "nothing was measured"
    return float(getattr(latency, percentile))


class Rivalry:
    """Two brokers by name, ours first."""

    def __init__(self, brokers: dict[str, Start], one_run: OneRun) -> None:
        self._brokers = brokers
        self._one_run = one_run
        self.ours, self.theirs = brokers

    # --- runs ---

    def _both(self, root: Path, stack: ExitStack) -> dict[str, str]:
        return {
            name: stack.enter_context(start(root / name.lower()))
            for name, start in self._brokers.items()
        }

    def alternated(self, workload: str, context: Context, *, fresh: bool = False) -> Results:
        """One run on each side a round, taking turns at being first; ``fresh``: on brokers that
        were just started."""
        seconds = 1.5 if context.quick else 5.0
        found: Results = {self.ours: [], self.theirs: []}
        with ExitStack() as stack:
            urls = {} if fresh else self._both(context.directory(), stack)
            for number in range(context.rounds(ROUNDS, 1 if fresh else 2)):
                with ExitStack() as of_round:
                    here = urls or self._both(context.directory(), of_round)
                    order = [self.ours, self.theirs] if number % 2 else [self.theirs, self.ours]
                    for name in order:
                        found[name].append(self._checked(workload, here[name], seconds))
        return found

    def _checked(self, workload: str, url: str, seconds: float) -> Result:
        result = self._one_run(workload, url, seconds)
        assert result.exactly_once, f"{workload} on {result.broker}: {result.as_dict()}"
        print(
            f"    {workload} {result.broker}: {result.rate:,.0f} msg/s,"
            f" {result.cpu_us_per_message or 0:.2f} µs, generator {result.generator_busy:.2f}",
            file=sys.stderr,
            flush=True,
        )
        return result

    # --- figures ---

    def compared(
        self,
        name: str,
        unit: str,
        found: Results,
        reading: Reading,
        bar: Bar | None = None,
        note: str = "",
    ) -> Measure:
        ours, theirs = ([reading(each) for each in found[side]] for side in self._brokers)
        return Measure(
            name,
            statistics.median(ours),
            unit,
            bar,
            ratio=paired_ratio(ours, [max(each, 1e-9) for each in theirs]),
            baseline=statistics.median(theirs),
            against=self.theirs,
            note=note,
        )

    def processor_time(self, workload: str, found: Results, bar: Bar | None = None) -> Measure:
        return self.compared(f"{workload} broker processor time", "µs/msg", found, cpu, bar)

    def throughput(
        self,
        workload: str,
        found: Results,
        promise: str,
        bar: Bar | None = None,
        cpu_bar: Bar | None = None,
    ) -> Iterator[Measure]:
        busy = statistics.median(each.generator_busy for each in found[self.ours])
        note = f"{promise}; generator {busy:.2f} of a core"
        yield self.compared(f"{workload} deliveries", "msg/s", found, rate, bar, note)
        yield self.processor_time(workload, found, cpu_bar)

    def latencies(
        self,
        workload: str,
        found: Results,
        bar: Bar | None = None,
        *,
        confirms: bool,
        note: str = "",
    ) -> Iterator[Measure]:
        for percentile in ("p50", "p99"):
            name = f"{workload} end to end {percentile}"
            yield self.compared(name, "ms", found, partial(_end_to_end, percentile), bar)
        if confirms:
            for percentile in ("p50", "p99"):
                name = f"{workload} confirm {percentile}"
                reading = partial(_confirm, percentile)
                yield self.compared(name, "ms", found, reading, note=note)
