"""Modules as their sources say, also those that mypyc compiled: only so can a test put something of
its own in the place of a part. For a process of its own, before anything else is imported."""

import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)


def prefer_sources() -> None:
    sys.path_hooks.insert(
        0,
        FileFinder.path_hook(
            (SourceFileLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES)
        ),
    )
    sys.path_importer_cache.clear()
