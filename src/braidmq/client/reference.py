"""docs/client-reference.md: every public name, from its docstring."""

import inspect
import re
from collections.abc import Iterator

import braidmq
from braidmq.client.consuming import ConsumerOptions
from braidmq.client.metadata import Metadata
from braidmq.client.publishing import ProducerOptions
from braidmq.client.transaction import TransactionOptions

HEAD = """# Reference of the Python client

Written by `scripts/client_types.py` from the docstrings of `braidmq`; [client.md](client.md) tells
it as a story. What is asynchronous has a twin without `await`: `connect_sync` gives a `SyncBroker`,
with the same names.
"""
LITERAL = re.compile(r"(?<!`)``(?!`)")
OPTIONS: dict[str, tuple[str, type]] = {
    "Broker.publish": ("metadata", Metadata),
    "Broker.producer": ("options", ProducerOptions),
    "Broker.consume": ("options", ConsumerOptions),
    "Broker.transaction": ("options", TransactionOptions),
}
"""Of these the keyword arguments are listed."""


def public_members(kind: type) -> Iterator[tuple[str, object]]:
    """What a class has for programs, as it is written, and of its base classes that are ours."""
    seen: dict[str, object] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("braidmq.") and not issubclass(kind, BaseException):
            seen |= {name: each for name, each in vars(base).items() if name[0] != "_"}
    return iter(seen.items())


def page() -> str:
    functions = [braidmq.connect, braidmq.connect_sync]
    named = {name: getattr(braidmq, name) for name in braidmq.__all__}
    classes = {name: each for name, each in named.items() if inspect.isclass(each)}
    errors = {name: each for name, each in classes.items() if issubclass(each, Exception)}
    twins = {name: each for name, each in classes.items() if name.startswith("Sync")}
    others = classes.keys() - errors.keys() - twins.keys()
    parts = [HEAD, "## Functions\n"]
    parts += [entry(f"braidmq.{each.__name__}", each, "###") for each in functions]
    parts.append("## Objects\n")
    parts += [of_class(name, classes[name]) for name in classes if name in others]
    parts.append("## Without an event loop\n")
    parts += [f"### {name}\n\n{said(each)}\n" for name, each in twins.items()]
    parts.append("## Errors\n")
    parts.append("All are `BraidError`s, with a stable `code` and a `remedy`.\n")
    parts.append("| error | code | kind of | |\n|---|---|---|---|")
    parts += [of_error(name, each) for name, each in sorted(errors.items())]
    return "\n".join(parts) + "\n"


def of_class(name: str, kind: type) -> str:
    parts = [f"### {name}\n", said(kind), ""]
    for member, each in public_members(kind):
        if not getattr(each, "__doc__", None) or inspect.ismemberdescriptor(each):
            continue
        if not callable(each) and not inspect.isdatadescriptor(each):
            continue
        parts.append(entry(f"{name}.{member}", each, "####"))
    return "\n".join(parts)


def entry(name: str, each: object, level: str) -> str:
    what = "`" + name + signature(each) + "`"
    parts = [f"{level} {what}\n", said(each), ""]
    if name in OPTIONS:
        _, shape = OPTIONS[name]
        parts += [f"Options: {', '.join(f'`{each}`' for each in shape.__annotations__)}.", ""]
    return "\n".join(parts)


def signature(each: object) -> str:
    if not inspect.isroutine(each):
        return ""
    try:
        parameters = inspect.signature(each).parameters.values()
    except ValueError:
        return "()"  # of compiled code
    shown, keyword = [], False
    for one in parameters:
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not keyword:
            shown.append("*")
            keyword = True
        text = one.name if one.default is one.empty else f"{one.name}={one.default!r}"
        shown.append(f"**{one.name}" if one.kind is one.VAR_KEYWORD else text)
    return f"({', '.join(shown)})"


def of_error(name: str, kind: type) -> str:
    about = " ".join((kind.__doc__ or "").split())
    remedy = getattr(kind, "remedy", "")
    base = kind.__bases__[0].__name__
    text = ". ".join(each.rstrip(".") for each in (about, remedy) if each)
    return f"| `{name}` | `{vars(kind).get('code', '')}` | `{base}` | {text} |"


def said(each: object) -> str:
    """A docstring as Markdown."""
    return LITERAL.sub("`", inspect.getdoc(each) or "")
