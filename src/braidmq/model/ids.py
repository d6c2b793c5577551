"""Integers with names. A bare ``int`` in a signature is a count or a size, never an identity."""

from typing import Final, NewType

Offset = NewType("Offset", int)
"""Position of a record in its partition; dense at append, never reused, never changed."""

PartitionId = NewType("PartitionId", int)
"""Node-wide number of one partition of one topic; never reused."""

SubscriptionId = NewType("SubscriptionId", int)
"""Node-wide number of one subscription; never reused."""

Lsn = NewType("Lsn", int)
"""Log sequence number: position of an entry in the node's journal, counted in entries from 1."""

Epoch = NewType("Epoch", int)
"""Which use of a journal file: a recycled file gets a new one, so stale bytes are refused."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since the Unix epoch, UTC."""

PRIVATE_PREFIX: Final = "$mqtt/"
"""Topics that the broker keeps for itself, as what waits for MQTT sessions: no client of any
protocol has a right to one by its name."""
