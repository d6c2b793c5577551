"""What an operator may set about the audit log: the table ``audit`` of the configuration."""

from typing import Annotated

import msgspec
from msgspec import Meta

from braidmq.model.limits import KIB, MIB


class AuditSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The audit log: log-ins, and every change, with user and address. `GET /v1/audit`."""

    enabled: Annotated[bool, Meta(description="Whether there is one.")] = True
    directory: Annotated[
        str,
        Meta(
            description="Where its files are, JSON lines that only the node's user may read; empty:"
            " `audit` in the data directory."
        ),
    ] = ""
    file_bytes_max: Annotated[
        int,
        Meta(
            ge=4 * KIB, le=1024 * MIB, description="A file that is as long is followed by another."
        ),
    ] = 10 * MIB
    files_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1000,
            description="Files of each kind that are kept. The kinds are administration (users,"
            " permissions, configuration), object (topics, exchanges, bindings and the like), login"
            " and refused (log-ins).",
        ),
    ] = 10
    topic: Annotated[
        bool,
        Meta(
            description="Whether events are also published, to the topic `$audit` in the namespace"
            " `$system`. Whoever has the permission to read it there may."
        ),
    ] = False
