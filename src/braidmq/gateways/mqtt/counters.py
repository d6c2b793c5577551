"""Messages of all MQTT clients, for $SYS and metrics."""


class Counters:
    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.dropped = 0
        """Of QoS 0, because a subscriber does not read; or refused, with nobody left to tell."""
