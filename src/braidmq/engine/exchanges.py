"""Routers of all namespaces, kept in the catalogue: durable exchanges and bindings come back."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from braidmq.engine.hooks import Hooks
from braidmq.engine.makers import SetBy, lets, name_of
from braidmq.engine.policy import choose_template
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
from braidmq.engine.state import EngineState
from braidmq.engine.topics import Topic
from braidmq.model.errors import AccessRefused
from braidmq.storage.catalogue import Change

logger = logging.getLogger(__name__)

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
    set_by: str = ""


class BindingRecord(msgspec.Struct, array_like=True):
    namespace: str
    source: str
    destination_kind: str
    destination: str
    key: bytes
    arguments: dict[str, Any]
    bound_by: str = ""


class Exchanges:
    def __init__(self, state: EngineState, hooks: Hooks) -> None:
        self._state = state
        self._routers: dict[str, Router] = {}
        self._made: dict[tuple[str, str], set[Binding]] = {}
        """By namespace and user: bindings that it made. Some may be gone."""
        self.allowed: Callable[[str, str, str, str], bool] = lambda user, where, verb, name: True
        """Whether a user may, in a namespace, do something to a name."""
        hooks.topic_deleted.append(self._forget_topic)
        hooks.namespace_deleted.append(self._forget_namespace)

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
                    self._set_alternate(each, router, info)

    def _set_alternate(self, namespace: str, router: Router, info: ExchangeInfo) -> None:
        alternate, user = info.alternate_exchange, info.set_by
        if alternate is None:
            templates = self._state.templates_of(namespace)
            template = choose_template(templates.values(), info.name, "exchange")
            if template is not None and template.alternate_exchange is not None:
                alternate, user = template.alternate_exchange, template.set_by
        holds = alternate is None or self._may_refer(user, namespace, info.name, alternate)
        if not holds and router.alternate(info.name) == alternate:
            _log_disabled(
                "an alternate exchange", namespace, user, exchange=info.name, alternate=alternate
            )
        router.set_alternate(info.name, alternate if holds else None)

    def is_denied(self, namespace: str, info: ExchangeInfo) -> bool:
        """Whether its alternate does not hold, for want of a right."""
        alternate = self.router(namespace).alternate(info.name)
        return info.alternate_exchange is not None and alternate is None

    def declare(
        self, namespace: str, name: str, kind: str, *, set_by: SetBy = "", **properties: Any
    ) -> None:
        """``set_by``: whose rights count for the alternate; raises AccessRefused."""
        router = self.router(namespace)
        alternate = properties.get("alternate_exchange")
        is_new = not router.has(name)
        if is_new and alternate is not None:
            self._require(set_by, namespace, name, alternate)
        self._keep(namespace, router.declare(name, kind, set_by=name_of(set_by), **properties))
        info = router.exchange(name)
        if not is_new and self.is_denied(namespace, info):
            self.adopt(namespace, info, set_by)
        else:
            self._set_alternate(namespace, router, info)

    def adopt(self, namespace: str, info: ExchangeInfo, maker: SetBy) -> None:
        """Somebody declares again what is disabled: it holds, if they may."""
        alternate, router = info.alternate_exchange, self.router(namespace)
        if alternate is None or not self._may_refer(maker, namespace, info.name, alternate):
            return
        info = replace(info, set_by=name_of(maker))
        router.replace_info(info)
        if info.durable:
            self._state.store.change([_exchange_change(namespace, info)])
        self._set_alternate(namespace, router, info)

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
        bound_by: SetBy = "",
    ) -> None:
        """``durable`` says whether the destination survives a restart; so must both ends.
        ``bound_by``: whose rights count; raises AccessRefused."""
        self._require(bound_by, namespace, source, destination.name)
        router = self.router(namespace)
        maker = name_of(bound_by)
        effects = router.bind(source, destination, key, arguments or {}, maker)
        self._keep(namespace, effects, durable=durable)
        binding = Binding(source, destination, key, arguments or {})
        if effects:
            self._note_maker(namespace, binding, maker)
        if not effects and router.is_suspended(binding):
            router.hold(binding, maker, suspended=False)
            self._note_maker(namespace, binding, maker)
            self._keep_binding(namespace, binding)

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

    # --- rights ---

    def _may_refer(self, maker: SetBy, namespace: str, source: str, target: str) -> bool:
        """What has no user is the broker's own."""
        user, needs = name_of(maker), (("read", source), ("write", target))
        may = not user or all(self.allowed(user, namespace, *each) for each in needs)
        return may and all(lets(maker, *each) for each in needs)

    def _require(self, maker: SetBy, namespace: str, source: str, target: str) -> None:
        if not self._may_refer(maker, namespace, source, target):
            raise AccessRefused(
                f"user {name_of(maker)!r} may not route messages from {source!r} to {target!r} in"
                f" namespace {namespace!r}: that needs read on the first and write on the second"
            )

    def _note_maker(self, namespace: str, binding: Binding, user: str) -> None:
        if user:
            self._made.setdefault((namespace, user), set()).add(binding)

    def enforce(self) -> None:
        """``allowed`` is another from now on."""
        for _, user in list(self._made):
            self.recheck(user)
        self.set_alternates()

    def recheck(self, user: str, namespace: str | None = None) -> None:
        """A user's permissions have changed: what is set holds while who set it may."""
        self.set_alternates(namespace)
        for where in [each for each, maker in self._made if maker == user]:
            if namespace in (None, where):
                for binding in self._made_by(where, user):
                    self._recheck_binding(where, self.router(where), binding)

    def _made_by(self, namespace: str, user: str) -> list[Binding]:
        """Those that are still there, and still its."""
        router = self.router(namespace)
        every = self._made.pop((namespace, user), set())
        found = [each for each in every if router.bound_by(each) == user]
        if found:
            self._made[namespace, user] = set(found)
        return found

    def _recheck_binding(self, namespace: str, router: Router, binding: Binding) -> None:
        user = router.bound_by(binding)
        source, target = binding.source, binding.destination.name
        may = self._may_refer(user, namespace, source, target)
        if not may and not router.is_suspended(binding):
            _log_disabled("a binding", namespace, user, source=source, destination=target)
        router.hold(binding, user, suspended=not may)

    def release_bindings(self, user: str) -> None:
        """A user is deleted: of its bindings those that hold are nobody's from now on."""
        for namespace in [each for each, maker in self._made if maker == user]:
            router = self.router(namespace)
            for binding in self._made_by(namespace, user):
                if not router.is_suspended(binding):
                    router.hold(binding, "", suspended=False)
                    self._keep_binding(namespace, binding)

    @property
    def disabled(self) -> int:
        """Bindings and alternates that do not hold."""
        count = 0
        for namespace, router in self._routers.items():
            count += router.suspended_count
            count += sum(self.is_denied(namespace, each) for each in router.exchanges())
        return count

    def _forget_topic(self, deleted: Topic) -> None:
        namespace = deleted.namespace
        if namespace in self._routers and not self._state.has_successor(deleted):
            self._keep(namespace, self._routers[namespace].forget_topic(deleted.name))

    def _forget_namespace(self, namespace: str, _now_ms: int) -> None:
        """The namespace is gone, with all its exchanges and bindings."""
        self._routers.pop(namespace, None)
        self._made = {key: made for key, made in self._made.items() if key[0] != namespace}
        gone: list[Change] = [
            (table, key, None)
            for table in (EXCHANGES, BINDINGS)
            for key, _ in self._state.store.catalogue.items(table)
            if key.startswith(f"{namespace}\0")
        ]
        if gone:
            self._state.store.change(gone)

    # --- the catalogue ---

    def _keep(self, namespace: str, effects: Sequence[Effect], *, durable: bool = True) -> None:
        known = self._state.store.catalogue.table(BINDINGS)
        changes: list[Change] = []
        for each in effects:
            if type(each) is BindingRemoved:
                # An exchange or a topic may go with very many of them.
                key = _binding_key(namespace, each.binding)
                if key in known:
                    changes.append((BINDINGS, key, None))
            else:
                changes += self._changes(namespace, each, durable)
        if changes:
            self._state.store.change(changes)

    def _changes(self, namespace: str, effect: Effect, durable: bool) -> list[Change]:
        match effect:
            case ExchangeDeclared(info):
                return [_exchange_change(namespace, info)] if info.durable else []
            case ExchangeDeleted(name, _):
                key = f"{namespace}\0{name}"
                known = self._state.store.catalogue.get(EXCHANGES, key) is not None
                return [(EXCHANGES, key, None)] if known else []
            case BindingAdded(binding):
                router = self.router(namespace)
                kept = durable and router.exchange(binding.source).durable
                user = router.bound_by(binding)
                return [_binding_change(namespace, binding, user)] if kept else []
            case BindingRemoved():
                raise AssertionError("those are taken together")

    def _keep_binding(self, namespace: str, binding: Binding) -> None:
        """Its user is another; one that is not in the catalogue does not get there."""
        if self._state.store.catalogue.get(BINDINGS, _binding_key(namespace, binding)) is not None:
            user = self.router(namespace).bound_by(binding)
            self._state.store.change([_binding_change(namespace, binding, user)])

    def restore(self) -> None:
        for _, value in self._state.store.catalogue.items(EXCHANGES):
            each = msgspec.msgpack.decode(value, type=ExchangeRecord)
            self.router(each.namespace).declare(
                each.name,
                each.kind,
                durable=True,
                auto_delete=each.auto_delete,
                internal=each.internal,
                arguments=each.arguments,
                alternate_exchange=each.alternate_exchange,
                set_by=each.set_by,
            )
        for _, value in self._state.store.catalogue.items(BINDINGS):
            one = msgspec.msgpack.decode(value, type=BindingRecord)
            to = topic if one.destination_kind == "topic" else exchange
            destination = to(one.destination)
            self.router(one.namespace).bind(
                one.source, destination, one.key, one.arguments, one.bound_by
            )
            binding = Binding(one.source, destination, one.key, one.arguments)
            self._note_maker(one.namespace, binding, one.bound_by)


def _exchange_change(namespace: str, info: ExchangeInfo) -> Change:
    record = ExchangeRecord(
        namespace,
        info.name,
        info.kind,
        info.auto_delete,
        info.internal,
        dict(info.arguments),
        info.alternate_exchange,
        info.set_by,
    )
    return EXCHANGES, f"{namespace}\0{info.name}", msgspec.msgpack.encode(record)


def _log_disabled(what: str, namespace: str, user: str, **ends: object) -> None:
    logger.warning(
        f"{what} is disabled: its owner lost the permission on one of its ends. Grant it again,"
        " or recreate it as another user",
        extra={"namespace": namespace, "made_by": user, **ends},
    )


def _binding_change(namespace: str, binding: Binding, bound_by: str) -> Change:
    record = BindingRecord(
        namespace,
        binding.source,
        binding.destination.kind,
        binding.destination.name,
        binding.key,
        dict(binding.arguments),
        bound_by,
    )
    return BINDINGS, _binding_key(namespace, binding), msgspec.msgpack.encode(record)


def _binding_key(namespace: str, binding: Binding) -> str:
    arguments = "{}"
    if binding.arguments:
        arguments = msgspec.json.encode(dict(binding.arguments), order="sorted").decode()
    key = binding.key.decode("latin-1")
    kind, name = binding.destination
    return "\0".join((namespace, binding.source, kind, name, key, arguments))
