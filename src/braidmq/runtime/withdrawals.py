"""Who must go when accounts change, whatever the protocol."""

from braidmq.security.accounts import (
    AccountChange,
    Accounts,
    LoginChanged,
    NamespaceDeleted,
    PermissionChanged,
    UserDeleted,
)


def reason_to_end(change: AccountChange, user: str, namespace: str, accounts: Accounts) -> str:
    """Why a connection of a user to a namespace would not be let in any more; empty if it would.
    What it may no longer have of what it has is another question."""
    if not user:
        return ""
    if isinstance(change, NamespaceDeleted):
        return f"namespace {namespace} was deleted" if namespace == change.name else ""
    if isinstance(change, PermissionChanged):
        is_concerned = (user, namespace) == (change.user, change.namespace)
        if is_concerned and not accounts.can_enter(user, namespace):
            return f"user {user} may not enter namespace {namespace} any more"
        return ""
    if isinstance(change, UserDeleted) and user == change.name:
        return f"user {user} was deleted"
    if isinstance(change, LoginChanged) and user == change.name:
        return f"the password of user {user} was changed"
    return ""
