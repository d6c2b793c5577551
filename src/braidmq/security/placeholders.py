"""``%c`` and ``%u`` in patterns: the client id and the user name of whoever asks.

``^sensors/%c/`` lets each MQTT client at what is below its own id, with one permission for all of
them. Who chooses an id must not choose what it may do with it:

- a placeholder stands for a whole level: it begins at ``^``, ``/`` or a plain character, and ``/``
  or ``$`` follows. With ``^sensors/%c`` the client ``s1`` would be let at all that begins with it;
- what it stands for is taken letter by letter, whatever it means in a pattern;
- an id with ``+``, ``#``, ``*``, ``/`` or what can't be printed, that begins with ``$``, or is
  very long, and one that is not there (only MQTT has client ids), matches nothing: as a level of a
  filter it would be other people's topics.
"""

import re
from functools import lru_cache
from typing import Final

from braidmq.model.patterns import BadPattern, Pattern

CLIENT, USER = "%c", "%u"
REPEATS: Final = ("?", "*", "+", "{")
NOTHING: Final = r"[^\s\S]"

ID_CHARACTERS_MAX: Final = 128
"""Of an id that a placeholder stands for. Longer ones are nobody's: the pattern must stay one."""

_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|%[cu]|.", re.DOTALL)
_PLAIN = re.compile(r"[^\W]|[-:@~!,;=&'\"<> /^]|\\[^A-Za-z0-9]")
"""What may stand before a placeholder: itself, and nothing that repeats or chooses."""
_UNSAFE = re.compile(r"[+#*/]|^\$")


def has_placeholder(pattern: str, which: str | None = None) -> bool:
    if "%" not in pattern:
        return False
    wanted = (CLIENT, USER) if which is None else (which,)
    return any(each in wanted for each in _TOKENS.findall(pattern))


def check_placeholders(pattern: str) -> str:
    """The pattern with the longest ids there are, which is to be one, too. Raises BadPattern."""
    tokens = _TOKENS.findall(pattern)
    if not any(each in (CLIENT, USER) for each in tokens):
        return pattern
    if re.search(r"\(\?(?!:)", pattern):
        raise BadPattern(
            f"{pattern!r} has a placeholder, and with it `(?` other than `(?:`",
            remedy="Write it without flags, and without looking ahead or behind",
        )
    around = ["", *tokens, "", ""]
    for before, each, after, repeat in zip(around, tokens, around[2:], around[3:], strict=False):
        is_level = _PLAIN.fullmatch(before) and after in ("/", "$") and repeat not in REPEATS
        if each in (CLIENT, USER) and not is_level:
            raise BadPattern(
                f"in {pattern!r} {each} is no whole level",
                remedy=f"Write ^ or / or a name's letters before it, and / or $ behind: ^a/{each}/",
            )
    longest = "." * ID_CHARACTERS_MAX
    return expanded(pattern, longest, longest)


def expanded(pattern: str, user: str, client_id: str) -> str:
    """A pattern as it is for one user and client."""
    stands_for = {CLIENT: _letters(client_id), USER: _letters(user)}
    return "".join(stands_for.get(each, each) for each in _TOKENS.findall(pattern))


def _letters(name: str) -> str:
    """Nothing where it would not be one plain level."""
    is_level = 0 < len(name) <= ID_CHARACTERS_MAX and name.isprintable()
    return re.escape(name) if is_level and not _UNSAFE.search(name) else NOTHING


# Beside those that are one for all users: a thousand devices must not push them out.
@lru_cache(1024)
def compiled_for_one(text: str) -> Pattern:
    """Raises BadPattern."""
    return Pattern(text)
