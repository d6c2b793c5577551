"""What a run found, as lines for people and as JSON."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from braidmq.testing.crash.lab import Episode

SHOWN_MAX = 12
"""Findings of one kind in one strand that are written out; all are counted."""


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    strands: dict[str, dict[str, Any]] = {}
    for episode in episodes:
        for strand in episode.strands:
            row = strands.setdefault(strand.name, {"confirmed": 0, "arrivals": 0, "findings": {}})
            row["confirmed"] += strand.confirmed
            row["arrivals"] += sum(map(len, strand.readers.values())) + len(strand.latest)
    findings: list[dict[str, Any]] = []
    shown: Counter[tuple[int, str, str]] = Counter()
    for episode in episodes:
        for found in episode.findings:
            row = strands.setdefault(found.strand, {"confirmed": 0, "arrivals": 0, "findings": {}})
            row["findings"][found.kind] = row["findings"].get(found.kind, 0) + 1
            shown[episode.seed, found.strand, found.kind] += 1
            if shown[episode.seed, found.strand, found.kind] <= SHOWN_MAX:
                findings.append({"seed": episode.seed, **found._asdict()})
    return {
        "rounds": sum(sum(episode.faults.values()) for episode in episodes),
        "confirmed": sum(row["confirmed"] for row in strands.values()),
        "seconds": round(sum(episode.seconds for episode in episodes), 1),
        "seeds": [episode.seed for episode in episodes],
        "faults": dict(sorted(sum((each.faults for each in episodes), Counter[str]()).items())),
        "strands": strands,
        "findings": findings,
    }


def lines(told: dict[str, Any]) -> list[str]:
    """A line for each strand, one for each kind of fault, then what was found."""
    rounds, confirmed, seconds = told["rounds"], told["confirmed"], told["seconds"]
    said = [f"{rounds} rounds, {confirmed} confirmed operations, {seconds} s"]
    for name, row in told["strands"].items():
        found = ", ".join(f"{count} {kind}" for kind, count in row["findings"].items()) or "ok"
        said.append(
            f"  {name:<16} {row['confirmed']:>9} confirmed {row['arrivals']:>9} read  {found}"
        )
    said += [f"  {count:>4} × {kind}" for kind, count in told["faults"].items()]
    said += [
        f"seed {found['seed']} {found['strand']} {found['kind']}: {found['text']}"
        for found in told["findings"]
    ]
    return said
