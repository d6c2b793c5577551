"""The exchanges and bindings of one namespace, and where a message goes through them.

A change returns its effects and performs none: the engine journals them, and replays them by making
the same changes again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import NamedTuple

from braidmq.engine.routing.bindings import (
    NO_ARGUMENTS,
    Arguments,
    Binding,
    Destination,
    frozen,
    topic,
)
from braidmq.engine.routing.bindings import exchange as exchange_destination
from braidmq.engine.routing.cache import CACHE_BYTES_MAX, BoundedCache
from braidmq.engine.routing.effects import (
    BindingAdded,
    BindingRemoved,
    Effect,
    ExchangeDeclared,
    ExchangeDeleted,
    ExchangeInfo,
)
from braidmq.engine.routing.errors import (
    ExchangeInUse,
    ExchangeMismatch,
    ExchangeNotFound,
    InternalExchange,
    ReservedName,
    UnknownKind,
)
from braidmq.engine.routing.exchanges import KINDS, Default, Exchange, Fields, Message

DEFAULT_EXCHANGE = ""
RESERVED_PREFIX = "amq."
PREDECLARED = (
    ExchangeInfo("amq.direct", "direct"),
    ExchangeInfo("amq.fanout", "fanout"),
    ExchangeInfo("amq.headers", "headers"),
    ExchangeInfo("amq.match", "headers"),
    ExchangeInfo("amq.topic", "topic"),
)


class Route(NamedTuple):
    """Where a message goes."""

    topics: tuple[str, ...]
    """Distinct, by name."""
    via_alternate: bool
    """Some exchange on the way had no destination for it, so its alternate was asked."""


class _Entry:
    """A declared exchange."""

    __slots__ = ("alternate", "bindings", "info", "matching", "suspended")

    def __init__(self, info: ExchangeInfo, matching: Exchange) -> None:
        self.info = info
        self.matching = matching
        self.bindings: dict[Binding, str] = {}
        """Those it is the source of, in order, and who made each."""
        self.suspended: set[Binding] = set()
        """Those that nothing goes through."""
        self.alternate = info.alternate_exchange


class _Trace:
    """One message's way through exchanges, as far as it has come."""

    __slots__ = ("asked", "by_key_only", "topics", "via_alternate")

    def __init__(self) -> None:
        self.asked: set[str] = set()  # existing or not: the answer depends on that, too
        self.topics: set[str] = set()
        self.via_alternate = False
        self.by_key_only = True


class Router:
    """Routing for one namespace.

    Answers are kept by exchange and key. ``_asked`` has the names of all exchanges that a kept
    answer depends on; a change to any other leaves every answer true, and a change to one of them
    drops them all.
    """

    def __init__(
        self,
        kinds: Mapping[str, type[Exchange]] = KINDS,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        self._kinds = kinds
        self._exchanges: dict[str, _Entry] = {}
        self._into: dict[Destination, dict[Binding, None]] = {}
        self._cache: BoundedCache[tuple[str, bytes], Route] = BoundedCache(cache_bytes_max)
        self._cached = self._cache.get
        self._asked: set[str] = set()
        self._key_only: dict[str, bool] = {}
        self.generation = 0
        """Rises whenever any answer may have changed."""
        default = ExchangeInfo(DEFAULT_EXCHANGE, "direct")
        self._exchanges[DEFAULT_EXCHANGE] = _Entry(default, Default(NO_ARGUMENTS))
        for info in PREDECLARED:
            self._add(info)

    # --- exchanges ---

    def declare(
        self,
        name: str,
        kind: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments = NO_ARGUMENTS,
        alternate_exchange: str | None = None,
        set_by: str = "",
    ) -> list[Effect]:
        """Make an exchange; no effects if it exists just so, ExchangeMismatch if otherwise.

        The alternate need not exist, now or later.
        """
        held = MappingProxyType(dict(arguments))
        info = ExchangeInfo(
            name, kind, durable, auto_delete, internal, held, alternate_exchange, set_by
        )
        if name == DEFAULT_EXCHANGE:
            raise ReservedName("the default exchange can't be declared")
        existing = self._exchanges.get(name)
        if existing is not None:
            _require_same(existing.info, info)
            return []
        if name.startswith(RESERVED_PREFIX):
            raise ReservedName(f"exchange name '{name}' begins with '{RESERVED_PREFIX}'")
        self._add(info)
        return [ExchangeDeclared(info)]

    def _add(self, info: ExchangeInfo) -> None:
        kind = self._kinds.get(info.kind)
        if kind is None:
            known = ", ".join(sorted(self._kinds))
            raise UnknownKind(f"no exchange kind '{info.kind}'; known are {known}")
        frozen(info.arguments)  # refuses here what a later comparison could not handle
        self._exchanges[info.name] = _Entry(info, kind(info.arguments))
        self._changed(info.name)

    def delete(self, name: str, *, if_unused: bool = False) -> list[Effect]:
        """Delete an exchange with all bindings from and to it. In use is: source of a binding."""
        if name == DEFAULT_EXCHANGE or name.startswith(RESERVED_PREFIX):
            raise ReservedName(f"exchange '{name}' can't be deleted")
        entry = self._entry(name)
        if if_unused and entry.bindings:
            raise ExchangeInUse(name, len(entry.bindings))
        return self._delete(entry, automatic=False)

    def _delete(self, entry: _Entry, *, automatic: bool) -> list[Effect]:
        """And whichever auto-delete exchanges go with it."""
        effects: list[Effect] = []
        deleting = {entry.info.name: automatic}
        while deleting:
            name = next(iter(deleting))
            automatic = deleting.pop(name)
            gone = self._exchanges.pop(name)
            self._changed(name)
            for binding in list(gone.bindings):
                self._drop_from_destination(binding)
                effects.append(BindingRemoved(binding))
            for binding in self._into.pop(exchange_destination(name), {}):
                effects.append(BindingRemoved(binding))
                if self._drop_from_source(binding):
                    deleting[binding.source] = True
            effects.append(ExchangeDeleted(name, automatic))
        return effects

    def set_alternate(self, name: str, alternate: str | None) -> None:
        """The alternate that an exchange has now. The default exchange never has any."""
        entry = self._entry(name)
        wanted = alternate if name != DEFAULT_EXCHANGE else None
        if wanted != entry.alternate:
            entry.alternate = wanted
            self._changed(name)

    def alternate(self, name: str) -> str | None:
        return self._entry(name).alternate

    def replace_info(self, info: ExchangeInfo) -> None:
        """An exchange that is as it was, but for who set it."""
        self._entry(info.name).info = info

    def has(self, name: str) -> bool:
        return name in self._exchanges

    def exchange(self, name: str) -> ExchangeInfo:
        """Raises ExchangeNotFound."""
        return self._entry(name).info

    def has_exchange(self, name: str) -> bool:
        return name in self._exchanges

    def exchanges(self) -> list[ExchangeInfo]:
        """All of them, the default one too, by name."""
        return [self._exchanges[name].info for name in sorted(self._exchanges)]

    def _entry(self, name: str) -> _Entry:
        entry = self._exchanges.get(name)
        if entry is None:
            raise ExchangeNotFound(name)
        return entry

    # --- bindings ---

    def bind(
        self,
        source: str,
        destination: Destination,
        key: bytes = b"",
        arguments: Arguments = NO_ARGUMENTS,
        bound_by: str = "",
    ) -> list[Effect]:
        """Add a binding; no effects if it is there already. Whether a topic exists, the engine
        has seen to."""
        entry = self._bindable(source, destination)
        binding = Binding(source, destination, key, arguments)
        if binding in entry.bindings:
            return []
        entry.matching.check(binding)
        entry.matching.add(binding)
        entry.bindings[binding] = bound_by
        self._into.setdefault(destination, {})[binding] = None
        self._changed(source)
        return [BindingAdded(binding)]

    def unbind(
        self,
        source: str,
        destination: Destination,
        key: bytes = b"",
        arguments: Arguments = NO_ARGUMENTS,
    ) -> list[Effect]:
        """Remove exactly this binding; no effects if it is not there."""
        entry = self._bindable(source, destination)
        binding = Binding(source, destination, key, arguments)
        if binding not in entry.bindings:
            return []
        self._drop_from_destination(binding)
        return self._without(binding)

    def bound_by(self, binding: Binding) -> str:
        """Who made it; empty for what is nobody's, or not there."""
        entry = self._exchanges.get(binding.source)
        return entry.bindings.get(binding, "") if entry is not None else ""

    @property
    def suspended_count(self) -> int:
        return sum([len(entry.suspended) for entry in self._exchanges.values()])

    def is_suspended(self, binding: Binding) -> bool:
        return binding in self._entry(binding.source).suspended

    def hold(self, binding: Binding, bound_by: str, *, suspended: bool) -> None:
        """Say whose a binding is, and whether anything goes through it."""
        entry = self._entry(binding.source)
        entry.bindings[binding] = bound_by
        if suspended == (binding in entry.suspended):
            return
        if suspended:
            entry.suspended.add(binding)
            entry.matching.remove(binding)
        else:
            entry.suspended.discard(binding)
            entry.matching.add(binding)
        self._changed(binding.source)

    def forget_topic(self, name: str) -> list[Effect]:
        """The topic is gone: so are its bindings, and auto-delete exchanges that had no others."""
        effects: list[Effect] = []
        for binding in self._into.pop(topic(name), {}):
            effects += self._without(binding)
        return effects

    def _bindable(self, source: str, destination: Destination) -> _Entry:
        if source == DEFAULT_EXCHANGE or destination == exchange_destination(DEFAULT_EXCHANGE):
            raise ReservedName("the default exchange can't be bound or unbound")
        entry = self._entry(source)
        if destination.kind == "exchange":
            self._entry(destination.name)
        return entry

    def _without(self, binding: Binding) -> list[Effect]:
        """Remove a binding that its destination has forgotten already."""
        effects: list[Effect] = [BindingRemoved(binding)]
        if self._drop_from_source(binding):
            effects += self._delete(self._exchanges[binding.source], automatic=True)
        return effects

    def _drop_from_source(self, binding: Binding) -> bool:
        """True if that was an auto-delete exchange's last binding."""
        entry = self._exchanges[binding.source]
        del entry.bindings[binding]
        if binding in entry.suspended:
            entry.suspended.discard(binding)
        else:
            entry.matching.remove(binding)
        self._changed(binding.source)
        return entry.info.auto_delete and not entry.bindings

    def _drop_from_destination(self, binding: Binding) -> None:
        leading_there = self._into[binding.destination]
        del leading_there[binding]
        if not leading_there:
            del self._into[binding.destination]

    def bindings(
        self, source: str | None = None, destination: Destination | None = None
    ) -> list[Binding]:
        """Those from an exchange, or to a destination, or both; in no order, of so many."""
        found: Iterable[Binding]
        if destination is not None:
            found = self._into.get(destination, {})
        elif source is not None:
            found = self._entry(source).bindings
        else:
            found = (binding for entry in self._exchanges.values() for binding in entry.bindings)
        return [binding for binding in found if source is None or binding.source == source]

    # --- routing ---

    def resolve(
        self,
        exchange: str,
        key: bytes,
        headers: Fields | None = None,
        *,
        properties: Fields | None = None,
        from_client: bool = False,
    ) -> Route:
        """Where a message to this exchange with this key goes.

        ``headers`` and ``properties`` are called at most once, and only if an exchange on the way
        asks for them.
        """
        # An internal exchange's answers are not kept, so what is found here is open to clients.
        route = self._cached((exchange, key))
        if route is None:
            route = self._resolve(exchange, Message(key, headers, properties), from_client)
        return route

    def _resolve(self, exchange: str, message: Message, from_client: bool) -> Route:
        entry = self._entry(exchange)
        if entry.info.internal and from_client:
            raise InternalExchange(exchange)
        trace = self._trace(entry, message)
        route = Route(tuple(sorted(trace.topics)), trace.via_alternate)
        if trace.by_key_only and not entry.info.internal:
            self._keep(exchange, message.key, route, trace)
        return route

    def _trace(self, start: _Entry, message: Message) -> _Trace:
        trace = _Trace()
        trace.asked.add(start.info.name)
        waiting = [start]
        while waiting:
            entry = waiting.pop()
            for name in self._ask(entry, message, trace):
                if name not in trace.asked:
                    trace.asked.add(name)
                    if name in self._exchanges:
                        waiting.append(self._exchanges[name])
        return trace

    def _ask(self, entry: _Entry, message: Message, trace: _Trace) -> list[str]:
        """Note one exchange's topics; returns the exchanges to ask next."""
        found = entry.matching.match(message)
        trace.by_key_only &= entry.matching.by_key_only
        if found:
            trace.topics.update(name for kind, name in found if kind == "topic")
            return [name for kind, name in found if kind == "exchange"]
        alternate = entry.alternate
        if alternate is None:
            return []
        trace.via_alternate |= alternate in self._exchanges
        return [alternate]

    def _keep(self, exchange: str, key: bytes, route: Route, trace: _Trace) -> None:
        kept = self._cache.put(
            (exchange, key), route, key_bytes=len(key), targets=len(route.topics)
        )
        if kept:
            self._asked |= trace.asked

    def routes_by_key_only(self, exchange: str) -> bool:
        """Whether messages to an exchange with the same key always go the same way."""
        known = self._key_only.get(exchange)
        if known is None:
            known = self._key_only[exchange] = self._reaches_only_keys(exchange)
        return known

    def _reaches_only_keys(self, exchange: str) -> bool:
        seen: set[str] = set()
        waiting = [exchange]
        while waiting:
            entry = self._exchanges.get(waiting.pop())
            if entry is None or entry.info.name in seen:
                continue
            seen.add(entry.info.name)
            if not entry.matching.by_key_only:
                return False
            if entry.alternate is not None:
                waiting.append(entry.alternate)
            waiting += [b.destination.name for b in entry.bindings if b.destination.kind != "topic"]
        return True

    def _changed(self, name: str) -> None:
        self.generation += 1
        self._key_only.clear()
        if name in self._asked:
            self._cache.clear()
            self._asked.clear()


def _require_same(current: ExchangeInfo, received: ExchangeInfo) -> None:
    for each in fields(ExchangeInfo):
        if each.name in ("arguments", "set_by"):
            continue
        was, asked = getattr(current, each.name), getattr(received, each.name)
        if was != asked:
            raise ExchangeMismatch(current.name, each.name, was, asked)
    for name in sorted(current.arguments.keys() | received.arguments.keys()):
        was, asked = current.arguments.get(name), received.arguments.get(name)
        if frozen(was) != frozen(asked):
            raise ExchangeMismatch(current.name, f"argument {name}", was, asked)
