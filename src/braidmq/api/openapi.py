"""The OpenAPI document, from the operations themselves."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from braidmq import __version__
from braidmq.api.endpoints import BINARY, JSON, Operation
from braidmq.api.paging import NEXT_DESCRIPTION, NEXT_HEADER
from braidmq.api.problems import (
    PROBLEM_TYPE,
    BodyTooLarge,
    PreconditionFailed,
    Problem,
    SlowRequest,
    UnsupportedMediaType,
    status_of,
)
from braidmq.model.errors import (
    AccessRefused,
    BadRequest,
    BraidError,
    NotAuthenticated,
    StorageFailed,
)
from braidmq.security.logins import TooManyLogins
from braidmq.security.rights import Who

REF = "#/components/schemas/{name}"
BYTES = {"type": "string", "format": "binary"}

TAGS = {
    "health": "Is the node alive, and may traffic be sent to it.",
    "topics": "Logs with partitions. An AMQP queue is a topic of the same name.",
    "publishing": "Messages in. An answer of 2xx means that they are on disk.",
    "reading": "Messages by offset or time, without touching anybody's subscription.",
    "subscriptions": "Consuming without membership: receive, then answer for each message.",
    "groups": "Consuming as a member: partitions are shared out among the members of a group.",
    "receipts": "Answering for messages that were received.",
    "transactions": "Publishing once, and what counts together or not at all.",
    "delayed": "Messages that wait for their time.",
    "dead letters": "Messages that were given up.",
    "bulk": "Whole logs for readers such as Spark: segments and records as they are stored.",
    "pipelines": "Spark jobs that report here: what they do, and how they are.",
    "schedules": "Messages that are published again and again.",
    "leases": "Who reads in bulk, and what must stay for them.",
    "exchanges": "Routing as AMQP knows it.",
    "templates": "Settings for topics by the pattern of their names.",
    "policies": "AMQP policies: templates in RabbitMQ's words.",
    "node": "What the node is doing, and who is connected.",
    "statistics": "Figures of reliability, delays, priorities and transactions.",
    "mqtt": "Sessions of MQTT clients, what they subscribed to, and retained messages.",
    "users": "Users, their permissions and their tokens.",
    "namespaces": "Tenants; AMQP calls them virtual hosts.",
}

DESCRIPTION = """\
Everything a BraidMQ node does, over HTTP.

Names in paths are percent-encoded: a topic `a/b` is `/v1/topics/a%2Fb`. The `namespace` parameter
is `/` unless given. Users and permissions are those of AMQP, and each operation says which right
it needs; `Authorization` is Basic, or Bearer
with a token of `/v1/tokens`. Errors are problem documents (RFC 9457), whose `code` does not change.

Lists come in pages: `limit` says how much at most, and where there is more the
header `Braid-Next` of an answer is the `cursor` of the next request. Every answer has an
`X-Request-Id`, the caller's own if it sent one, which the node's log has too.
"""


def describe(operations: Sequence[Operation]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in describing(operations, document):
        pass
    return document


def describing(operations: Sequence[Operation], document: dict[str, Any]) -> Iterator[None]:
    """Write the document, an operation at a time: all of them take a node some 150 ms."""
    components: dict[str, Any] = {}
    schema_of = _Schemas(components)
    for each in _types(operations):
        schema_of(each)
        yield
    paths: dict[str, dict[str, Any]] = {}
    for operation in sorted(operations, key=lambda each: (each.path, each.method)):
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(
            operation, schema_of
        )
        yield
    document |= {
        "openapi": "3.1.0",
        "info": {
            "title": "BraidMQ",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _types(operations: Iterable[Operation]) -> Iterable[Any]:
    yield Problem
    for operation in operations:
        for each in (operation.body, operation.answer):
            if each is not None and each is not bytes:
                yield each


class _Schemas:
    def __init__(self, components: dict[str, Any]) -> None:
        self._components = components

    def __call__(self, wanted: Any) -> dict[str, Any]:
        (schema,), found = msgspec.json.schema_components([wanted], ref_template=REF)
        for name, each in found.items():
            _plain(each)
            assert self._components.setdefault(name, each) == each, f"two schemas named {name}"
        return schema

    def fields(self, struct: Any) -> tuple[dict[str, Any], list[str]]:
        """The properties of a struct, and which of them must be there."""
        (schema,), found = msgspec.json.schema_components([struct], ref_template=REF)
        own = found[schema["$ref"].rpartition("/")[2]]
        _plain(own)
        return own["properties"], own.get("required", [])


def _plain(schema: Any) -> None:
    """In words that generators of clients know: msgspec says `items: false` beside `maxItems`, and
    of an object with any fields nothing at all, which they take for one with none."""
    if isinstance(schema, dict):
        if schema.get("items") is False and "maxItems" in schema:
            del schema["items"]
        if schema.get("type") == "object" and "properties" not in schema:
            schema.setdefault("additionalProperties", True)
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            _plain(each)


def _described(operation: Operation, schema_of: _Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _id(operation),
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": _parameters(operation, schema_of),
        "responses": _responses(operation, schema_of),
    }
    right = f"Right: {operation.right}."
    described["description"] = "\n\n".join(filter(None, (operation.description, right)))
    if operation.body is not None:
        described["requestBody"] = _request_body(operation, schema_of)
    if operation.right.who is not Who.ANYONE:
        described["security"] = [{"basic": []}, {"token": []}]
    return described


def _id(operation: Operation) -> str:
    words = re.split(r"[_\W]+", operation.name)
    return words[0] + "".join(word.capitalize() for word in words[1:])


def _parameters(operation: Operation, schema_of: _Schemas) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": _in_path(schema_of(wanted))}
        for name, wanted in operation.segments.items()
    ]
    for where, struct in (("query", operation.query), ("header", operation.headers)):
        if struct is None:
            continue
        properties, required = schema_of.fields(struct)
        for name, schema in properties.items():
            parameter = {"name": name, "in": where, "required": name in required}
            schema = dict(schema)
            if "description" in schema:
                parameter["description"] = schema.pop("description")
            parameter["schema"] = schema
            found.append(parameter)
    return found


def _in_path(schema: dict[str, Any]) -> dict[str, Any]:
    """A segment that is empty is another path."""
    return {"minLength": 1, **schema} if schema.get("type") == "string" else schema


def _request_body(operation: Operation, schema_of: _Schemas) -> dict[str, Any]:
    if operation.body is bytes:
        return {"required": False, "content": {BINARY: {"schema": BYTES}}}
    media: dict[str, Any] = {"schema": schema_of(operation.body)}
    if operation.examples:
        media["examples"] = {
            f"example {number}": {"value": example}
            for number, example in enumerate(operation.examples, 1)
        }
    return {"required": not _may_be_empty(operation.body), "content": {JSON: media}}


def _may_be_empty(body: Any) -> bool:
    return all(not field.required for field in msgspec.structs.fields(body))


def _responses(operation: Operation, schema_of: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in operation.statuses:
        responses[str(status)] = {"description": "Done" if status != 201 else "Made"}
        if operation.binary:
            responses[str(status)]["content"] = {
                BINARY: {"schema": BYTES},
                "*/*": {"schema": BYTES},
            }
        elif operation.answer is not None and status != 204:
            responses[str(status)]["content"] = {JSON: {"schema": schema_of(operation.answer)}}
        if _comes_in_pages(operation):
            responses[str(status)]["headers"] = {
                NEXT_HEADER: {"description": NEXT_DESCRIPTION, "schema": {"type": "string"}}
            }
    by_status: dict[int, list[type[BraidError]]] = {}
    for error in _errors(operation):
        by_status.setdefault(status_of(error), []).append(error)
    for number, errors in sorted(by_status.items()):
        codes = ", ".join(f"`{code}`" for code in sorted({each.code for each in errors}))
        responses[str(number)] = {
            "description": f"Codes: {codes}",
            "content": {PROBLEM_TYPE: {"schema": schema_of(Problem)}},
        }
    return responses


def _comes_in_pages(operation: Operation) -> bool:
    return operation.query is not None and any(
        field.name == "cursor" for field in msgspec.structs.fields(operation.query)
    )


def _errors(operation: Operation) -> list[type[BraidError]]:
    """Those it names, and those every operation of its sort can have."""
    found = list(operation.errors)
    if operation.right.who is Who.ANYONE:
        return found
    found += [BadRequest, NotAuthenticated, AccessRefused, TooManyLogins, StorageFailed]
    if operation.method != "GET":
        found.append(PreconditionFailed)
    found += [BodyTooLarge, SlowRequest]
    if operation.body is not None:
        found.append(UnsupportedMediaType)
    return found
