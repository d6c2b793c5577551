"""The OpenAPI document: current, and fit to be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from braidmq.api.assembly import RESOURCES, openapi_text
from braidmq.api.endpoints import operations_of
from braidmq.api.openapi import TAGS, describe, describing

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
document: dict[str, Any] = json.loads(openapi_text())
operations = [
    pytest.param(operation, id=f"{method} {path}")
    for path, methods in document["paths"].items()
    for method, operation in methods.items()
]


def test_docs_have_what_a_node_serves() -> None:
    assert DOCUMENT.read_text() == openapi_text(), "run `make openapi` and commit docs/openapi.json"


def test_it_is_written_an_operation_at_a_time() -> None:
    every = [each for resource in RESOURCES for each in operations_of(resource)]
    document: dict[str, Any] = {}
    steps = sum(1 for _ in describing(every, document))
    assert steps > len(every)
    assert document == describe(every)


def test_ids_are_unique() -> None:
    ids = [each.values[0]["operationId"] for each in operations]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("operation", operations)
def test_every_operation_says_what_it_does_and_how_it_fails(operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert set(operation["tags"]) <= set(TAGS)
    for status, response in operation["responses"].items():
        assert response["description"]
        if int(status) >= 400 and operation["tags"] != ["health"]:
            assert list(response["content"]) == ["application/problem+json"]
