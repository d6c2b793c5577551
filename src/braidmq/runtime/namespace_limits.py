"""Limits that a namespace may have, whatever the protocol."""

from braidmq.runtime.engine_view import EngineView
from braidmq.security.accounts import Accounts


def reached_queue_limit(accounts: Accounts, view: EngineView, namespace: str) -> int | None:
    """How many queues a namespace may have, if it has them already."""
    limit = accounts.namespace(namespace).max_queues
    if limit is None or len(view.state.topics_of(namespace)) < limit:
        return None
    return limit
