"""Routers of all namespaces, kept in the catalogue: durable exchanges and bindings come back."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from braidmq.engine.routing.bindings import Binding, Destination, exchange, topic
from braidmq.engine.routing.effects import (
    BindingAdded,
    BindingRemoved,
    Effect,
    ExchangeDeclared,
    ExchangeDeleted,
    ExchangeInfo,
)
from braidmq.engine.routing.router import Router
from braidmq.storage.catalogue import Change
from braidmq.storage.store import Store

EXCHANGES = "exchanges"
BINDINGS = "bindings"


class ExchangeRecord(msgspec.Struct, array_like=True):
    namespace: str
    name: str
    kind: str
    auto_delete: bool
    internal: bool
    arguments: dict[str, Any]
    alternate_exchange: str | None


class BindingRecord(msgspec.Struct, array_like=True):
    namespace: str
    source: str
    destination_kind: str
    destination: str
    key: bytes
    arguments: dict[str, Any]


class Exchanges:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._routers: dict[str, Router] = {}
        self.alternate_of: Callable[[str, str], str | None] = lambda namespace, exchange: None
        """What a template gives an exchange of a namespace that has no alternate of its own."""

    def router(self, namespace: str) -> Router:
        """For resolving and listing; changes go through this class."""
        router = self._routers.get(namespace)
        if router is None:
            router = self._routers[namespace] = Router()
            self.set_alternates(namespace)
        return router

    def set_alternates(self, namespace: str | None = None) -> None:
        """Templates have changed."""
        for each, router in self._routers.items():
            if namespace in (None, each):
                for info in router.exchanges():
                    router.set_fallback(info.name, self.alternate_of(each, info.name))

    def declare(self, namespace: str, name: str, kind: str, **properties: Any) -> None:
        router = self.router(namespace)
        self._keep(namespace, router.declare(name, kind, **properties))
        router.set_fallback(name, self.alternate_of(namespace, name))

    def delete(self, namespace: str, name: str, *, if_unused: bool = False) -> None:
        self._keep(namespace, self.router(namespace).delete(name, if_unused=if_unused))

    def bind(
        self,
        namespace: str,
        source: str,
        destination: Destination,
        key: bytes = b"",
        arguments: dict[str, Any] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """``durable`` says whether the destination survives a restart; so must both ends."""
        effects = self.router(namespace).bind(source, destination, key, arguments or {})
        self._keep(namespace, effects, durable=durable)

    def unbind(
        self,
        namespace: str,
        source: str,
        destination: Destination,
        key: bytes = b"",
        arguments: dict[str, Any] | None = None,
    ) -> None:
        effects = self.router(namespace).unbind(source, destination, key, arguments or {})
        self._keep(namespace, effects)

    def forget_topic(self, namespace: str, name: str) -> None:
        if namespace in self._routers:
            self._keep(namespace, self._routers[namespace].forget_topic(name))

    def forget_namespace(self, namespace: str) -> None:
        """The namespace is gone, with all its exchanges and bindings."""
        self._routers.pop(namespace, None)
        gone: list[Change] = [
            (table, key, None)
            for table in (EXCHANGES, BINDINGS)
            for key, _ in self._store.catalogue.items(table)
            if key.startswith(f"{namespace}\0")
        ]
        if gone:
            self._store.change(gone)

    # --- the catalogue ---

    def _keep(self, namespace: str, effects: Sequence[Effect], *, durable: bool = True) -> None:
        changes = [change for each in effects for change in self._changes(namespace, each, durable)]
        if changes:
            self._store.change(changes)

    def _changes(self, namespace: str, effect: Effect, durable: bool) -> list[Change]:
        match effect:
            case ExchangeDeclared(info):
                return [_exchange_change(namespace, info)] if info.durable else []
            case ExchangeDeleted(name, _):
                key = f"{namespace}\0{name}"
                known = self._store.catalogue.get(EXCHANGES, key) is not None
                return [(EXCHANGES, key, None)] if known else []
            case BindingAdded(binding):
                kept = durable and self.router(namespace).exchange(binding.source).durable
                return [_binding_change(namespace, binding)] if kept else []
            case BindingRemoved(binding):
                key = _binding_key(namespace, binding)
                known = self._store.catalogue.get(BINDINGS, key) is not None
                return [(BINDINGS, key, None)] if known else []

    def restore(self) -> None:
        for _, value in self._store.catalogue.items(EXCHANGES):
            each = msgspec.msgpack.decode(value, type=ExchangeRecord)
            self.router(each.namespace).declare(
                each.name,
                each.kind,
                durable=True,
                auto_delete=each.auto_delete,
                internal=each.internal,
                arguments=each.arguments,
                alternate_exchange=each.alternate_exchange,
            )
        for _, value in self._store.catalogue.items(BINDINGS):
            one = msgspec.msgpack.decode(value, type=BindingRecord)
            to = topic if one.destination_kind == "topic" else exchange
            destination = to(one.destination)
            self.router(one.namespace).bind(one.source, destination, one.key, one.arguments)


def _exchange_change(namespace: str, info: ExchangeInfo) -> Change:
    record = ExchangeRecord(
        namespace,
        info.name,
        info.kind,
        info.auto_delete,
        info.internal,
        dict(info.arguments),
        info.alternate_exchange,
    )
    return EXCHANGES, f"{namespace}\0{info.name}", msgspec.msgpack.encode(record)


def _binding_change(namespace: str, binding: Binding) -> Change:
    record = BindingRecord(
        namespace,
        binding.source,
        binding.destination.kind,
        binding.destination.name,
        binding.key,
        dict(binding.arguments),
    )
    return BINDINGS, _binding_key(namespace, binding), msgspec.msgpack.encode(record)


def _binding_key(namespace: str, binding: Binding) -> str:
    arguments = msgspec.json.encode(dict(binding.arguments), order="sorted").decode()
    key = binding.key.decode("latin-1")
    kind, name = binding.destination
    return "\0".join((namespace, binding.source, kind, name, key, arguments))
