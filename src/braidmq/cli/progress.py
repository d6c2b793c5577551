"""Progress on stderr, for a person who waits: how much, how fast, how long still."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

BAR_AFTER_S = 1.0
"""What is quicker needs no bar."""


class Bar:
    """``with Bar("publishing", total) as bar: … bar.show(done)``; no total, no remaining time."""

    def __init__(
        self, label: str, total: int | None, *, is_size: bool = False, shown: bool = True
    ) -> None:
        self._label = label
        self._total = total
        self.is_size = is_size
        self._begins_s = time.monotonic() + BAR_AFTER_S
        self._seen = shown and sys.stderr.isatty()
        self._stack = ExitStack()
        self._update: Callable[[int], None] | None = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, done: int) -> None:
        if self._update is not None:
            self._update(done)
        elif self._seen and time.monotonic() > self._begins_s:
            self._update = self._begin()
            self._update(done)

    def _begin(self) -> Callable[[int], None]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        known = self._total is not None
        progress = Progress(
            SpinnerColumn(),
            TextColumn(self._label),
            *((BarColumn(bar_width=20),) if known else ()),
            DownloadColumn(binary_units=True) if self.is_size else MofNCompleteColumn(),
            TransferSpeedColumn() if self.is_size else TextColumn("{task.fields[rate]}/s"),
            TimeElapsedColumn(),
            *((TextColumn("left"), TimeRemainingColumn()) if known else ()),
            console=Console(stderr=True),
            transient=True,
        )
        self._stack.enter_context(progress)
        began_s = self._begins_s - BAR_AFTER_S
        task = progress.add_task("", total=self._total, rate="0")

        def update(done: int) -> None:
            rate = done / max(time.monotonic() - began_s, 1e-9)
            progress.update(task, completed=done, rate=f"{rate:,.0f}")

        return update
