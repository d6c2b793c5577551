"""The catalogue: small facts a node keeps, as named tables of keys and values.

Topics, subscriptions, bindings, users: whoever owns a table encodes its values. A change is one
journal entry, whatever number of keys it touches, so it happens wholly or not at all.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

PARTITIONS = "partitions"
"""The table of partitions: number → label."""
SUBSCRIPTIONS = "subscriptions"
"""The table of durable subscriptions, by number; what one has acknowledged goes with its row."""
IN_MEMORY = "in-memory"
"""The table of partitions whose records are in memory only: number → ``reserved_offset``."""
COUNTERS = "counters"
"""The table of numbers given out: what for → the next."""

Change = tuple[str, str, bytes | None]
"""Table, key, and the new value; None deletes."""

_encoder = msgspec.msgpack.Encoder()
_changes = msgspec.msgpack.Decoder(list[Change])
_tables = msgspec.msgpack.Decoder(dict[str, dict[str, bytes]])


def encode_changes(changes: Sequence[Change]) -> bytes:
    return _encoder.encode(changes)


def decode_changes(data: bytes) -> list[Change]:
    return _changes.decode(data)


class Catalogue:
    """The tables as they are now. Changes go through the store, which journals them."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, bytes]] = {}

    def get(self, table: str, key: str) -> bytes | None:
        return self._tables.get(table, {}).get(key)

    def items(self, table: str) -> Iterator[tuple[str, bytes]]:
        return iter(self._tables.get(table, {}).items())

    def table(self, table: str) -> Mapping[str, bytes]:
        return self._tables.get(table, {})

    def apply(self, changes: Sequence[Change]) -> None:
        for table, key, value in changes:
            if value is None:
                self._tables.get(table, {}).pop(key, None)
            else:
                self._tables.setdefault(table, {})[key] = value

    def rows(self) -> list[tuple[str, list[tuple[str, bytes]]]]:
        """In an order that does not depend on what came first."""
        tables = sorted(self._tables.items())
        return [(name, sorted(rows.items())) for name, rows in tables if rows]

    def dump(self) -> bytes:
        return _encoder.encode(self._tables)

    def load(self, data: bytes) -> None:
        self._tables = _tables.decode(data)
