from collections.abc import Iterator

import pytest

from braidmq.security.accounts import Accounts
from braidmq.storage.disk import MemoryDisk
from braidmq.storage.settings import StorageSettings
from braidmq.storage.store import Store


@pytest.fixture
def store() -> Iterator[Store]:
    opened = Store.open(MemoryDisk(), StorageSettings(journal_file_bytes=1 << 20))
    yield opened
    opened.close()


@pytest.fixture
def accounts(store: Store) -> Accounts:
    return Accounts(store)
