"""Applications: programs that number their transactions, and commit each number once, for ever."""

from braidmq.engine.transactions.entries import Application
from braidmq.engine.transactions.errors import (
    NotYourTransaction,
    OtherInstance,
    StaleApplication,
    TransactionCommitted,
)
from braidmq.engine.transactions.ledger import Ledger


def instance_of(application: Application | None) -> str:
    """Which of its runs it is; empty: it does not say."""
    return application.instance if application is not None else ""


def require_instance(ledger: Ledger, namespace: str, application: Application | None) -> None:
    """Who begins to count anew would find its first numbers used up, and take what it has not
    written for written. Raises OtherInstance."""
    if application is None:
        return
    key = (namespace, application.name)
    last, counts = ledger.applications.get(key), ledger.application_instances.get(key)
    same_epoch = last is not None and last[0] == application.epoch
    if same_epoch and counts and application.instance not in ("", counts):
        raise OtherInstance(
            f"epoch {application.epoch} of application {application.name!r} is counted by"
            f" {counts}, and not by {application.instance}"
        )


def require_next(
    ledger: Ledger, namespace: str, application: Application | None, owner: str
) -> None:
    """Raises NotYourTransaction, StaleApplication or TransactionCommitted."""
    if application is None:
        return
    key = (namespace, application.name)
    if (ledger.application_owners.get(key) or owner) != owner:
        # Numbers that somebody else used up would be taken for committed.
        raise NotYourTransaction(f"application {application.name!r} belongs to another user")
    last = ledger.applications.get(key)
    if last is None or (application.epoch, application.sequence) > last:
        return
    if application.epoch < last[0]:
        raise StaleApplication(
            f"application {application.name!r} is at epoch {last[0]}, "
            f"and epoch {application.epoch} has ended"
        )
    raise TransactionCommitted(
        f"application {application.name!r} has committed {last[1]} already, "
        f"and does not commit {application.sequence} again"
    )
