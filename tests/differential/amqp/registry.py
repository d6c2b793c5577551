"""Where scenarios register, and how one is run."""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

from tests.differential.amqp import scenarios
from tests.differential.amqp.client import Client, Normal
from tests.differential.amqp.operators import Operator
from tests.differential.expectations import Observation
from tests.differential.running import Observe

Scenario = Callable[[Client], Observation]

EXPECTED = Path(__file__).with_name("expected.json")
"""What RabbitMQ answered."""

SCENARIOS: dict[str, Scenario] = {}
"""By name, ``area.what_is_tried``."""


def load() -> dict[str, Scenario]:
    """All scenarios: every public function of the modules in ``scenarios/`` that takes a client."""
    if SCENARIOS:
        return SCENARIOS
    for module_info in pkgutil.iter_modules(scenarios.__path__):
        module = importlib.import_module(f"{scenarios.__name__}.{module_info.name}")
        for name, found in vars(module).items():
            own = getattr(found, "__module__", None) == module.__name__
            if own and callable(found) and getattr(found, "is_scenario", False):
                SCENARIOS[f"{module_info.name}.{name}"] = found
        for name, made in getattr(module, "TABLE", {}).items():
            SCENARIOS[f"{module_info.name}.{name}"] = made
    return SCENARIOS


def observer(host: str, port: int, operator: Operator | None) -> Observe:
    def observe(name: str) -> Observation:
        client = Client(host, port, operator)
        try:
            return Normal(client.prefix)(load()[name](client))
        finally:
            client.clean_up()

    return observe
