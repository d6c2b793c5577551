"""The table of MQTT 5's normative statements: all of them, once, with tests that exist."""

import re
from pathlib import Path

from pages import DOCS
from tests.differential.mqtt.registry import load

TESTS = Path(__file__).parents[1]
FOLDERS = ("clients/mqtt", "wire/mqtt", "gateways/mqtt", "rights")

STATEMENTS = {
    "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": (2, 6), "2.2.2": 1, "3.1.0": 2,
    "3.1.2": 30, "3.1.3": 12, "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20,
    "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1, "3.6.2": 3, "3.7.2": 3, "3.8.1": 1,
    "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2, "3.10.4": 6,
    "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3,
    "3.15.1": 1, "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13,
    "4.4.0": 2, "4.5.0": 2, "4.6.0": 6, "4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4,
    "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1, "4.13.2": 1, "6.0.0": 4,
}  # fmt: skip
"""How many each clause has in appendix B; 2.2.1 begins with its second."""

ROW = re.compile(r"^\| MQTT-(\S+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`([\w.]+)`")


def rows() -> list[tuple[str, str, str]]:
    return ROW.findall((DOCS / "mqtt-conformance.md").read_text())


def test_every_statement_is_there_once_and_in_order() -> None:
    wanted = []
    for clause, counted in STATEMENTS.items():
        first, last = counted if isinstance(counted, tuple) else (1, counted)
        wanted += [f"{clause}-{number}" for number in range(first, last + 1)]
    assert len(wanted) == 251
    assert [statement for statement, _, _ in rows()] == wanted


def test_every_row_names_a_test_or_a_reason() -> None:
    for statement, _, shown in rows():
        reasoned = shown.startswith(("*Client.*", "Not applicable: "))
        assert reasoned or NAMED.search(shown), statement


def test_every_test_that_is_named_exists() -> None:
    sources = [path for folder in FOLDERS for path in (TESTS / folder).glob("test_*.py")]
    defined = {
        name
        for path in sources
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    scenarios = {name.rpartition(".")[0] for name in load() if name.endswith(".v5")}
    named = {name for _, _, shown in rows() for name in NAMED.findall(shown)}
    assert named <= defined | scenarios, named - defined - scenarios
