"""What can be wrong with a request to the router."""

from braidmq.model.errors import BadRequest, BraidError, Conflict, Kind, NotFound


class ExchangeNotFound(NotFound):
    code = "exchange-not-found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no exchange '{name}'")
        self.name = name


class ExchangeMismatch(Conflict):
    """Declared again, and not as it is."""

    code = "exchange-mismatch"
    remedy = "Declare it as it is, or delete it first"

    def __init__(self, name: str, differing: str, current: object, received: object) -> None:
        super().__init__(
            f"exchange '{name}' exists with another {differing}: "
            f"received {received!r} but current is {current!r}"
        )
        self.name = name
        self.differing = differing
        self.current = current
        self.received = received


class ExchangeInUse(Conflict):
    code = "exchange-in-use"
    remedy = "Remove its bindings, or delete it whether used or not"

    def __init__(self, name: str, bindings: int) -> None:
        super().__init__(f"exchange '{name}' has {bindings} bindings")
        self.name = name
        self.bindings = bindings


class RoutingRefused(BraidError):
    """The request is well formed, and nobody may make it."""

    kind = Kind.REFUSED
    code = "routing-refused"


class ReservedName(RoutingRefused):
    code = "reserved-name"
    remedy = "Choose a name that is not empty and does not begin with 'amq.'"


class InternalExchange(RoutingRefused):
    code = "internal-exchange"
    remedy = "Publish to an exchange that is bound to it"

    def __init__(self, name: str) -> None:
        super().__init__(f"exchange '{name}' is internal: it takes no messages from clients")
        self.name = name


class UnknownKind(BadRequest):
    code = "unknown-exchange-kind"


class InvalidArgument(BadRequest):
    """An argument of an exchange or a binding that its kind can't work with."""

    code = "invalid-routing-argument"


class InvalidFilter(BadRequest):
    code = "invalid-filter"
