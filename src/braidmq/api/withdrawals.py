"""What ends over HTTP when a user loses a permission or changes the password.

Waiting requests are answered, members leave their groups, leases end: nothing that needs a right
goes on without it. Later requests are checked when they come.
"""

import logging

from braidmq.api.context import ApiContext
from braidmq.api.long_polls import Waiting
from braidmq.security.accounts import (
    AccountChange,
    NamespaceDeleted,
    PermissionChanged,
    UserDeleted,
)

logger = logging.getLogger(__name__)


class Withdrawals:
    def __init__(self, context: ApiContext, waiting: Waiting) -> None:
        self._context = context
        self._waiting = waiting

    def on_change(self, change: AccountChange) -> None:
        if isinstance(change, NamespaceDeleted):
            return  # with all that is in it
        if isinstance(change, PermissionChanged):
            self._end_unreadable(change.user, [change.namespace])
        elif isinstance(change, UserDeleted):
            namespaces = self._context.access.accounts.namespaces()
            self._end_unreadable(change.name, [each.name for each in namespaces])
        self._waiting.recheck()

    def _end_unreadable(self, user: str, namespaces: list[str]) -> None:
        engine, now_ms = self._context.engine(), self._context.now_ms
        for namespace in namespaces:
            may_read = self._context.access.accounts.grants(user, namespace).may_read
            for group, member, topics in engine.groups.members_of(namespace, user):
                if not all(map(may_read, topics)):
                    engine.groups.dismiss(namespace, group, member, now_ms=now_ms)
                    _log("a member left its group", namespace, user, group=group, member=member)
            for lease in engine.leases.list(namespace):
                topics = [
                    engine.state.partitions[each].topic.name
                    for each in lease.positions
                    if each in engine.state.partitions
                ]
                if lease.user == user and not all(map(may_read, topics)):
                    engine.leases.end(lease, now_ms)
                    _log("a lease ended", namespace, user, lease=lease.name)


def _log(what: str, namespace: str, user: str, **facts: str) -> None:
    logger.info(
        f"{what}: the user is no longer allowed to read it",
        extra={"namespace": namespace, "user": user, **facts},
    )
