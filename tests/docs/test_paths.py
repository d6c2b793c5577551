"""The paths in CONTRIBUTING lead through functions that are there, and through few files."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "braidmq"
SECTION = re.compile(r"^### (.+?)\n(.+?)(?=^#|^[A-Z])", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\| `([\w/.]+)` \| `([\w.]+)` \|", re.MULTILINE)
PUBLISH_FILES_MAX = 10
OTHER_FILES_MAX = 8


def paths() -> dict[str, list[tuple[str, str]]]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    begins = text.index("## Where a message goes")
    part = text[begins : text.index("\n## ", begins + 1)]
    return {title: STEP.findall(table) for title, table in SECTION.findall(part)}


def has(file: Path, name: str) -> bool:
    if file.suffix == ".py":
        found: object = importlib.import_module(
            ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        )
        for each in name.split("."):
            found = getattr(found, each, None)
        return callable(found)
    # A kernel's own functions can't be seen from Python.
    *owner, function = name.split(".")
    text = file.read_text()
    if owner:
        begins = re.search(rf"^cdef class {owner[0]}\b.*\n", text, re.MULTILINE)
        if begins is None:
            return False
        text = re.split(r"^\S", text[begins.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    return re.search(rf"^\s*c?p?def (?:\w+ )*{function}\(", text, re.MULTILINE) is not None


@pytest.mark.parametrize(("title", "steps"), paths().items(), ids=paths().keys())
def test_a_path_can_be_read(title: str, steps: list[tuple[str, str]]) -> None:
    assert [step for step in steps if not has(PACKAGE / step[0], step[1])] == []
    files = [file for file, _ in steps]
    assert len(files) == len(set(files)), "each file once"
    assert len(files) <= (PUBLISH_FILES_MAX if "publish" in title else OTHER_FILES_MAX)


def test_all_paths_are_found() -> None:
    assert len(paths()) == 6
    assert all(paths().values())


def test_a_function_that_is_not_there_is_noticed() -> None:
    assert not has(PACKAGE / "engine/settling.py", "Settling.ackk")
    assert not has(PACKAGE / "net/tcp.pyx", "TcpLink.readablee")
    assert not has(PACKAGE / "net/tcp.pyx", "Poller.readable")
