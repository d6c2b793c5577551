"""Where scenarios register, and how one is run."""

import importlib
import pkgutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.differential.amqp import scenarios
from tests.differential.amqp.client import Client, Normal, Observation
from tests.differential.amqp.operators import Operator

Scenario = Callable[[Client], Observation]

JOBS = 8
"""Scenarios run at a time: mostly they wait for what should not come."""

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


def observe(name: str, host: str, port: int, operator: Operator | None) -> Observation:
    """Run one scenario; what the client saw, without what differs from run to run."""
    client = Client(host, port, operator)
    try:
        return Normal(client.prefix)(load()[name](client))
    finally:
        client.clean_up()


def observe_all(
    names: list[str], host: str, port: int, jobs: int, operator: Operator | None
) -> tuple[dict[str, Observation], dict[str, float]]:
    """Observations and seconds taken, by name. Scenarios share nothing, so they may overlap.

    One that could not go on, as a step it takes for granted failed, has ``{"failed": why}``.
    """

    def timed(name: str) -> tuple[Observation, float]:
        began = time.monotonic()
        try:
            seen = observe(name, host, port, operator)
        except Exception as error:
            seen = {"failed": f"{type(error).__name__}: {error}"}
        return seen, time.monotonic() - began

    with ThreadPoolExecutor(jobs) as pool:
        results = dict(zip(names, pool.map(timed, names), strict=True))
    return (
        {name: seen for name, (seen, _) in results.items()},
        {name: took for name, (_, took) in results.items()},
    )
