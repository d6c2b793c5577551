"""House rules that the linters can't see."""

import importlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "braidmq"
WRITTEN_BY_HAND = {".py", ".pyi", ".pyx", ".pxd", ".h"}
FILE_LINES_MAX = 800  # STYLE: a file over this wants splitting
KERNEL_LINES_MAX = 900  # a cdef class can't be continued in another file

FROM_IMPORT = re.compile(r"^\s*from\s+(\S+)\s+c?import\s+(.+)$", re.MULTILINE)
PLAIN_IMPORT = re.compile(r"^\s*c?import\s+(.+)$", re.MULTILINE)
CONTINUED = re.compile(r"\\\n|\(([^()]*)\)")
PRINT = re.compile(r"(?<![\w.])print\(")
DOCSTRING = re.compile(r'"""(?:.|\n)*?"""')
KERNEL_DECLARATION = re.compile(
    r"^[ \t]*(?:(?:cdef +)?class +(\w+)|(?:def|cpdef|cdef)\b[^\n(=]*?(\w+) *\([^\n]*$)",
    re.MULTILINE,
)
LEFTOVER = re.compile(r"\b(?:TODO|FIXME|XXX)\b")


def named(path: Path) -> str:
    return str(path.relative_to(SRC))


def sources(*suffixes: str) -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*")
        if path.suffix in (suffixes or WRITTEN_BY_HAND) and path.is_file()
    )


def ranks() -> dict[str, int]:
    """Layer to height, as pyproject.toml has it for import-linter: one place to change."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {
        name.strip(" ()"): -depth
        for depth, row in enumerate(layers)
        for name in re.split(r"[|:]", row)
    }


def imported(text: str, package: str) -> Iterator[str]:
    """Full names of what a kernel's ``import`` and ``cimport`` lines name."""
    text = CONTINUED.sub(lambda found: (found[1] or "").replace("\n", " "), text)
    for module, names in FROM_IMPORT.findall(text):
        base = resolved(module, package)
        yield from (f"{base}.{name}" for name in bare(names))
    for names in PLAIN_IMPORT.findall(text):
        yield from bare(names)


def bare(names: str) -> list[str]:
    """``a as b, c  # why`` names ``a`` and ``c``."""
    return [name.split()[0] for name in names.partition("#")[0].split(",") if name.strip()]


def resolved(module: str, package: str) -> str:
    dots = len(module) - len(module.lstrip("."))
    if not dots:
        return module
    parts = package.split(".")
    kept = parts[: len(parts) - dots + 1]
    return ".".join([*kept, module[dots:]]) if module[dots:] else ".".join(kept)


def upward(text: str, package: str, heights: dict[str, int]) -> list[str]:
    """Imports that climb, or that reach for a part of BraidMQ outside the layers."""
    own = heights[package.split(".")[1]]
    ours = [name for name in imported(text, package) if name.startswith("braidmq.")]
    return [name for name in ours if heights.get(name.split(".")[1], own + 1) > own]


HEIGHTS = {"server": 0, "gateways": -1, "storage": -2, "model": -3}


@pytest.mark.parametrize(
    "line",
    [
        "from braidmq.server cimport Node",
        "from braidmq.gateways.http.app import make_app",
        "cimport braidmq.server as server",
        "import os, braidmq.server",
        "from braidmq cimport server",
        "from .. import gateways",
        "from ..gateways.http cimport app",
        "    import braidmq.server",
        "from braidmq.testing import live",
        "from braidmq import (\n    model,\n    server,\n)",
        "from braidmq import model, \\\n    server",
    ],
)
def test_the_check_sees_an_upward_import(line: str) -> None:
    assert upward(f"import os\n{line}\n", "braidmq.storage", HEIGHTS)


@pytest.mark.parametrize(
    "line",
    [
        "from braidmq.model.ids import Offset",
        "from braidmq.storage.record cimport Header as H  # braidmq.server",
        "from .record cimport Header",
        "from . cimport record",
        "from ..model import ids",
        "from libc.stdint cimport uint8_t, uint32_t",
        'cdef extern from "crc32c.h":',
        "# see braidmq.server",
    ],
)
def test_the_check_allows_sideways_and_downward(line: str) -> None:
    assert not upward(f"{line}\n", "braidmq.storage", HEIGHTS)


def test_kernels_import_downward_only() -> None:
    heights = ranks()
    assert heights["cli"] > heights["server"] > heights["storage"] > heights["model"]
    wrong = {
        named(path): names
        for path in sources(".pyx", ".pxd")
        if (
            names := upward(path.read_text(), ".".join(path.parent.relative_to(SRC).parts), heights)
        )
    }
    assert not wrong


def test_every_kernel_has_its_types_beside_it() -> None:
    bare_kernels = [named(p) for p in sources(".pyx") if not p.with_suffix(".pyi").exists()]
    assert not bare_kernels


# What tests see of a structure in C.
WINDOWS = {
    "crc32c_portable",  # what processors without the instruction get
    "directory_size",
    "find_header",  # what compaction finds, for its oracle
    "in_flight_bytes",
    "is_ready",
    "kafka_hash",  # for Kafka's own vectors
    "node_count",
}


def code_of(text: str) -> str:
    return "\n".join(line.partition("#")[0] for line in DOCSTRING.sub("", text).splitlines())


def unused_names(kernels: list[str], others: list[str]) -> set[str]:
    """Functions and classes that these kernels declare and no code names."""
    texts = [code_of(text) for text in kernels]
    declared = Counter(
        name
        for text in texts
        for names in KERNEL_DECLARATION.findall(text)
        for name in names
        if name and not name.startswith("__")
    )
    named = Counter(re.findall(r"\w+", "\n".join([*texts, *map(code_of, others)])))
    return {name for name, times in declared.items() if named[name] <= times}


def test_the_check_sees_what_a_kernel_declares_for_nobody() -> None:
    kernel = """
cdef class Used:
    cdef int64_t count(self) except -1:
        return 0
    def idle(self, x=1):  # idle
        pass
cdef inline const char *lost(int a) noexcept:
    return NULL
cpdef tuple pair(
    int a,
):
    return used(a)
cdef int used(int a) except -1: ...
class Alone:
    pass
    """
    assert unused_names([kernel], ["x = Used().count"]) == {"idle", "lost", "pair", "Alone"}


def test_kernels_declare_nothing_for_nobody() -> None:
    kernels = [path.read_text() for path in sources(".pyx", ".pxd")]
    users = [*sources(".py"), *(ROOT / "bench").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    assert unused_names(kernels, [path.read_text() for path in users]) == WINDOWS


def test_every_package_has_a_readme() -> None:
    packages = [path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    assert packages
    assert not [named(folder) for folder in packages if not (folder / "README.md").exists()]


# --- what is said of files ---

ROOMS = [ROOT / "bench", ROOT / "scripts", *sorted(p.parent for p in PACKAGE.rglob("README.md"))]
PAGES = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "ARCHITECTURE.md",
    ROOT / "docs" / "adr" / "README.md",
    *(room / "README.md" for room in ROOMS),
]
IN_A_ROOM = {".py", ".pyx", ".pxd", ".h", ".toml"}
NOT_TOLD = {"__init__.py", "__main__.py"}
QUOTED = re.compile(r"`([^`\s]+)`")
LINKED = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
A_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:/|\.(?:py|pyx|pyi|pxd|h|md|toml|json|txt))")


def files_named(text: str) -> set[str]:
    """Paths in backticks that look like a file or folder of ours, and links that stay here."""
    quoted = {name for name in QUOTED.findall(text) if A_FILE.fullmatch(name)}
    return quoted | {name for name in LINKED.findall(text) if "://" not in name}


def exists(name: str, page: Path) -> bool:
    """From the page's folder, or from the roots a reader would start at."""
    starts = [page.parent, PACKAGE, SRC, ROOT]
    return any((start / name).exists() for start in starts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page: Path) -> None:
    names = files_named(page.read_text())
    assert not sorted(name for name in names if not exists(name, page))


def told(path: Path, names: set[str]) -> bool:
    """By its name; a kernel also without its suffix, a header of one with the kernel."""
    if path.suffix == ".pxd" and path.with_suffix(".pyx").exists():
        return True
    return path.name in names or (path.suffix == ".pyx" and path.stem in names)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_every_file_of_a_room_is_named_in_its_readme(room: Path) -> None:
    text = (room / "README.md").read_text()
    names = set(QUOTED.findall(text)) | {name.rstrip("/") for name in files_named(text)}
    files = [p for p in room.iterdir() if p.suffix in IN_A_ROOM and p.name not in NOT_TOLD]
    assert not sorted(path.name for path in files if not told(path, names))
    rooms_inside = [p.name for p in room.iterdir() if (p / "README.md").exists()]
    linked = {name.removesuffix("/README.md") for name in names}
    assert not sorted(name for name in rooms_inside if name not in linked)


def test_every_room_is_in_the_architecture() -> None:
    names = set(QUOTED.findall((ROOT / "docs" / "ARCHITECTURE.md").read_text()))
    rooms = {f"{p.name}/" for p in PACKAGE.iterdir() if (p / "__init__.py").exists()}
    files = {p.name for p in PACKAGE.glob("*.py") if p.name not in NOT_TOLD}
    assert not sorted((rooms | files) - names)


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    linked = set(LINKED.findall((folder / "README.md").read_text()))
    assert not sorted(p.name for p in folder.glob("0*.md") if p.name not in linked)


def test_every_benchmark_can_be_imported() -> None:
    """Nobody runs all of them after a change; a name that moved is found here."""
    for path in sorted((ROOT / "bench").glob("*.py")):
        importlib.import_module(f"bench.{path.stem}")


def test_no_file_is_too_long() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in sources()}
    limits = {".pyx": KERNEL_LINES_MAX}
    assert not {
        name: lines
        for name, lines in lengths.items()
        if lines > limits.get(Path(name).suffix, FILE_LINES_MAX)
    }


def test_nothing_is_left_for_later_in_a_comment() -> None:
    assert not [named(path) for path in sources() if LEFTOVER.search(path.read_text())]


def test_only_the_command_line_prints() -> None:
    quiet = [path for path in sources() if PACKAGE / "cli" not in path.parents]
    texts = {path: DOCSTRING.sub("", path.read_text()) for path in quiet}  # examples print
    assert not [named(path) for path in quiet if PRINT.search(texts[path])]


def test_compiled_modules_are_not_older_than_their_source() -> None:
    """What is compiled is what gets imported: a stale one would be tested instead."""
    lines = (ROOT / "compiled.txt").read_text().splitlines()
    modules = [ROOT / line for line in lines if not line.startswith("#")]
    # All their code is in one library; the files beside the modules only point to it.
    for library in SRC.glob("braidmq__mypyc.*.so"):
        built = library.stat().st_mtime
        stale = [named(module) for module in modules if module.stat().st_mtime > built]
        assert not stale, "run make setup"


ENGINE_DOOR = re.compile(r"import Engine\b|\.schedule_turn\(|\b_engine\b")
"""What only the runtime may have: the engine itself, and turns asked for by hand."""


def test_the_engine_is_reached_through_the_runtime() -> None:
    """``NodeLoop.engine()`` appends what was gathered and schedules the turn: with another way to
    the engine either could be forgotten. A signature may name the type."""
    rooms = ("api", "gateways", "alerts", "net")
    found = {
        named(path): hits
        for room in rooms
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (hits := ENGINE_DOOR.findall(without_typing(path.read_text())))
    }
    assert not found


def without_typing(text: str) -> str:
    """Without the import of the type, where a parameter is annotated with it and nothing kept."""
    is_named = re.search(r"\bengine: Engine\b|-> Engine\b", text)
    return re.sub(r"^.*import Engine\n", "", text, flags=re.MULTILINE) if is_named else text


def test_views_are_not_written_through() -> None:
    """``NodeLoop.view`` is for looking: what changes the engine's state goes through its parts."""
    written = re.compile(r"\.view\.state\.(?:save_\w+|mark_dirty|next_id)|\.view\.store\.append")
    found = {named(path) for path in sources(".py") if written.search(path.read_text())}
    assert not found
