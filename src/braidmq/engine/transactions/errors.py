"""What producers and transactions can get wrong. Nothing has changed when one is raised."""

from braidmq.model.errors import BadRequest, BraidError, Conflict, Kind, NotFound


class UnknownProducer(NotFound):
    code = "unknown-producer"
    remedy = "Open a producer first; one that was unused for a week is forgotten"


class ProducerFenced(Conflict):
    """Somebody else has opened this producer since."""

    code = "producer-fenced"
    remedy = "Another instance has taken over: stop this one"


class OutOfOrderSequence(Conflict):
    code = "out-of-order-sequence"


class UnknownTransaction(NotFound):
    code = "unknown-transaction"
    remedy = "Begin it first; how it ended is known for an hour"


class TransactionCommitted(Conflict):
    """It is over, and all it did is visible."""

    code = "transaction-committed"


class TransactionAborted(Conflict):
    """It is over, and nothing it did is visible."""

    code = "transaction-aborted"
    remedy = "Repeat its work in a new transaction"


class TransactionCommitting(BraidError):
    """What it staged is on its way into its topics: how it ends is known in a moment."""

    kind = Kind.REFUSED
    code = "transaction-committing"
    remedy = "Ask again in a moment"


class NotYourTransaction(Conflict):
    code = "not-your-transaction"


class UnknownBranch(BadRequest):
    code = "unknown-branch"
    remedy = "Name branches that have published in this transaction"


class TooManyBranches(BadRequest):
    code = "too-many-branches"
    remedy = "Publish from fewer places, or in several transactions"


class StaleApplication(Conflict):
    """The application has a newer epoch, or has committed something later already."""

    code = "stale-application"
    remedy = "A newer run of this application has taken over: stop this one"


class OtherInstance(StaleApplication):
    """Another program counts under this name: its numbers are used up."""

    code = "other-instance"
    remedy = "Give this one a new epoch, or go on with the state of the other"


class NotInFlight(Conflict):
    """A message to be acknowledged in a transaction is not at this consumer (any more)."""

    code = "not-in-flight"
    remedy = "It will be, or was, delivered again: abort, and handle that delivery"


EVERY = (
    UnknownProducer,
    ProducerFenced,
    OutOfOrderSequence,
    UnknownTransaction,
    TransactionCommitted,
    TransactionAborted,
    TransactionCommitting,
    NotYourTransaction,
    UnknownBranch,
    TooManyBranches,
    StaleApplication,
    OtherInstance,
    NotInFlight,
)
