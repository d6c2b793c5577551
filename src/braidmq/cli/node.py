"""Which node a command is for, and who asks: flags, environment, context, default."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from braidmq.cli.api import DEFAULT_URL, GUEST, ROOT, Api, password_of
from braidmq.cli.context_file import Context, read_contexts
from braidmq.model.errors import BadSetting

if TYPE_CHECKING:
    import typer

    from braidmq.client import SyncBroker

AMQP_PORT = 5672


class Node(NamedTuple):
    """A running node as a command sees it."""

    url: str = DEFAULT_URL
    user: str = GUEST
    password: str | None = None
    token: str | None = None
    given_namespace: str | None = None
    """None: nobody named one."""
    amqp_port: int = AMQP_PORT

    @property
    def namespace(self) -> str:
        return ROOT if self.given_namespace is None else self.given_namespace

    def api(self) -> Api:
        """For names of the namespace."""
        return self._api(self.namespace)

    def global_api(self) -> Api:
        """For what no namespace has, and lists over all of them."""
        return self._api(None)

    def _api(self, namespace: str | None) -> Api:
        return Api(self.url, self.user, self.password, namespace, token=self.token)

    def with_password(self) -> "Node":
        """Ask for it now if it has to be asked for, so that it is asked for once."""
        if self.token is not None or self.password is not None:
            return self
        return self._replace(password=password_of(self.user))

    def user_and_password(self) -> tuple[str, str]:
        """For AMQP, where a token is the password of whoever it is one of."""
        if self.token is not None:
            return "", self.token
        return self.user, self.with_password().password or ""

    def broker(self, command: str) -> "SyncBroker":
        """Over AMQP, through the Python client. A lost connection is an error: a person watches."""
        from braidmq.cli.broker import open_broker

        user, password = self.user_and_password()
        return open_broker(self.url, self.amqp_port, user, password, self.namespace)


def resolve_options(context: "typer.Context", given: Mapping[str, Any]) -> Node:
    """From options of a command, whose origin its context knows."""
    flags: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    for name, value in given.items():
        source = context.get_parameter_source(name)
        by_flag = source is not None and source.name == "COMMANDLINE"
        (flags if by_flag else environment)[name] = value
    return resolve(flags, environment, named_by_flag=flags.get("context") is not None)


def resolve(
    flags: Mapping[str, Any], environment: Mapping[str, Any], *, named_by_flag: bool
) -> Node:
    """Flags win over the environment, that over the context, that over the defaults. A context that
    a flag names is as good as flags: who says --context means it, whatever is exported."""
    name = flags.get("context") or environment.get("context")
    every = read_contexts()
    chosen = every.named(name) if name else every.contexts.get(every.current or "", Context())
    context = {each: getattr(chosen, each) for each in Context.__struct_fields__}
    layers = [flags, context, environment] if named_by_flag else [flags, environment, context]
    if flags.get("token") is not None and {flags.get("user"), flags.get("password")} != {None}:
        raise BadSetting("a token is a login of its own", remedy="Leave out --user and --password")
    user, password, token = _login(layers, context)
    return Node(
        _first(layers, "url", DEFAULT_URL),
        user,
        password,
        token,
        _first(layers, "namespace", None),
        _first(layers, "amqp_port", AMQP_PORT),
    )


def _first(layers: list[Mapping[str, Any]], name: str, default: Any) -> Any:
    return next((each[name] for each in layers if each.get(name) is not None), default)


def _login(
    layers: list[Mapping[str, Any]], context: Mapping[str, Any]
) -> tuple[str, str | None, str | None]:
    """User, password and token: of where anything is said of them first."""
    for layer in layers:
        if layer.get("token") is not None:
            return GUEST, None, layer["token"]
        if layer.get("user") is not None or layer.get("password") is not None:
            break
    user = _first(layers, "user", GUEST)
    # A context's password is its own user's and nobody else's.
    mine = [each for each in layers if each is not context or context["user"] == user]
    return user, _first(mine, "password", None), None
