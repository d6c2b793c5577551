"""Who must go when accounts change, whatever the protocol."""

from braidmq.security.accounts import (
    AccountChange,
    Accounts,
    LoginChanged,
    NamespaceDeleted,
    PermissionChanged,
    TokenRevoked,
    UserDeleted,
)
from braidmq.security.records import TokenUser, User, kept_name, scopes_of


def reason_to_end(change: AccountChange, login: User, namespace: str, accounts: Accounts) -> str:
    """Why a connection of a user to a namespace would not be let in any more; empty if it would.
    What it may no longer have of what it has is another question."""
    user = login.name
    if not user:
        return ""
    if isinstance(change, TokenRevoked):
        is_its = isinstance(login, TokenUser) and login.token_id == change.id
        return "the token was revoked" if is_its else ""
    if isinstance(change, NamespaceDeleted):
        return f"namespace {namespace} was deleted" if namespace == change.name else ""
    if isinstance(change, PermissionChanged):
        is_concerned = (user, namespace) == (change.user, change.namespace)
        if is_concerned and not accounts.can_enter(user, namespace, scopes_of(login)):
            return f"user {user} may not enter namespace {namespace} any more"
        return ""
    if not kept_name(login):
        return ""  # an account of its name is another's
    if isinstance(change, UserDeleted) and user == change.name:
        return f"user {user} was deleted"
    with_password = not isinstance(login, TokenUser)
    if isinstance(change, LoginChanged) and user == change.name and with_password:
        return f"the password of user {user} was changed"
    return ""
