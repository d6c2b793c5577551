"""Messages of all MQTT clients, for $SYS and metrics."""


cdef class Counters:
    """``dropped``: of QoS 0, because a subscriber does not read; or refused, with nobody left to
    tell."""
