"""``docs/rights.md``: the table of rights, made from the code.

python -m braidmq.cli.rights_page > docs/rights.md
"""

from collections.abc import Iterable

from braidmq.api.assembly import RESOURCES
from braidmq.api.endpoints import operations_of
from braidmq.gateways.amqp import rights as amqp
from braidmq.gateways.mqtt import rights as mqtt
from braidmq.security.rights import MONITORING, Right

INTRODUCTION = """\
# Rights

<!-- Made by `python -m braidmq.cli.rights_page > docs/rights.md`; a test compares it. -->

What every operation of every protocol needs. A user has, in each namespace, three patterns:
`configure`, `write` and `read`, regular expressions that are looked for in names as in RabbitMQ
(`braid permissions set`). Whoever has none in a namespace may not enter it, and an empty pattern
matches nothing. Tags give rights on the node as a whole: `administrator`,
`monitoring` and `management` ([security.md](security.md#roles) says what each is for). Patterns
hold for administrators, too; they may change their own.

**What is not in these tables is refused.** The rows of HTTP are what enforces them: an operation
can't be declared without one. `tests/api/test_rights.py` tries each as every kind of
user, `tests/rights/` those of AMQP and MQTT.

In a pattern `%u` stands for the name of the user and `%c` for the id of the MQTT client:
`^sensors/%c/` lets each client at what is below its own id, with one permission for all. A
placeholder is a whole level: `^`, `/` or a plain character before it, `/` or `$` behind. What it
stands for is taken letter by letter, and an id that is no plain level (empty, over 128 characters,
with `+`, `#`, `*` or `/`, with a `$` in front) matches nothing, as does `%c` where there is no
client id: in AMQP and HTTP. `\\%c` is the two characters.

**Tokens** ([security.md](security.md#tokens)) have the rights of their user, narrowed by their
scopes; a JWT whose user has no account here has those of its scopes alone. Such a user can't make
schedules or tokens. Who logged in with a token that has scopes or an end can't make or revoke
tokens; administrators may whose token says so. AMQP's `connection.update-secret` and MQTT's AUTH
renew one's own log-in, and nothing else.

Some rules hold everywhere:

- **What names another object needs the right to it**: the target of dead letters, an alternate
  exchange, both ends of a binding. It needs it when it is set, and as long as it holds: it is kept
  with the user who set it, and looked at again when permissions change. Without the right dead
  letters go to `{topic}.dlq`, an alternate exchange is none, and nothing goes through a binding.
  The log says so when it happens, `disabled` where it is described, and the metric
  `braid_disabled_references` counts them. It holds again once the right is back, or somebody who
  has it sets it again: an AMQP client that declares its queues when it starts does that.
  Bindings of a user who is *deleted* stay as they are: nobody reads more through them than they
  may, and a message that finds no way is lost. What was set before users were kept with it holds.
- **What is one user's is no other's**: leases, pipelines, members of groups, producers,
  transactions, applications, connections and tokens. Administrators may see and end them.
- **An exclusive queue** is read and deleted by its AMQP connection alone, whatever the protocol.
- **What waits for MQTT sessions** (`$mqtt/…`) has no name for clients: no pattern matches it, and
  nothing can be published, bound or dead-lettered there. Administrators may look at it, purge and
  delete it over HTTP.
- **What was begun with a right ends with it.** When a permission is withdrawn AMQP consumers are
  cancelled (`basic.cancel`; a client that does not know it loses its channel with 403), MQTT
  clients lose the subscriptions and are disconnected with 0x87, long polls are answered 403,
  members leave their groups, leases end. When the password is changed, connections are closed and
  polls are answered 401; tokens stay, and are revoked with `braid tokens revoke`.
"""


def page() -> str:
    return "\n".join((INTRODUCTION, *_http(), *_amqp(), *_mqtt()))


def _http() -> Iterable[str]:
    yield "## HTTP\n"
    yield "| operation | right |\n|---|---|"
    operations = [each for resource in RESOURCES for each in operations_of(resource)]
    for each in sorted(operations, key=lambda each: (each.path, each.method)):
        yield _row(f"`{each.method} {each.path}`", each.right)
    yield _row("`WebSocket /v1/stream/metrics`", MONITORING)
    yield ""


def _amqp() -> Iterable[str]:
    yield "## AMQP\n"
    yield "The default exchange is `amq.default` to patterns.\n"
    yield "| method | right |\n|---|---|"
    for row in amqp.TABLE:
        name = f"`{row.method.NAME}`"
        yield _row(f"{name} {row.variant}".rstrip(), row.right)
    yield ""


def _mqtt() -> Iterable[str]:
    yield "## MQTT\n"
    yield "Patterns see topics and filters as they are written.\n"
    yield "| packet | right |\n|---|---|"
    for row in mqtt.TABLE:
        yield _row(row.packet, row.right)
    yield ""


def _row(what: str, right: Right) -> str:
    text = str(right) if right != Right(namespace="") else "any user"
    return f"| {what} | {text} |"


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
