"""How a life of the node ends: when, and what the disk then has.

Every fault is drawn from a seed. A *kill* leaves what was written; a *power cut* leaves what was
synced, and of the rest what chance leaves, torn at sectors. Each comes at a random moment of the
traffic, or is *placed*: before, after or in the middle of the n-th operation of a kind on the disk,
while the node starts or while it works.
"""

import random
from typing import Literal

import msgspec

Operation = Literal["create", "write", "rename", "remove", "sync", "sync_directory"]
Moment = Literal["before", "during", "after"]

PLACES: tuple[tuple[Operation, str], ...] = (
    ("create", "journal"),
    ("write", "journal"),
    ("sync", "journal"),
    ("rename", "journal"),
    ("remove", "journal"),
    ("sync_directory", "journal"),
    ("create", "snapshots"),
    ("write", "snapshots"),
    ("rename", "snapshots"),
    ("remove", "snapshots"),
    ("sync_directory", "snapshots"),
    ("create", "segments"),
    ("write", "segments"),
    ("sync", "segments"),
    ("remove", "segments"),
    ("sync_directory", "segments"),
)
"""A journal file is made and put in place, a checkpoint writes segments and a snapshot, a journal
that rolled and files that nobody needs any more are removed."""

NTH_MAX: dict[tuple[Operation, str], int] = {
    ("create", "journal"): 15,
    ("write", "journal"): 30,  # commits are among them only where the power is cut
    ("sync", "journal"): 30,
    ("rename", "journal"): 25,
    ("remove", "journal"): 15,
    ("sync_directory", "journal"): 25,
    ("create", "segments"): 60,
    ("write", "segments"): 200,
    ("remove", "segments"): 40,
}
NTH_MAX_OTHERS = 6
"""A place is hit about this often in a second of traffic."""

IN_START_SHARE = 0.15
PLACED_SHARE = 0.6
POWER_SHARE = 0.35


class Fault(msgspec.Struct, frozen=True):
    is_power_cut: bool
    traffic_s: float
    """How long the node works, unless the placed moment comes first."""
    seed: int
    operation: Operation | None = None
    """None: at the end of the traffic, wherever the node then is."""
    directory: str = ""
    moment: Moment = "before"
    nth: int = 1
    in_start: bool = False

    @property
    def kind(self) -> str:
        """One word for the report."""
        how = "power cut" if self.is_power_cut else "kill"
        if self.operation is None:
            return f"{how} at random"
        where = f"{self.operation} in {self.directory}"
        return f"{how} {self.moment} {where}" + (" at start" if self.in_start else "")


def draw(rng: random.Random, traffic_s: float) -> Fault:
    is_power_cut = rng.random() < POWER_SHARE
    seconds = traffic_s * rng.uniform(0.3, 1.3)
    seed = rng.randrange(1 << 30)
    if rng.random() >= PLACED_SHARE:
        return Fault(is_power_cut, seconds, seed)
    operation, directory = rng.choice(PLACES)
    moments: list[Moment] = ["before", "after"]
    if operation == "write":
        moments.append("during")
    in_start = rng.random() < IN_START_SHARE
    nth = rng.randint(1, 3 if in_start else NTH_MAX.get((operation, directory), NTH_MAX_OTHERS))
    moment = rng.choice(moments)
    return Fault(is_power_cut, seconds, seed, operation, directory, moment, nth, in_start)
