"""Clients made from the OpenAPI document by generators of others, unchanged: they publish, consume
and acknowledge."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from npm import installed

from braidmq.testing.live import LiveNode

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs" / "openapi.json"
PACKAGES = HERE / "build"
GENERATOR = "openapi-python-client==0.29.1"
WAIT_S = 100


def done(command: list[str], cwd: Path, **environment: str) -> str:
    given = {**os.environ, **environment}
    result = subprocess.run(
        command, cwd=cwd, env=given, capture_output=True, text=True, timeout=WAIT_S
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def python_generator() -> Path:
    """Beside our packages and without its own: it wants an older typer, and works with ours."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (PACKAGES / GENERATOR).exists():
            shutil.rmtree(PACKAGES, ignore_errors=True)
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
            command = [*pip, str(PACKAGES), GENERATOR, "ruamel.yaml"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
            if result.returncode:
                pytest.skip(f"{' '.join(command)} failed: {result.stderr.strip()[-300:]}")
            (PACKAGES / GENERATOR).touch()
    return PACKAGES


def test_python(node: LiveNode, name: str, tmp_path: Path, python_generator: Path) -> None:
    (tmp_path / "config.yml").write_text("post_hooks: []\n")
    generate = [sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning"]
    where = ["--path", str(DOCUMENT), "--output-path", "braid_api", "--meta", "none"]
    path = str(python_generator)
    done([*generate, *where, "--config", "config.yml"], tmp_path, PYTHONPATH=path)
    case = [sys.executable, str(HERE / "python_case.py"), node.http_url, name]
    done(case, tmp_path, PYTHONPATH=str(tmp_path))


def test_typescript(node: LiveNode, name: str, tmp_path: Path) -> None:
    packages = installed(HERE)
    (tmp_path / "node_modules").symlink_to(packages)
    shutil.copy(HERE / "typescript_case.ts", tmp_path)
    tools = packages / ".bin"
    generate = [str(tools / "openapi-typescript"), str(DOCUMENT), "-o", "braid_api.d.ts"]
    # What has a default may be left out.
    done([*generate, "--default-non-nullable=false"], tmp_path)
    strict = ["--strict", "--noUncheckedIndexedAccess", "--skipLibCheck"]
    target = ["--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    done([str(tools / "tsc"), *strict, *target, "typescript_case.ts"], tmp_path)
    assert done(["node", "typescript_case.js", node.http_url, name], tmp_path) == "done\n"
