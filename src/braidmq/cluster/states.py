"""The life of a replica: the one table that the core goes by.

``docs/replica-states.md`` is drawn from it. A pair that is not in the table would be a mistake of
the core's own: it is asserted.
"""

from enum import Enum, auto


class Role(Enum):
    SEEKING = auto()
    """Asks the leader where to go on. What it holds above its commit may have to be cut."""
    CUTTING = auto()
    """Its disk takes back what the leader does not have."""
    COPYING = auto()
    """The leader's journal begins later than it ends: it takes a snapshot and loses what it had."""
    FOLLOWING = auto()
    """Its log is a part of the leader's, from the beginning on."""
    LEADING = auto()
    QUIET = auto()
    """A leader that hands over, and takes nothing new for a moment."""
    DEPOSED = auto()
    """Somebody leads a newer term. The process begins again: there is no way back to following."""
    HALTED = auto()
    """It would have had to cut what it knows to be committed. An operator has to look."""


class Event(Enum):
    WELCOMED = auto()
    MUST_CUT = auto()
    CUT_DONE = auto()
    MUST_COPY = auto()
    COPY_DONE = auto()
    LINK_LOST = auto()
    NAMED = auto()
    """The shard's key in etcd names this very process."""
    NEWER_TERM = auto()
    HAND_OVER = auto()
    GIVEN_UP = auto()
    BELOW_COMMIT = auto()


FINAL = frozenset({Role.DEPOSED, Role.HALTED})

TRANSITIONS: dict[Role, dict[Event, Role]] = {
    Role.SEEKING: {
        Event.WELCOMED: Role.FOLLOWING,
        Event.MUST_CUT: Role.CUTTING,
        Event.MUST_COPY: Role.COPYING,
        Event.NAMED: Role.LEADING,
        Event.BELOW_COMMIT: Role.HALTED,
    },
    Role.CUTTING: {Event.CUT_DONE: Role.SEEKING},
    Role.COPYING: {Event.COPY_DONE: Role.SEEKING},
    Role.FOLLOWING: {
        Event.LINK_LOST: Role.SEEKING,
        Event.NEWER_TERM: Role.SEEKING,
        Event.NAMED: Role.LEADING,
    },
    Role.LEADING: {
        Event.HAND_OVER: Role.QUIET,
        Event.NEWER_TERM: Role.DEPOSED,
    },
    Role.QUIET: {
        Event.GIVEN_UP: Role.LEADING,
        Event.NEWER_TERM: Role.DEPOSED,
    },
    Role.DEPOSED: {},
    Role.HALTED: {},
}


def drawing() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {Role.SEEKING.name}: start"]
    for role, row in TRANSITIONS.items():
        lines += [
            f"    {role.name} --> {following.name}: {event.name.lower().replace('_', ' ')}"
            for event, following in row.items()
        ]
    lines += [f"    {role.name} --> [*]" for role in Role if role in FINAL]
    return "\n".join(lines) + "\n"


def document() -> str:
    """``docs/replica-states.md``, whole. Written by ``python -m braidmq.cluster.states``."""
    return (
        "# The life of a replica\n\n"
        "Generated from `src/braidmq/cluster/states.py` by `python -m braidmq.cluster.states`; a"
        " test keeps it current. One instance per replica of a shard.\n\n"
        f"```mermaid\n{drawing()}```\n\n"
        "Whoever may stand for election does so while it is SEEKING or FOLLOWING, and goes on with"
        " that until etcd names it: a vote that fails has cost nothing.\n"
    )


if __name__ == "__main__":
    import pathlib

    pathlib.Path("docs/replica-states.md").write_text(document())
