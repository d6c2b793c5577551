"""Memory that was freed goes back to the system.

The C library keeps what is freed below something that is not, for the next who needs it. After a
burst that may be most of a process's memory, for good, and whoever looks at it sees a node that
leaks. So when much was freed the library is asked to give it back.
"""

import ctypes

from braidmq.model.limits import MIB

TRIM_BYTES = 32 * MIB
"""What must have been freed: to look for it takes milliseconds."""


class MemoryTrim:
    def __init__(self) -> None:
        # Only glibc has it, and only glibc needs it.
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._peak_bytes = 0

    def look(self, held_bytes: int) -> bool:
        """Called now and then with what messages take; whether memory was given back."""
        self._peak_bytes = max(self._peak_bytes, held_bytes)
        if self._peak_bytes - held_bytes < TRIM_BYTES:
            return False
        self._peak_bytes = held_bytes
        if self._trim is not None:
            self._trim(0)
        return True
