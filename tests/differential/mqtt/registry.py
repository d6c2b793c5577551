"""Where scenarios register, and how one is run."""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

from tests.differential.expectations import Observation
from tests.differential.mqtt import scenarios
from tests.differential.mqtt.client import V5, Normal, Stage
from tests.differential.running import Observe

Scenario = tuple[Callable[[Stage], Observation], int]
"""What is done, in which version."""

EXPECTED = Path(__file__).with_name("expected.json")
"""What Mosquitto answered."""
OURS = Path(__file__).with_name("ours.json")
"""What BraidMQ answers where it differs."""

SCENARIOS: dict[str, Scenario] = {}
"""By name, ``area.what_is_tried.v5``."""


def load() -> dict[str, Scenario]:
    """All scenarios: marked functions of the modules in ``scenarios/``, and rows of tables."""
    if SCENARIOS:
        return SCENARIOS
    for module_info in pkgutil.iter_modules(scenarios.__path__):
        module = importlib.import_module(f"{scenarios.__name__}.{module_info.name}")
        own = {
            name: found
            for name, found in vars(module).items()
            if getattr(found, "__module__", None) == module.__name__
        }
        for name, found in (own | getattr(module, "TABLE", {})).items():
            for version in getattr(found, "versions", ()):
                label = "v5" if version == V5 else "v3"
                SCENARIOS[f"{module_info.name}.{name}.{label}"] = (found, version)
    return SCENARIOS


def observer(host: str, port: int) -> Observe:
    def observe(name: str) -> Observation:
        act, version = load()[name]
        stage = Stage(host, port, version)
        try:
            return Normal(stage.prefix)(act(stage))
        finally:
            stage.clean_up()

    return observe
