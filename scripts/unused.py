"""Declarations that nobody uses, found by vulture: ``make lint``.

What only tests use is unused too, except in ``braidmq.testing`` and in the client, whose users are
outside. ``unused.toml`` lists what vulture can't see the use of, and why it stays. Kernels are
checked by ``tests/test_tidy.py``; here what they mention counts as used.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from keyword import iskeyword
from pathlib import Path
from typing import Any

from vulture import Vulture

ROOT = Path(__file__).parent.parent
USED_BY_TESTS = ("src/braidmq/testing/*", "src/braidmq/client/*")
REGISTERED = ["@operation", "@*app.command", "@*app.callback"]
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
CONFIDENCE = 60  # percent; above it vulture looks at imports and unreachable code only


def unused(*users: str) -> Iterator[tuple[str, int, str]]:
    """Path, line and name of what these folders declare and do not use."""
    found = Vulture(ignore_decorators=REGISTERED)
    found.scavenge([ROOT / folder for folder in users])
    found.scan("\n".join(kernel_names()), filename=Path("kernels"))
    for item in found.get_unused_code(min_confidence=CONFIDENCE):
        path = Path(item.filename).relative_to(ROOT)
        yield str(path), item.first_lineno, item.name


def kernel_names() -> list[str]:
    kernels = (ROOT / "src").rglob("*.p[yx][xd]")
    names = {name for path in kernels for name in NAME.findall(path.read_text())}
    return sorted(name for name in names if not iskeyword(name))


def is_for_tests(path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in USED_BY_TESTS)


def is_allowed(path: str, name: str, entry: dict[str, Any]) -> bool:
    return fnmatch(path, entry["where"]) and any(fnmatch(name, each) for each in entry["names"])


def main() -> int:
    allowed = tomllib.loads((ROOT / "scripts/unused.toml").read_text())["allowed"]
    product = [each for each in unused("src", "bench", "scripts") if not is_for_tests(each[0])]
    every = unused("src", "bench", "scripts", "tests")
    found = product + [each for each in every if is_for_tests(each[0])]
    needed = [False] * len(allowed)
    wrong = 0
    for path, line, name in sorted(found):
        uses = [is_allowed(path, name, entry) for entry in allowed]
        needed = [was or now for was, now in zip(needed, uses, strict=True)]
        if not any(uses):
            print(f"{path}:{line}: nobody uses {name}")
            wrong += 1
    for entry, is_needed in zip(allowed, needed, strict=True):
        if not is_needed:
            print(f"scripts/unused.toml: {entry['where']} needs no leave for {entry['names']}")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
