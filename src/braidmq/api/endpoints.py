"""What the API can do, one operation a method, and how a request becomes a call of it.

A resource is a class whose methods are marked with ``operation``. Everything a client may send is
in the signature, so what is accepted and what the OpenAPI document says can't differ:

    @operation("GET", "/v1/topics/{topic}/messages", right=read("topic"), tag="messages")
    async def read(self, call: Call, topic: str, query: ReadQuery) -> Messages:

Segments of the path come under their names, ``query``, ``headers`` and ``body`` as msgspec
structs. ``right`` is what its caller must be allowed (``security/rights.py``); ``guard`` has seen
to that when the method is called. What is returned becomes the body, with the first status of the
operation; an ``Answer`` has a status of its own, a ``Page`` says where the next begins, and a
``Response`` is sent as it is.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
import msgspec.inspect
from msgspec import UNSET, UnsetType
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from braidmq.api.access import Caller
from braidmq.api.paging import NEXT_HEADER, Page
from braidmq.api.problems import NO_STORE, PreconditionFailed
from braidmq.engine.makers import SetBy
from braidmq.model.errors import AccessRefused, BadRequest, BraidError, NotAuthenticated
from braidmq.model.limits import KIB, MIB
from braidmq.security.permissions import Grants, maker_of
from braidmq.security.records import User
from braidmq.security.rights import Right

BODY_BYTES_MAX = 64 * KIB
"""Ten times three patterns of full length; read before anything is known of its sender's intent."""

COUNTED_BYTES = MIB
"""In a larger body lists are counted before their objects are made."""

JSON = "application/json"
BINARY = "application/octet-stream"

AnyHandler = TypeVar("AnyHandler", bound=Callable[..., Awaitable[Any]])


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key nobody knows is refused: a misspelt limit must not be taken for none."""


class Call(NamedTuple):
    """One request, who sent it, and what they may do in the namespace it is about. For operations
    that anyone may call the user is nobody."""

    request: Request
    caller: Caller
    known_grants: Grants | None
    """None where no namespace had to be entered."""

    @property
    def user(self) -> User:
        return self.caller.user

    @property
    def grants(self) -> Grants:
        assert self.known_grants is not None, "its right names no namespace"
        return self.known_grants

    @property
    def maker(self) -> SetBy:
        """Whose rights count for what the caller makes, where that names other objects."""
        return maker_of(self.user, self.grants)

    def require_still(self, may: Callable[[], bool]) -> None:
        """For what takes long: log-in and right must hold until its end. Raises AccessRefused."""
        if not self.caller.is_current():
            raise NotAuthenticated(f"the login of user {self.user.name!r} is no longer valid")
        if not may():
            raise AccessRefused(
                f"user {self.user.name!r} lost the permission for this while it was waiting"
            )


class Answer(NamedTuple):
    """A body with a status other than the usual one."""

    body: object
    status: int


WAYS = (NoneType, Response, Answer, Page)


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    name: str
    tag: str
    summary: str
    description: str
    statuses: tuple[int, ...]
    """Those of success; the first is the usual one."""
    errors: tuple[type[BraidError], ...]
    right: Right
    segments: dict[str, Any]
    """Name → type of what varies in the path."""
    query: Any
    headers: Any
    body: Any
    answer: Any
    binary: bool
    """The answer is not JSON."""
    body_bytes_max: int
    traffic: bool
    """What clients do all the time. Every other request that changes something is logged."""
    examples: tuple[Any, ...]
    """Of bodies."""

    @property
    def pattern(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/"))


class Bound(NamedTuple):
    """An operation of one resource, ready to be called."""

    operation: Operation
    handler: Callable[..., Awaitable[Any]]
    decode_body: Callable[[bytes], Any] | None


def operation(
    method: str,
    path: str,
    *,
    right: Right,
    tag: str,
    statuses: tuple[int, ...] = (200,),
    errors: tuple[type[BraidError], ...] = (),
    binary: bool = False,
    body_bytes_max: int = BODY_BYTES_MAX,
    traffic: bool = False,
    examples: tuple[Any, ...] = (),
) -> Callable[[AnyHandler], AnyHandler]:
    """Mark a method as an operation; its docstring is the documentation."""

    def mark(handler: AnyHandler) -> AnyHandler:
        summary, _, description = inspect.cleandoc(handler.__doc__ or "").partition("\n\n")
        hints = get_type_hints(handler, include_extras=True)
        answer = hints.pop("return")
        handler.__operation__ = Operation(  # type: ignore[attr-defined]
            method,
            path,
            handler.__name__,
            tag,
            " ".join(summary.split()).rstrip("."),
            description,
            statuses,
            errors,
            right,
            {name: hints[name] for name in names_in(path)},
            hints.get("query"),
            hints.get("headers"),
            hints.get("body"),
            _shown(answer),
            binary,
            body_bytes_max,
            traffic or method == "GET",
            examples,
        )
        return handler

    return mark


def _shown(answer: Any) -> Any:
    """The body that a return type stands for; others are ways to give it."""
    if answer in WAYS:
        return None
    parts = [each for each in get_args(answer) if each not in WAYS]
    return parts[0] if isinstance(answer, UnionType) else answer


def names_in(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def operations_of(resource: type) -> list[Operation]:
    members = inspect.getmembers(resource, inspect.isfunction)
    return [m.__operation__ for _, m in members if hasattr(m, "__operation__")]


def bound_operations(resource: object) -> Iterator[Bound]:
    for each in operations_of(type(resource)):
        decode = None
        if each.body is not None and each.body is not bytes:
            decode = body_decoder(each.body)
        yield Bound(each, getattr(resource, each.name), decode)


def body_decoder(wanted: Any) -> Callable[[bytes], Any]:
    """Its lists may have a greatest length, which msgspec looks at when it has made all of their
    objects. Of a large body they are counted first, which takes a fraction of that."""
    decode = msgspec.json.Decoder(wanted).decode
    longest = _greatest_lengths(wanted)
    if not longest:
        return decode
    counts = [(name, list[msgspec.Raw] | UnsetType, UNSET) for name in longest]
    count = msgspec.json.Decoder(msgspec.defstruct("Counts", counts)).decode

    def decode_counted(data: bytes) -> Any:
        if len(data) > COUNTED_BYTES:
            found = count(data)
            for name, most in longest.items():
                given = getattr(found, name)
                if given is not UNSET and len(given) > most:
                    raise ValueError(f"Expected `array` of length <= {most} - at `$.{name}`")
        return decode(data)

    return decode_counted


def _greatest_lengths(wanted: Any) -> dict[str, int]:
    """By the names of a struct's fields that are lists and have one."""
    described = msgspec.inspect.type_info(wanted)
    if not isinstance(described, msgspec.inspect.StructType):
        return {}
    return {
        field.encode_name: field.type.max_length
        for field in described.fields
        if isinstance(field.type, msgspec.inspect.ListType) and field.type.max_length is not None
    }


# --- from a request to arguments ---


def segments_from(operation: Operation, segments: list[str]) -> dict[str, Any]:
    """What varies in the path, in the types the operation wants."""
    found = {}
    for part, segment in zip(operation.pattern, segments, strict=True):
        if part.startswith("{"):
            name = part[1:-1]
            found[name] = _converted(segment, operation.segments[name], f"{name} in the path")
    return found


def query_from(request: HTTPConnection, wanted: Any) -> Any:
    return _converted(_parameters(request), wanted, "the query")


def require_no_query(request: HTTPConnection) -> None:
    given = ", ".join(repr(name) for name in _parameters(request))
    if given:
        raise BadRequest(f"this takes no query parameters: {given}", remedy="Leave them out")


def _parameters(request: HTTPConnection) -> dict[str, str]:
    raw: bytes = request.scope["query_string"]
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except (ValueError, UnicodeError):
        raise BadRequest("the query string is malformed") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise BadRequest(f"the query parameter {name!r} is given twice")
        values[name] = value
    return values


def headers_from(request: Request, wanted: Any) -> Any:
    """Only the headers an operation knows: there are always others."""
    known = {field.encode_name for field in msgspec.structs.fields(wanted)}
    values = {
        name.title(): value for name, value in request.headers.items() if name.title() in known
    }
    return _converted(values, wanted, "the headers")


def _converted(value: Any, wanted: Any, where: str) -> Any:
    try:
        # Not strict: all there is are texts, and "5" is a number in them.
        return msgspec.convert(value, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{where}: {error}") from None


def refuse_if_only_new(request: Request, what: str) -> None:
    if request.headers.get("if-none-match") == "*":
        raise PreconditionFailed(f"the {what} already exists")


# --- from what a handler returns to a response ---

_encoder = msgspec.json.Encoder(order="deterministic")


def as_json(body: object, status: int = 200) -> Response:
    return Response(_encoder.encode(body), status, media_type=JSON, headers=NO_STORE)


def respond(operation: Operation, returned: Any) -> Response:
    if isinstance(returned, Response):
        return returned
    status = operation.statuses[0]
    if isinstance(returned, Page):
        response = as_json(returned.body, status)
        if returned.next:
            response.headers[NEXT_HEADER] = returned.next
        return response
    if isinstance(returned, Answer):
        returned, status = returned
    if returned is None:
        return Response(status_code=status, headers=NO_STORE)
    return as_json(returned, status)
