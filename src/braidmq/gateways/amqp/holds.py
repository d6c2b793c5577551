"""When a connection is not read from."""

from enum import IntFlag


class Hold(IntFlag):
    """Why a connection is held back."""

    BLOCKED = 1
    """Memory or disk is low, and it has published. That alone does not stop it from being read: it
    may have acknowledgements to send, which make room."""
    SLOW = 2
    """One of them is getting low."""
    UNCONFIRMED = 4
    """Too much that it published is not confirmed yet."""
    PARKED = 8
    """It is blocked, and has nothing to answer for or too many publishes that wait."""
    BUSY = 16
    """What it sent last is not done yet."""
    UNSENT = 32
    """It does not read what it is sent."""
    TOO_FAST = 64
    """It sends faster than it may."""


UNREAD = Hold.SLOW | Hold.UNCONFIRMED | Hold.PARKED | Hold.BUSY | Hold.UNSENT | Hold.TOO_FAST
"""With any of these it is not read from."""
