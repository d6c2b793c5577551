"""The OpenAPI document: current, and fit to be read."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braidmq.api.assembly import RESOURCES, openapi_text
from braidmq.api.endpoints import operations_of
from braidmq.api.openapi import TAGS, describe, describing
from braidmq.api.reference_page import page

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


def integers_in(schema: dict[str, Any], place: str, seen: frozenset[str]) -> Iterator[Any]:
    """Where a schema has integers, and each of them."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from integers_in(document["components"]["schemas"][name], place, seen | {name})
    if schema.get("type") == "integer":
        yield place, schema
    parts = [*schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    parts += [schema[each] for each in ("items", "additionalProperties") if each in schema]
    for each in parts:
        if isinstance(each, dict):
            yield from integers_in(each, place, seen)
    for name, each in schema.get("properties", {}).items():
        yield from integers_in(each, f"{place}.{name}", seen)


@pytest.mark.parametrize("operation", operations)
def test_numbers_that_are_sent_have_bounds(operation: dict[str, Any]) -> None:
    """JSON has integers of any length, and nothing that keeps them has."""
    sent = [(each["name"], each["schema"]) for each in operation["parameters"]]
    bodies = operation.get("requestBody", {}).get("content", {}).values()
    sent += [("body", each["schema"]) for each in bodies]
    found = [one for place, schema in sent for one in integers_in(schema, place, frozenset())]
    for place, each in found:
        assert {"minimum", "exclusiveMinimum"} & each.keys(), place
        assert "maximum" in each, place


LISTS_OF_ONE_THING = {
    "describeLog": "what one topic's log is made of",
    "findTimes": "a line for each partition of a topic",
    "readMessages": "a log: by offsets and times, `next` says where to go on",
    "delayStats": "the hundred topics with most",
}


def schema_of(operation: dict[str, Any]) -> dict[str, Any]:
    done = next(iter(operation["responses"].values()))
    schema: dict[str, Any] = done.get("content", {}).get("application/json", {}).get("schema", {})
    if "$ref" in schema:
        return document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def test_every_list_comes_in_pages() -> None:
    for path, methods in document["paths"].items():
        operation = methods.get("get", {"responses": {0: {}}})
        # What ends with a name in its path is one thing, with whatever belongs to it.
        if path.endswith("}") or operation.get("operationId") in LISTS_OF_ONE_THING:
            continue
        schema = schema_of(operation)
        found = [schema, *schema.get("properties", {}).values()]
        if any(each.get("type") == "array" for each in found):
            names = {each["name"] for each in operation["parameters"]}
            assert names >= {"limit", "cursor"}, operation["operationId"]
            limit = next(each for each in operation["parameters"] if each["name"] == "limit")
            assert limit["schema"]["maximum"] <= 10_000


def test_pages_are_asked_for_in_one_way() -> None:
    for operation in (each.values[0] for each in operations):
        names = {each["name"] for each in operation["parameters"] if each["in"] == "query"}
        assert not names & {"after", "before", "page", "next"}, operation["operationId"]
        done = next(iter(operation["responses"].values()))
        assert ("cursor" in names) == ("Braid-Next" in done.get("headers", {}))
        assert "cursor" not in names or "limit" in names


def test_the_reference_has_every_operation_and_needs_no_network() -> None:
    text = page(document)
    for operation in (each.values[0] for each in operations):
        assert f'id="{operation["operationId"]}"' in text
    for name in document["components"]["schemas"]:
        assert f'id="schema-{name}"' in text
    assert "<script" not in text
    outside = re.findall(r'(?:href|src)="([^"#]+)"', text)
    assert outside == ["/openapi.json"]
