"""How long a replica waits for what. None of it decides what is committed: only how soon."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    heartbeat_ms: int = 250
    """Something is said on every link within this time."""
    silence_ms: int = 1_000
    """A member of the set that says nothing for so long leaves it; a leader is asked anew."""
    lag_ms: int = 1_000
    """So does a member whose disk does not get to where the log ended this long ago."""
    cas_timeout_ms: int = 1_000
    """Etcd is asked again after this."""
    hello_retry_ms: int = 500
    quiet_ms: int = 1_000
    """A transfer that has not come through by then is given up: publishers wait for it."""
    transfer_bytes_max: int = 1 << 20
    """What a transfer's target may still have to get: it fits into the time above."""
    transfer_retry_ms: int = 5_000
    """Between two attempts to follow a wish or to drain."""
    lease_ttl_ms: int = 2_000
    """Registrations are believed to be missing when etcd has been back for so long."""
    rejoin_ms: int = 5_000
    """How long a member that fell out has to keep up before it is let in, the first time."""
    rejoin_ms_max: int = 60_000
    """It doubles each time up to this; who stays in for as long begins anew."""
    ship_entries: int = 10_000
    """Entries in one effect; the node makes groups of them."""
    unacked_entries: int = 100_000
    """Who has more unacknowledged gets no more before it answers."""


DEFAULTS = ReplicaSettings()
