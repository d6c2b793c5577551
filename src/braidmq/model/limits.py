"""Every limit has a name, a unit and a reason."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

MESSAGE_BYTES_MAX = 1 * MIB
"""Largest message value accepted by default (catalogue row B4)."""

RECORD_BYTES_MAX = 512 * MIB
"""Largest encoded record any setting can allow: lengths are 32 bits wide, and a length read from
a damaged file beyond this is refused before anything is allocated for it."""

KEY_BYTES_MAX = 65_535
"""Key length is 16 bits wide in the record header."""

ERROR_CHARACTERS_MAX = 4096
"""What a consumer may say of why a message failed: kept in its dead letter, and shown in lists. A
trace of the calls that led there fits; each dead letter may carry one."""

SEGMENT_BYTES_MAX = 64 * MIB
"""A segment is sealed at this size (A2): small enough to drop in one piece, large enough that a
terabyte is sixteen thousand files."""

INDEX_INTERVAL_BYTES = 4 * KIB
"""One sparse index entry per this many bytes (A2): a look-up scans at most one interval."""

JOURNAL_FILE_BYTES = 64 * MIB
"""A journal file is rolled at this size: it bounds both replay time and unflushed memory."""

TAIL_BYTES_MAX = 256 * MIB
"""Memory for recent batches of all partitions together."""
