"""Limits that a namespace may have, whatever the protocol."""

from braidmq.engine.engine import Engine
from braidmq.security.accounts import Accounts


def reached_queue_limit(accounts: Accounts, engine: Engine, namespace: str) -> int | None:
    """How many queues a namespace may have, if it has them already."""
    limit = accounts.namespace(namespace).max_queues
    if limit is None or len(engine.state.topics_of(namespace)) < limit:
        return None
    return limit
