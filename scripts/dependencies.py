"""Prints what the package and some of its extras need, one requirement a line."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
needed = list(project["dependencies"])
for extra in sys.argv[1:]:
    needed += project["optional-dependencies"][extra]
print("\n".join(needed))
