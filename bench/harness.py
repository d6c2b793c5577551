"""What every benchmark shares: figures with bars, fair repetition, the machine, the report.

The machines we run on are shared and noisy, so a bar is a ratio wherever it can be: what is
measured and what it is compared with run in turns within one process, each round gives one ratio,
and the median of those is held against the bar. Absolute figures are medians and only a guide.
"""

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import history

RUNS = Path(__file__).parent.parent / "build" / "bench"
SOURCES = Path(__file__).parent.parent / "src"
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "overlay"})
"""fdatasync is free on the first three; on an overlay we can't tell what is below."""


# --- figures ---


@dataclass(frozen=True)
class Bar:
    """A limit on a measure's ratio when it has one, else on its value."""

    limit: float
    at_most: bool = True

    def met_by(self, figure: float) -> bool:
        return figure <= self.limit if self.at_most else figure >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:g}"


def at_most(limit: float) -> Bar:
    return Bar(limit)


def at_least(limit: float) -> Bar:
    return Bar(limit, at_most=False)


@dataclass(frozen=True)
class Measure:
    """One figure. ``ratio`` is to ``baseline``, which ``against`` names, in the same unit."""

    name: str
    value: float
    unit: str
    bar: Bar | None = None
    ratio: float | None = None
    baseline: float | None = None
    against: str = ""
    guide: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        assert self.ratio is None or self.against, "a ratio says to what"

    @property
    def judged(self) -> float:
        return self.value if self.ratio is None else self.ratio

    @property
    def met(self) -> bool | None:
        """None when there is no bar."""
        return None if self.bar is None else self.bar.met_by(self.judged)


# --- repetition ---

Seconds = float
Case = Callable[[], Seconds]


def alternate(cases: Mapping[str, Case], rounds: int) -> dict[str, list[Seconds]]:
    """Run each case once a round, the order turning; a case times its own interesting part."""
    samples: dict[str, list[Seconds]] = {name: [] for name in cases}
    names = list(cases)
    for round_number in range(rounds):
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(cases[name]())
    return samples


def paired_ratio(samples: Sequence[float], baseline: Sequence[float]) -> float:
    """The median of the rounds' own ratios: a slow spell touches both sides of its round."""
    return statistics.median(a / b for a, b in zip(samples, baseline, strict=True))


def percentile(samples: Sequence[float], percent: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def timed(call: Callable[[], object]) -> Seconds:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def in_fresh_process(function: Callable[..., Any], *arguments: object) -> Any:
    """For memory: this process's heap has holes from what ran before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# --- the machine ---


def file_system(path: Path) -> str:
    """Type and device of the file system ``path`` is on, by the longest mount point."""
    best, found = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        inside = mount == "/" or path == Path(mount) or Path(mount) in path.parents
        if inside and len(mount) >= len(best):
            best, found = mount, f"{kind} on {device}"
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    here = Path(__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True
    )
    return described.stdout.strip() or "unknown"


def fingerprint() -> str:
    """Of the sources and the compiled kernels as they are now, committed or not."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix in {".py", ".pyx", ".pxd", ".h", ".so"}:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def machine(root: Path) -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "file system": file_system(root),
        "load at start": f"{os.getloadavg()[0]:.2f}",
        "source": f"{_commit()}, sha256 {fingerprint()}",
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """A temporary directory on a real disk, gone afterwards."""
    candidates = [parent] if parent else [Path(tempfile.gettempdir()), Path("/var/tmp"), RUNS]
    for candidate in candidates:
        candidate.mkdir(parents=True, exist_ok=True)
        if file_system(candidate.resolve()).split()[0] not in IN_MEMORY:
            made = Path(tempfile.mkdtemp(prefix="braid-bench-", dir=candidate)).resolve()
            try:
                yield made
            finally:
                shutil.rmtree(made)
            return
    raise SystemExit(f"no disk to measure on in {', '.join(map(str, candidates))}: give --dir")


# --- running and reporting ---


@dataclass
class Context:
    """What a benchmark is given."""

    root: Path
    quick: bool
    _made: int = field(default=0)

    def rounds(self, full: int, quick: int = 3) -> int:
        return quick if self.quick else full

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def directory(self) -> Path:
        """A new, empty one."""
        self._made += 1
        path = self.root / f"{self._made:04d}"
        path.mkdir()
        return path


Benchmark = Callable[[Context], Iterable[Measure]]


def main(name: str, benchmarks: Mapping[str, Benchmark]) -> None:
    """Run from the command line; exits with 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: a smoke test")
    parser.add_argument("--json", type=Path, default=RUNS / f"{name}.json", metavar="PATH")
    parser.add_argument(
        "--record", nargs="?", const="", metavar="NOTE", help="append to bench/results/"
    )
    parser.add_argument("--dir", type=Path, help="where to put data; not on tmpfs")
    parser.add_argument("--only", nargs="+", choices=list(benchmarks), default=list(benchmarks))
    options = parser.parse_args()
    with scratch(options.dir) as root:
        described = machine(root)
        measures: list[Measure] = []
        broken: list[str] = []
        for each in options.only:
            print(f"… {each}", file=sys.stderr, flush=True)
            context = Context(_subdirectory(root, each), options.quick)
            try:
                # One by one: what was measured before a benchmark broke still counts.
                for measure in benchmarks[each](context):
                    measures.append(measure)  # noqa: PERF402
            except Exception:
                traceback.print_exc()
                broken.append(each)
            shutil.rmtree(context.root)
    if fingerprint() not in described["source"]:
        described["source"] += ", CHANGED DURING THE RUN"
        broken.append("the source changed during the run: its figures do not belong together")
    report = _report(name, described, measures, broken, quick=options.quick)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    _print(name, described, measures)
    if options.record is not None:
        print(record(report, options.record))
    missed = [measure.name for measure in measures if measure.met is False]
    for what, names in (("missed", missed), ("broken", broken)):
        if names:
            print(f"{what}: {'; '.join(names)}")
    sys.exit(bool(missed or broken))


def _subdirectory(root: Path, name: str) -> Path:
    path = root / name.replace(" ", "-")
    path.mkdir()
    return path


def record(report: dict[str, Any], note: str, folder: Path = history.HISTORY) -> str:
    """Adds a run to the history if its figures may be quoted; says what was done."""
    if report["quick"] or report["broken"]:
        return "not recorded: quick or broken runs are not quoted"
    return f"recorded in {history.append(report, note, folder)}; now: python -m bench.report"


def _report(
    name: str,
    described: dict[str, str],
    measures: list[Measure],
    broken: list[str],
    *,
    quick: bool,
) -> dict[str, Any]:
    rows = [asdict(measure) | {"met": measure.met} for measure in measures]
    return {
        "name": name,
        "quick": quick,
        "machine": described,
        "measures": rows,
        "broken": broken,
    }


def number(figure: float) -> str:
    """Three digits that matter, and no exponent."""
    if figure == 0 or abs(figure) >= 100:
        return f"{figure:,.0f}"
    return f"{figure:.{2 if abs(figure) >= 1 else 3}f}"


def _print(name: str, described: dict[str, str], measures: list[Measure]) -> None:
    table = Table(title=f"bench.{name}", title_justify="left", caption_justify="left")
    for heading, justify in (
        ("measure", "left"),
        ("figure", "right"),
        ("compared with", "left"),
        ("ratio", "right"),
        ("bar", "right"),
        ("", "left"),
        ("guide, note", "left"),
    ):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for measure in measures:
        table.add_row(*_cells(measure))
    table.caption = " · ".join(f"{key}: {value}" for key, value in described.items())
    # A pipe has no width of its own, and a cut table says nothing.
    Console(width=None if sys.stdout.isatty() else 190).print(table)


def _cells(measure: Measure) -> tuple[str, ...]:
    compared = measure.against
    if measure.baseline is not None:
        compared += f": {number(measure.baseline)} {measure.unit}"
    verdict = {True: "[green]met", False: "[red]MISSED", None: ""}[measure.met]
    remarks = [f"guide {measure.guide}"] if measure.guide else []
    return (
        measure.name,
        f"{number(measure.value)} {measure.unit}",
        compared,
        "" if measure.ratio is None else f"{measure.ratio:.2f}",
        "" if measure.bar is None else str(measure.bar),
        verdict,
        "; ".join([*remarks, *([measure.note] if measure.note else [])]),
    )
