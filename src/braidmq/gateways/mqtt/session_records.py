"""What is kept of sessions.

mqtt-sessions        namespace\\0client id → SessionRecord
mqtt-subscriptions   namespace\\0client id\\0filter → SubscriptionRecord
mqtt-packet-ids      namespace\\0client id → PacketIds
"""

import msgspec

from braidmq.gateways.mqtt.packet_ids import IdRun
from braidmq.gateways.mqtt.queues.record import QueueRecord
from braidmq.security.scopes import Scopes, granted
from braidmq.wire.mqtt.packets import Will

SESSIONS = "mqtt-sessions"
SUBSCRIPTIONS = "mqtt-subscriptions"
PACKET_IDS = "mqtt-packet-ids"


class RetainedPlace(msgspec.Struct, array_like=True, frozen=True):
    """How far the retained messages for a subscription have come. It is written before those of a
    slice: after a crash the slice counts only if it came to the session's queue."""

    after: str = ""
    """All topics up to this one are done; empty: none is."""
    slice_end: str | None = ""
    """The last topic of a slice; None when it is the last slice."""
    offset: int = -1
    """Where its first message was to be in the queue; -1: no slice is on its way."""

    def found(self, next_offset: int) -> "RetainedPlace | None":
        """What it is after a restart; None when all is done."""
        if not 0 <= self.offset < next_offset:
            return RetainedPlace(self.after)
        return None if self.slice_end is None else RetainedPlace(self.slice_end)


class SubscriptionRecord(msgspec.Struct, array_like=True):
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int
    retained: RetainedPlace | None = None
    """None: it has got its retained messages."""


class SessionRecord(msgspec.Struct, array_like=True):
    user: str
    """Whose it is; empty: of whoever resumes it first."""
    expiry_s: int
    disconnected_ms: int
    """0 while it is connected."""
    will: Will | None = None
    queues: list[QueueRecord] = []
    """Subscriptions to durable queues."""
    scopes: list[str] | None = None
    """What the token said that its client logged in with; None: it had none, or one without."""
    has_account: bool = True
    """Whether these narrow what the user may, or are all there is."""

    def kept_scopes(self) -> Scopes | None:
        if self.scopes is None:
            return None
        return granted(self.scopes, has_account=self.has_account)


class PacketIds(msgspec.Struct, array_like=True):
    """What QoS 2 has to remember of the middle of its exchanges."""

    inbound: list[IdRun]
    """Published to us and not yet released, with the place that the message was to have. It is
    written before the message: after a crash it counts only if the message came there."""
    released: list[IdRun]
    """Sent by us, confirmed with PUBREC and not with PUBCOMP, each with the place of its message.
    No place: the message is gone, or was kept by a node that wrote none."""
    unreceived: list[IdRun] = []
    """Sent by us at QoS 2 and not confirmed."""
    uncertain: list[IdRun] = []
    """Of messages that may have been sent before the node crashed."""
