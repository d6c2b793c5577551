"""What setup.py compiles again: all that changed, and nothing else."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent

TREE = {
    "compiled.txt": "# a comment\nsrc/braidmq/a.py\n",
    "src/braidmq/__init__.py": "",
    "src/braidmq/a.py": "import os\nfrom braidmq import b\nfrom braidmq.kernel import work\n",
    "src/braidmq/b.py": "from braidmq.deep.c import C\n",
    "src/braidmq/apart.py": "import braidmq.a\n",
    "src/braidmq/deep/__init__.py": "",
    "src/braidmq/deep/c.py": "class C: ...\n",
    "src/braidmq/kernel.pyx": "def work(): ...\n",
    "src/braidmq/kernel.pyi": "def work() -> None: ...\n",
    "src/braidmq/kernel.pxd": "",
    "src/braidmq/other.pyx": "",
    "src/braidmq/other.h": "",
}

Keys = Callable[[], dict[str, str]]


@pytest.fixture
def building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """setup.py over a small tree, with no compiler to ask."""
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    spec = importlib.util.spec_from_file_location("building", ROOT / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "KERNELS", {"braidmq.kernel": [], "braidmq.other": []})
    monkeypatch.setattr(module, "toolchain", lambda: ["gcc 12"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRAIDMQ_COMPILE", raising=False)
    return module


@pytest.fixture
def keys(building: ModuleType) -> Keys:
    def read() -> dict[str, str]:
        building.library_key.cache_clear()
        return {each.name: building.key_of(each) for each in building.declared_extensions()}

    return read


LIBRARY = {"braidmq__mypyc", "braidmq.a"}
KERNELS = {"braidmq.kernel", "braidmq.other", "braidmq.cython_shared"}


@pytest.mark.parametrize(
    ("changed", "compiled_again"),
    [
        ("src/braidmq/a.py", LIBRARY),
        ("src/braidmq/b.py", LIBRARY),
        ("src/braidmq/deep/c.py", LIBRARY),
        ("src/braidmq/kernel.pyi", LIBRARY),
        ("src/braidmq/apart.py", set()),
        ("src/braidmq/kernel.pyx", {"braidmq.kernel"}),
        ("src/braidmq/kernel.pxd", KERNELS),
        ("src/braidmq/other.h", KERNELS),
    ],
)
def test_a_change_reaches_what_was_made_from_it(
    changed: str, compiled_again: set[str], keys: Keys
) -> None:
    before = keys()
    assert set(before) == LIBRARY | KERNELS
    path = Path(changed)
    path.write_text(path.read_text() + "# changed\n")
    after = keys()
    assert {name for name in before if before[name] != after[name]} == compiled_again


def test_dates_of_files_do_not_count(keys: Keys) -> None:
    before = keys()
    for name in TREE:
        Path(name).touch()
    assert keys() == before


def test_what_was_changed_back_is_found_again(keys: Keys) -> None:
    before = keys()
    path = Path("src/braidmq/deep/c.py")
    path.write_text("class C: x = 1\n")
    assert keys() != before
    path.write_text(TREE["src/braidmq/deep/c.py"])
    assert keys() == before


def test_another_compiler_compiles_everything_again(
    keys: Keys, building: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys()
    monkeypatch.setattr(building, "toolchain", lambda: ["gcc 13"])
    after = keys()
    assert not [name for name in before if before[name] == after[name]]


def test_a_module_that_is_compiled_no_longer_leaves_no_library(building: ModuleType) -> None:
    """Python would import the library, whatever became of the module."""
    suffix = building.sysconfig.get_config_var("EXT_SUFFIX")
    kept, stray = (Path(f"src/braidmq/{name}{suffix}").absolute() for name in ("a", "b"))
    kept.touch()
    stray.touch()
    building.remove_strays({kept})
    assert kept.exists()
    assert not stray.exists()


# --- single objects of a library ---


def test_an_object_is_made_once_for_a_key(building: ModuleType, tmp_path: Path) -> None:
    made = tmp_path / "a.o"
    calls = []

    def compile_it() -> None:
        calls.append(1)
        made.touch()

    for key in ("1", "1", "2", "2"):
        building.make_object(made, key, compile_it)
    assert len(calls) == 2


def test_what_a_failed_compiler_left_is_not_taken_for_an_object(
    building: ModuleType, tmp_path: Path
) -> None:
    made = tmp_path / "a.o"
    building.make_object(made, "1", made.touch)

    def fail() -> None:
        made.write_text("half of it")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        building.make_object(made, "2", fail)
    building.make_object(made, "1", lambda: made.write_text("whole"))
    assert made.read_text() == "whole"


def test_the_key_of_an_object_covers_its_headers_and_flags(building: ModuleType) -> None:
    source = Path("build/generated/a.c")
    source.parent.mkdir(parents=True)
    source.write_text("int a;")
    keys = [building.object_key(str(source), {"extra_postargs": ["-O2"]})]
    keys.append(building.object_key(str(source), {"extra_postargs": ["-O1"]}))
    source.with_name("all.h").write_text("int b;")
    keys.append(building.object_key(str(source), {"extra_postargs": ["-O2"]}))
    source.write_text("int c;")
    keys.append(building.object_key(str(source), {"extra_postargs": ["-O2"]}))
    assert len(set(keys)) == len(keys)
