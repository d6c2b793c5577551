"""Permission patterns with RabbitMQ's meaning, and a cache of their answers.

RabbitMQ runs ``re:run(Name, Pattern)``: the pattern is searched for anywhere in the name, and
anchors are the administrator's business. Only the empty pattern is special: it grants nothing.
"""

import logging
import warnings
from collections.abc import Callable, Sequence

from braidmq.engine.makers import Maker, SetBy
from braidmq.model.errors import AccessRefused
from braidmq.model.ids import PRIVATE_PREFIX
from braidmq.model.patterns import BadPattern, Pattern, compiled
from braidmq.security.placeholders import (
    check_placeholders,
    compiled_for_one,
    expanded,
    has_placeholder,
)
from braidmq.security.records import (
    ADMINISTRATOR,
    PermissionRecord,
    User,
    kept_name,
    scopes_of,
)
from braidmq.security.rights import Verb
from braidmq.security.scopes import Scopes

logger = logging.getLogger(__name__)

DEFAULT_EXCHANGE = "amq.default"
"""What patterns see instead of the empty name of AMQP's default exchange, as in RabbitMQ."""

NAMES_MAX = 4096
"""Answers remembered for each user and namespace, of each of the three sorts."""

NAME_CHARACTERS_MAX = 1024
"""Those of longer names are not: clients choose how long a topic is."""

NOTHING = PermissionRecord("", "", "")
EVERYTHING = PermissionRecord(".*", ".*", ".*")


def check_pattern(pattern: str) -> None:
    """Raises BadRequest for what can't be read, is read otherwise than it was meant, or could take
    for ever to match."""
    with warnings.catch_warnings():
        # "Possible nested set": POSIX classes such as [[:alpha:]], which RabbitMQ knows.
        warnings.simplefilter("error")
        try:
            Pattern(pattern)
            Pattern(check_placeholders(pattern))
        except Warning as error:
            raise BadPattern(f"{pattern!r} is not a pattern: {error}") from error


Answers = dict[str, bool]
_TO = {Verb.CONFIGURE: "configure", Verb.WRITE: "write to", Verb.READ: "read from"}


class Grants:
    """What one user may do in one namespace, as of now: a changed permission is seen by those who
    hold this already. ``generation`` says whether anything changed; ``look_up`` what it is."""

    __slots__ = (
        "__weakref__",
        "_configure",
        "_generation",
        "_is_administrator",
        "_look_up",
        "_patterns",
        "_read",
        "_scopes",
        "_seen",
        "_write",
        "client_id",
        "namespace",
        "user",
    )

    def __init__(
        self,
        user: str,
        namespace: str,
        generation: Callable[[], int],
        look_up: Callable[[str, str, Scopes | None], PermissionRecord],
        is_administrator: Callable[[str], bool],
        scopes: Scopes | None = None,
        client_id: str = "",
    ) -> None:
        """``scopes``: what a token says of it. They narrow what is looked up, or are all there is
        where their user has no account. ``client_id``: of an MQTT client, for patterns that name
        it."""
        self.user = user
        self._scopes = scopes
        self.client_id = client_id
        self.namespace = namespace
        self._generation = generation
        self._look_up = look_up
        self._is_administrator = is_administrator
        self._seen = -1
        self._patterns = NOTHING
        self._configure: Answers = {}
        self._write: Answers = {}
        self._read: Answers = {}

    @property
    def scopes(self) -> Scopes | None:
        """Of the token they come from."""
        return self._scopes

    def may_configure(self, name: str) -> bool:
        self._refresh()
        answer = self._configure.get(name)
        return self._ask(Verb.CONFIGURE, name, self._configure) if answer is None else answer

    def may_write(self, name: str) -> bool:
        self._refresh()
        answer = self._write.get(name)
        return self._ask(Verb.WRITE, name, self._write) if answer is None else answer

    def may_read(self, name: str) -> bool:
        self._refresh()
        answer = self._read.get(name)
        return self._ask(Verb.READ, name, self._read) if answer is None else answer

    def _ask(self, verb: Verb, name: str, answers: Answers) -> bool:
        if len(answers) >= NAMES_MAX:
            answers.clear()
        pattern: str = getattr(self._patterns, verb)
        answer = bool(pattern) and self._grants(pattern, name or DEFAULT_EXCHANGE)
        if answer and self._scopes is not None:
            answer = self._scopes.may(verb, self.namespace, name or DEFAULT_EXCHANGE)
        if name.startswith(PRIVATE_PREFIX):
            # Sessions' queues and the like are no client's, whatever its patterns say. An
            # administrator may look and clear up, and not forge.
            is_kept_out = answers is self._write or not self._is_ruler()
            answer = answer and not is_kept_out
        if len(name) <= NAME_CHARACTERS_MAX:
            answers[name] = answer
        return answer

    def _is_ruler(self) -> bool:
        scopes = self._scopes
        if scopes is None:
            return self._is_administrator(self.user)
        is_said = ADMINISTRATOR in scopes.tags
        return is_said and (not scopes.has_account or self._is_administrator(self.user))

    def _grants(self, pattern: str, name: str) -> bool:
        try:
            if not has_placeholder(pattern):
                return compiled(pattern).search(name)
            own = expanded(pattern, self.user, self.client_id)
            return compiled_for_one(own).search(name)
        except BadPattern as error:
            # An earlier BraidMQ took it.
            logger.error(
                "a permission is ignored: its pattern is not valid any more",
                extra={"reason": str(error)},
            )
            return False

    def may(self, verb: Verb, name: str) -> bool:
        if verb is Verb.CONFIGURE:
            return self.may_configure(name)
        return self.may_write(name) if verb is Verb.WRITE else self.may_read(name)

    def may_some(self, verb: Verb) -> bool:
        """Whether there is any name at all that it might be allowed on."""
        self._refresh()
        if self._scopes is not None and not self._scopes.may_some(verb, self.namespace):
            return False
        return bool(getattr(self._patterns, verb))

    def sees(self, name: str) -> bool:
        """Whether something is the user's business: whoever may do nothing with it is not told
        that it is there."""
        return self.may_read(name) or self.may_write(name) or self.may_configure(name)

    def need(self, verb: Verb, name: str) -> None:
        """Raises AccessRefused."""
        if not self.may(verb, name):
            raise self._refusal(_TO[verb], name)

    def need_some(self, verb: Verb) -> None:
        """Raises AccessRefused."""
        if not self.may_some(verb):
            raise AccessRefused(
                f"user {self.user!r} has no {verb} permission in namespace {self.namespace!r}"
            )

    def need_configure(self, name: str) -> None:
        """Raises AccessRefused."""
        if not self.may_configure(name):
            raise self._refusal("configure", name)

    def need_write(self, name: str) -> None:
        """Raises AccessRefused."""
        if not self.may_write(name):
            raise self._refusal("write to", name)

    def need_read(self, name: str) -> None:
        """Raises AccessRefused."""
        if not self.may_read(name):
            raise self._refusal("read from", name)

    def refusal_of_all(self, verbs: Sequence[Verb], name: str | None) -> AccessRefused:
        """Where any of them would have been enough; None: on any name."""
        if name is None:
            return AccessRefused(
                f"user {self.user!r} has no permission in namespace {self.namespace!r}"
            )
        *others, last = (_TO[verb] for verb in verbs)
        return self._refusal(f"{', '.join(others)} or {last}" if others else last, name)

    def _refresh(self) -> None:
        generation = self._generation()
        if generation == self._seen:
            return
        self._seen = generation
        self._patterns = self._look_up(self.user, self.namespace, self._scopes)
        for answers in (self._configure, self._write, self._read):
            answers.clear()

    def _refusal(self, verb: str, name: str) -> AccessRefused:
        return AccessRefused(
            f"user {self.user!r} may not {verb} {name or DEFAULT_EXCHANGE!r}"
            f" in namespace {self.namespace!r}"
        )


def maker_of(user: User, grants: Grants) -> SetBy:
    """Whose rights count for what somebody makes that names other objects."""
    if scopes_of(user) is None:
        return user.name
    return Maker(kept_name(user), lambda verb, name: grants.may(Verb(verb), name))
