"""Deleting a namespace deletes what it holds, whoever asks for it."""

from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import AccountChange, Accounts, NamespaceDeleted


class NamespaceContents:
    """Watches accounts, after the gateways: those end their connections first."""

    def __init__(self, node_loop: NodeLoop, accounts: Accounts) -> None:
        self._node_loop = node_loop
        accounts.watch(self._on_change)

    def _on_change(self, change: AccountChange) -> None:
        if isinstance(change, NamespaceDeleted):
            node_loop, name = self._node_loop, change.name
            steps = node_loop.engine().namespaces.deleting(name, now_ms=node_loop.now_ms())
            next(steps, None)  # nobody finds its topics from here on
            node_loop.work_in_background(steps, f"deleting namespace {name!r}")
