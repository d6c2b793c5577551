"""What the user of a connection may do, and how AMQP says no."""

from braidmq.engine.makers import SetBy
from braidmq.gateways.amqp.errors import access_refused
from braidmq.security.permissions import Grants, maker_of
from braidmq.security.records import User
from braidmq.wire.amqp.errors import ChannelError


class PermissionChecks:
    """The part of a connection that its channels ask."""

    vhost: str
    user: str
    login: User
    grants: Grants

    @property
    def maker(self) -> SetBy:
        """Whose rights count for what is made here that names other objects."""
        return maker_of(self.login, self.grants)

    def require_write(self, name: str, kind: str = "exchange") -> None:
        if not self.grants.may_write(name or "amq.default"):
            raise self.refusal(kind, name or "amq.default")

    def require_read(self, name: str, kind: str = "queue") -> None:
        if not self.grants.may_read(name or "amq.default"):
            raise self.refusal(kind, name or "amq.default")

    def require_configure(self, kind: str, name: str) -> None:
        if not self.grants.may_configure(name):
            raise self.refusal(kind, name)

    def refusal(self, kind: str, name: str) -> ChannelError:
        return access_refused(
            f"access to {kind} '{name}' in vhost '{self.vhost}' refused for user '{self.user}'"
        )
