"""What a change to the router amounts to, for the engine to journal, in the order it happened."""

from dataclasses import dataclass, field

from braidmq.engine.routing.bindings import Arguments, Binding, no_arguments


@dataclass(frozen=True, slots=True)
class ExchangeInfo:
    """An exchange as it was declared."""

    name: str
    kind: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=no_arguments, hash=False)
    alternate_exchange: str | None = None
    set_by: str = ""
    """Who named the alternate."""


@dataclass(frozen=True, slots=True)
class ExchangeDeclared:
    exchange: ExchangeInfo


@dataclass(frozen=True, slots=True)
class ExchangeDeleted:
    name: str
    automatic: bool
    """It was to go with its last binding, and that went."""


@dataclass(frozen=True, slots=True)
class BindingAdded:
    binding: Binding


@dataclass(frozen=True, slots=True)
class BindingRemoved:
    binding: Binding


Effect = ExchangeDeclared | ExchangeDeleted | BindingAdded | BindingRemoved
