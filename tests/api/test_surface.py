"""The whole surface, fuzzed from its own OpenAPI document: what comes back was documented.

Paths name things that are there as often as things that are not, so that requests get past "not
found". ``SCHEMATHESIS_EXAMPLES=200 pytest tests/api/test_surface.py`` looks longer.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from braidmq.engine.policy import HOUR_MS
from braidmq.testing.live import LiveNode, live_node

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "6"))
DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    negative_data_rejection,
    unsupported_method,
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
)
WAIT_MS_MAX = 20
UNKNOWN_HEADER = "x-schemathesis-unknown-property"
THERE: dict[str, list[Any]] = {
    "topic": ["orders", "queue/é", "full"],
    "subscription": ["billing", "queue"],
    "group": ["team"],
    "member": ["mia"],
    "partition": [0, 1],
    "offset": [0, 1, 2],
    "exchange": ["amq.topic", "amq.default", "own"],
    "name": ["ann", "shop", "nightly"],
    "namespace": ["/", "shop"],
    "user": ["ann"],
    "lease": ["job"],
}

schema = schemathesis.openapi.from_path(DOCUMENT)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNode]:
    with live_node(tmp_path_factory.mktemp("data"), mqtt_port=0, ws_port=0) as running:
        furnish(running.http_url)
        yield running


def furnish(url: str) -> None:
    """Something of everything."""
    with httpx.Client(base_url=url, auth=("guest", "guest"), timeout=30) as client:
        for method, path, body in (
            ("PUT", "/v1/topics/orders", {"settings": {"partitions": 2}}),
            (
                "PUT",
                "/v1/topics/queue%2F%C3%A9",
                {"settings": {"retention": {"until_acked": True}}},
            ),
            ("PUT", "/v1/topics/full", {"settings": {"max_messages": 1}}),
            ("PUT", "/v1/topics/full/subscriptions/billing", {}),
            ("PUT", "/v1/topics/orders/subscriptions/billing", {}),
            ("PUT", "/v1/topics/queue%2F%C3%A9/subscriptions/queue", {}),
            ("PUT", "/v1/exchanges/own", {"kind": "headers"}),
            ("POST", "/v1/bindings", {"source": "amq.topic", "destination": "orders"}),
            ("PUT", "/v1/templates/nightly", {"pattern": "^n", "settings": {}}),
            ("PUT", "/v1/users/ann", {"password": "x"}),
            ("PUT", "/v1/namespaces/shop", {}),
            ("POST", "/v1/groups/team/members", {"topics": ["orders"], "member_id": "mia"}),
            (
                "PUT",
                "/v1/leases/job",
                {"positions": [{"topic": "orders", "partition": 0, "offset": 0}]},
            ),
            ("POST", "/v1/topics/orders/messages", {"value": "later", "delay_ms": 3_600_000}),
            ("POST", "/v1/topics/orders/messages/batch", {"messages": [{"value": "x"}] * 9}),
        ):
            assert client.request(method, path, json=body).is_success, path


def aim(case: schemathesis.Case) -> None:
    """Have it name things that are there, every second time, and wait for a moment only.

    What is wrong on purpose stays wrong.
    """
    if not is_negated(case, ParameterLocation.PATH):
        for name, drawn in (case.path_parameters or {}).items():
            if name in THERE:
                case.path_parameters[name] = there(name, str(drawn))
    if isinstance(case.body, dict) and case.path.endswith(("/receive", "/poll")):
        wait_ms = case.body.get("wait_ms", HOUR_MS)
        if isinstance(wait_ms, int) and WAIT_MS_MAX < wait_ms <= HOUR_MS:
            case.body["wait_ms"] = WAIT_MS_MAX


def is_negated(case: schemathesis.Case, where: ParameterLocation) -> bool:
    part = case.meta.components.get(where) if case.meta is not None else None
    return part is not None and part.mode.is_negative


def checks_for(case: schemathesis.Case) -> tuple[CheckFunction, ...]:
    """A header nobody knows is no mistake in HTTP: there are always others."""
    if UNKNOWN_HEADER in (case.headers or {}):
        return tuple(check for check in CHECKS if check is not negative_data_rejection)
    return CHECKS


def there(name: str, drawn: str) -> Any:
    """By what was drawn: the same examples every time, and both sorts of them."""
    choice = sum(drawn.encode("utf-8", "surrogatepass"))
    return THERE[name][choice % len(THERE[name])] if choice % 2 else drawn


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_only_what_is_documented_comes_back(case: schemathesis.Case, node: LiveNode) -> None:
    aim(case)
    response = case.call(base_url=node.http_url, auth=("guest", "guest"), timeout=30)
    case.validate_response(response, checks=checks_for(case))
    if response.status_code >= 400 and not case.path.startswith(("/health", "/ready")):
        assert response.headers["content-type"] == ["application/problem+json"]
        assert {"type", "title", "status", "detail", "code"} <= response.json().keys()
