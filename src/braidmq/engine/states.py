"""The life of a message in one subscription: the one table every protocol goes by.

The kernel in ``delivery`` applies this table to runs of messages, and ``docs/delivery-states.md``
is drawn from it. A pair that is not in the table can't happen: the kernel leaves the message alone
and the caller gets its own error.
"""

from enum import IntEnum


class State(IntEnum):
    READY = 0
    """Waiting for a consumer. Most messages here have no entry in the kernel at all."""
    IN_FLIGHT = 1
    """At a consumer, not answered yet."""
    WAITING = 2
    """Failed before; becomes ready again when its back-off is over."""
    DELAYED = 3
    """Published for later."""
    ACKED = 4
    DEAD = 5
    """Given up: rejected, or failed too often."""
    EXPIRED = 6
    """Outlived its time to live before a consumer took it."""
    DISCARDED = 7
    """Taken out by an operator or a limit: purge, overflow, retention, a cancelled delay."""


class Event(IntEnum):
    DELIVER = 0
    ACK = 1
    NACK = 2
    TIMEOUT = 3
    DISCONNECT = 4
    RETRY_DUE = 5
    REJECT = 6
    EXHAUST = 7
    EXPIRE = 8
    DUE = 9
    CANCEL = 10
    DROP = 11
    EXTEND = 12


TERMINAL = frozenset({State.ACKED, State.DEAD, State.EXPIRED, State.DISCARDED})
"""Settled: never delivered again, and its offset belongs to the acknowledged set."""

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.DELAYED: {
        Event.DUE: State.READY,
        Event.CANCEL: State.DISCARDED,
        Event.EXPIRE: State.EXPIRED,
        Event.DROP: State.DISCARDED,
    },
    State.READY: {
        Event.DELIVER: State.IN_FLIGHT,
        Event.EXPIRE: State.EXPIRED,
        Event.DROP: State.DISCARDED,
    },
    State.IN_FLIGHT: {
        Event.ACK: State.ACKED,
        Event.NACK: State.WAITING,
        Event.TIMEOUT: State.WAITING,
        Event.DISCONNECT: State.WAITING,
        Event.REJECT: State.DEAD,
        Event.EXHAUST: State.DEAD,
        Event.EXTEND: State.IN_FLIGHT,
    },
    State.WAITING: {
        Event.RETRY_DUE: State.READY,
        Event.EXPIRE: State.EXPIRED,
        Event.DROP: State.DISCARDED,
    },
    State.ACKED: {},
    State.DEAD: {},
    State.EXPIRED: {},
    State.DISCARDED: {},
}

ILLEGAL = 255


def table() -> bytes:
    """The transitions as the kernel reads them: ``table[16 * state + event]``."""
    cells = bytearray([ILLEGAL]) * (16 * len(State))
    for state, row in TRANSITIONS.items():
        for event, following in row.items():
            cells[16 * state + event] = following
    return bytes(cells)


def drawing() -> str:
    """The table as a Mermaid state diagram."""
    lines = [
        "stateDiagram-v2",
        "    [*] --> READY: publish",
        "    [*] --> DELAYED: publish, delayed",
    ]
    for state, row in TRANSITIONS.items():
        targets: dict[State, list[str]] = {}
        for event, following in row.items():
            targets.setdefault(following, []).append(event.name.lower().replace("_", " "))
        lines += [
            f"    {state.name} --> {following.name}: {', '.join(events)}"
            for following, events in targets.items()
        ]
    lines += [f"    {state.name} --> [*]" for state in sorted(TERMINAL)]
    return "\n".join(lines) + "\n"


def document() -> str:
    """``docs/delivery-states.md``, whole. Written by ``python -m braidmq.engine.states``."""
    rows = [
        f"| {state.name} | {event.name} | {following.name} |"
        for state, row in TRANSITIONS.items()
        for event, following in row.items()
    ]
    return (
        "# The delivery state machine\n\n"
        "Generated from `src/braidmq/engine/states.py` by `python -m braidmq.engine.states`; a test"
        " keeps it current. One instance per message and subscription, in every protocol.\n\n"
        f"```mermaid\n{drawing()}```\n\n"
        "| in state | on event | goes to |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
        "DISCONNECT, NACK and TIMEOUT lead to WAITING; where a topic asks for no back-off (AMQP's"
        " requeue) RETRY_DUE follows in the same step. A pair that is not listed changes nothing.\n"
    )


if __name__ == "__main__":
    import pathlib

    pathlib.Path("docs/delivery-states.md").write_text(document())
