"""When a connection is not read from."""

from enum import IntFlag


class Hold(IntFlag):
    """Why a connection is not read from."""

    BLOCKED = 1
    """Memory or disk is low, and it has published."""
    SLOW = 2
    """One of them is getting low."""
    UNCONFIRMED = 4
    """Too much that it published is not confirmed yet."""
