"""What was measured so far: ``bench/results/<benchmark>.json``, the newest run last.

A run has a date, a revision, the machine and a note; each of its measures a value in a unit and,
where it was compared, the other side's (``baseline``), who that was (``against``), the ratio and
the bar. A figure that was not noted is null, and the note says what is unclear.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HISTORY = Path(__file__).parent / "results"
_BAR = re.compile(r"([≤≥]) ([\d.]+)")


@dataclass(frozen=True)
class Entry:
    """One measure of one run."""

    date: str
    revision: str
    machine: str
    measure: str
    value: float | None
    unit: str
    ratio: float | None = None
    baseline: float | None = None
    against: str = ""
    bar: str = ""
    note: str = ""

    @property
    def judged(self) -> float | None:
        """What a bar is about: the ratio of what was compared, else the value."""
        return self.ratio if self.against else self.value

    @property
    def met(self) -> bool | None:
        """None without a bar."""
        if not self.bar or self.judged is None:
            return None
        found = _BAR.fullmatch(self.bar)
        assert found, self.bar
        limit = float(found[2])
        return self.judged <= limit if found[1] == "≤" else self.judged >= limit

    @property
    def complete(self) -> bool:
        """Has what its bar is about, or any figure if it has no bar."""
        if self.bar:
            return self.judged is not None
        return self.value is not None or self.ratio is not None


def runs(benchmark: str, folder: Path = HISTORY) -> list[dict[str, Any]]:
    path = folder / f"{benchmark}.json"
    if not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def entries(benchmark: str, measure: str, folder: Path = HISTORY) -> list[Entry]:
    """In the order of their dates; a day without a time comes before its times."""
    found = [
        Entry(run["date"], run["revision"], run["machine"], **each)
        for run in runs(benchmark, folder)
        for each in run["measures"]
        if each["measure"] == measure
    ]
    return sorted(found, key=lambda entry: entry.date)


def newest(benchmark: str, measure: str, against: str = "", folder: Path = HISTORY) -> Entry:
    """Of those that have what their bar is about."""
    found = [
        entry
        for entry in entries(benchmark, measure, folder)
        if entry.complete and against in ("", entry.against)
    ]
    if not found:
        raise LookupError(f"{benchmark}.json has no {measure!r} {against}")
    return found[-1]


def append(report: dict[str, Any], note: str, folder: Path = HISTORY) -> Path:
    """A run as ``harness`` reports it."""
    machine = report["machine"]
    kept = ("value", "unit", "ratio", "baseline", "against", "note")
    run = {
        "date": machine["date"],
        "revision": machine["source"],
        "machine": ", ".join(
            [
                machine["cpu"],
                f"{machine['cores']} cores",
                machine["memory"],
                machine["kernel"],
                machine["python"],
                machine["file system"],
            ]
        ),
        "note": "; ".join(filter(None, [note, f"load {machine['load at start']} at the start"])),
        "measures": [
            {"measure": each["name"]}
            | {key: _short(each[key]) for key in kept if each[key] not in (None, "")}
            | ({"bar": _bar_text(each["bar"])} if each["bar"] else {})
            for each in report["measures"]
        ],
    }
    path = folder / f"{report['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_text([*runs(report["name"], folder), run]))
    return path


def as_text(found: list[dict[str, Any]]) -> str:
    """A line for each measure, so that a diff shows what was added."""
    texts = []
    for run in found:
        head = [f"  {_line(key)}: {_line(run[key])}" for key in run if key != "measures"]
        measures = ",\n".join(f"    {_line(each)}" for each in run["measures"])
        texts.append("{\n" + ",\n".join([*head, f'  "measures": [\n{measures}\n  ]']) + "\n}")
    return "[" + ",\n".join(texts) + "]\n"


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(value: object) -> object:
    """Four digits that matter: the rest of a float is noise."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _bar_text(bar: dict[str, Any]) -> str:
    return f"{'≤' if bar['at_most'] else '≥'} {bar['limit']:g}"
