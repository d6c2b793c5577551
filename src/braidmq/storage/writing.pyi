from collections.abc import Sequence

from braidmq.storage.disk import Buffer

def write_pieces(fd: int, pieces: Sequence[Buffer], position: int, durably: bool) -> int: ...
