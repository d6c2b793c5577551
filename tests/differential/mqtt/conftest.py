"""The suite is imported as ``tests.differential.mqtt``, so that ``python -m`` finds it too."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
