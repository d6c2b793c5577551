"""Errors say who was wrong and what to do. Gateways translate them to the wire, nobody else.

``kind`` is what a gateway switches on; ``code`` is the stable name that clients, logs and metrics
see; the message says what happened and ``remedy`` what to do about it.
"""

from enum import Enum
from typing import ClassVar


class Kind(Enum):
    """What went wrong, in the terms every protocol has an answer for."""

    BAD_REQUEST = "bad-request"
    NOT_FOUND = "not-found"
    CONFLICT = "conflict"
    TOO_LARGE = "too-large"
    REFUSED = "refused"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    STORAGE = "storage"
    SETUP = "setup"


class BraidError(Exception):
    """Root of every error BraidMQ raises on purpose."""

    kind: ClassVar[Kind]
    code: ClassVar[str]
    remedy: str = ""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}. {self.remedy}" if self.remedy else message


# --- the machine or its disk was wrong ---


class StorageError(BraidError):
    kind = Kind.STORAGE
    code = "storage-error"


class StorageFailed(StorageError):
    """A write or a sync failed. What the disk holds is unknown, so nothing is confirmed any more:
    after a failed fdatasync the kernel may drop the dirty pages and report success next time."""

    code = "storage-failed"
    remedy = "Nothing more is confirmed. Repair the disk, then restart the node"


class CorruptData(StorageError):
    """Bytes that were once synced no longer match their checksum."""

    code = "corrupt-data"
    remedy = "Nothing was changed. Restore this file from a backup"

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(f"{file}: damaged at byte {position}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason


class NoSnapshot(CorruptData):
    """The state is gone, the records may not be: starting empty would be worse than not at all."""

    code = "no-snapshot"
    remedy = (
        "Nothing was changed. Restore the snapshots from a backup, or go on with what segments and"
        " journal say of themselves: `braid storage rebuild`"
    )

    def __init__(self, file: str, position: int, reason: str) -> None:
        super().__init__(file, position, reason)
        self.args = (f"no snapshot can be read: {self.args[0]}",)


class PartitionQuarantined(CorruptData):
    """A partition with a damaged file: neither read nor written until an operator decides. All
    others go on."""

    code = "partition-quarantined"
    remedy = (
        "An operator has to restore the file and lift the quarantine, skip what is damaged, or"
        " delete the topic: see `braid storage`"
    )

    def __init__(self, label: str, file: str, position: int, reason: str) -> None:
        super().__init__(file, position, reason)
        self.args = (f"{label} is quarantined: {file} is damaged at byte {position}: {reason}",)


class CutBelowSnapshot(StorageError):
    """A journal is to end before entries that a snapshot stands on: they were confirmed."""

    code = "cut-below-snapshot"
    remedy = "Nothing was changed. Copy the leader's state anew, and report this: it is a defect"

    def __init__(self, lsn: int, held: int) -> None:
        super().__init__(f"the journal can't end with entry {lsn}: a snapshot holds {held}")


class StateDiverged(StorageError):
    """A follower has done what its leader did, and has come to another state."""

    code = "state-diverged"
    remedy = "Copy the leader's state anew, and report this: it is a defect"

    def __init__(self, lsn: int) -> None:
        self.lsn = lsn
        super().__init__(f"the state at the checkpoint of entry {lsn} differs from the leader's")


# --- the operator was wrong: the node does not start ---


class SetupError(BraidError):
    kind = Kind.SETUP
    code = "setup-error"


class DirectoryLocked(SetupError):
    code = "directory-locked"
    remedy = "Stop that node, or give this one another --data-dir"


class ForeignFile(SetupError):
    """Something in the data directory that BraidMQ did not write, or a newer BraidMQ did."""

    code = "foreign-file"


class BadSetting(SetupError):
    code = "bad-setting"


# --- the caller was wrong ---


class BadRequest(BraidError):
    """What was asked for makes no sense; nothing was done."""

    kind = Kind.BAD_REQUEST
    code = "bad-request"


class NotFound(BraidError):
    """There is nothing of that name."""

    kind = Kind.NOT_FOUND
    code = "not-found"


class Conflict(BraidError):
    """It is there already with other settings, in use, or somebody else's."""

    kind = Kind.CONFLICT
    code = "conflict"


class AccessRefused(BraidError):
    """We know who asks, and they may not."""

    kind = Kind.FORBIDDEN
    code = "access-refused"


class NotAuthenticated(AccessRefused):
    """We don't know who asks. AMQP answers both the same, HTTP does not."""

    kind = Kind.UNAUTHENTICATED
    code = "not-authenticated"


class OffsetOutOfRange(BadRequest):
    code = "offset-out-of-range"


class RecordTooLarge(BraidError):
    kind = Kind.TOO_LARGE
    code = "record-too-large"
