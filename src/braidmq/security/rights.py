"""The words of the table of rights: who must ask, and what they must be allowed on which name.

Every operation of every protocol has one ``Right``: those of HTTP stand with the operations and are
enforced from there (``api/guard.py``), those of AMQP's methods and MQTT's packets are in
their gateways' ``rights.py``. ``docs/rights.md``, the OpenAPI document and the test that tries
every operation as every kind of user are made from them.
"""

from dataclasses import dataclass, replace
from enum import Enum, StrEnum


class Who(Enum):
    """Who may ask at all."""

    ANYONE = "anyone"
    LOCAL = "anyone on the node's own machine; from elsewhere the tag `monitoring`"
    USER = "any user"
    MANAGEMENT = "the tag `management`, `monitoring` or `administrator`"
    MONITORING = "the tag `monitoring` or `administrator`"
    ADMINISTRATOR = "the tag `administrator`"


class Verb(StrEnum):
    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


@dataclass(frozen=True, slots=True)
class Need:
    verb: Verb
    of: str
    """Where a request has the name: ``topic``, ``body.source``, ``body.positions.topic``. Empty:
    any name of the namespace will do."""

    def __str__(self) -> str:
        return f"{self.verb} on `{self.of}`" if self.of else f"{self.verb} on any name"


@dataclass(frozen=True, slots=True)
class Right:
    who: Who = Who.USER
    needs: tuple[Need, ...] = ()
    any_of: bool = False
    """One of the needs is enough."""
    owner: str = ""
    """What belongs to whoever made it: others may not, administrators may."""
    namespace: str = "query.namespace"
    """Where a request names the namespace that it has to be allowed to enter; empty: nowhere."""
    notes: tuple[str, ...] = ()
    """What else is looked at, once more is known than the request says."""

    def __str__(self) -> str:
        who = self.who.value
        if self.who is Who.USER and self.namespace:
            who = "any user of the namespace"
        parts = [] if self.who is Who.USER and (self.needs or self.owner) else [who]
        if self.needs:
            parts.append((" or " if self.any_of else " and ").join(map(str, self.needs)))
        if self.owner:
            parts.append(f"the {self.owner}'s own user, or an administrator")
        return "; ".join((*parts, *self.notes))

    def and_(self, other: "Right") -> "Right":
        """Both of them."""
        return replace(
            self,
            needs=self.needs + other.needs,
            owner=self.owner or other.owner,
            notes=self.notes + other.notes,
        )

    def noting(self, *notes: str) -> "Right":
        return replace(self, notes=self.notes + notes)


def configure(of: str) -> Right:
    return Right(needs=(Need(Verb.CONFIGURE, of),))


def write(of: str = "") -> Right:
    return Right(needs=(Need(Verb.WRITE, of),))


def read(of: str = "") -> Right:
    return Right(needs=(Need(Verb.READ, of),))


def any_right(of: str = "") -> Right:
    """To see that something is there."""
    return Right(needs=tuple(Need(verb, of) for verb in Verb), any_of=True)


def owner(of: str, namespace: str = "query.namespace") -> Right:
    return Right(owner=of, namespace=namespace)


def listing(what: str) -> Right:
    """Everybody who may enter the namespace may ask; the answer has what the caller may see."""
    return Right(notes=(f"lists only {what}",))


def administering(namespace: str) -> Right:
    """For administrators who may enter the namespace that a request names there."""
    return Right(Who.ADMINISTRATOR, namespace=namespace)


def managing(namespace: str) -> Right:
    """To look at what administrators have set there, for who may enter it."""
    return Right(Who.MANAGEMENT, namespace=namespace)


TARGETS = (
    "with a dead-letter target other than `{topic}.dlq` also read on the topic, and write on the"
    " target (and configure, if it is a topic that is not there)"
)
READS = "read on all topics of the group"
EACH = "read on the topic of each receipt; those that are not allowed are named in the answer"

ANYONE = Right(Who.ANYONE, namespace="")
LOCAL = Right(Who.LOCAL, namespace="")
USER = Right(namespace="")
MANAGEMENT = Right(Who.MANAGEMENT, namespace="")
MONITORING = Right(Who.MONITORING, namespace="")
ADMINISTRATOR = Right(Who.ADMINISTRATOR, namespace="")
