"""A node that is restarted, for commands that go on when it is back."""

import sys
import time

RETRY_S = 0.5
AWAY = "node is away, trying again"


class Away:
    """Said once for each time it goes away; a node that never answered is not away but down."""

    def __init__(self) -> None:
        self.may_wait = False
        self.is_away = False

    def back(self) -> None:
        if self.is_away:
            self._say("node is back")
        self.may_wait = True
        self.is_away = False

    def wait(self) -> None:
        if not self.is_away:
            self.is_away = True
            self._say(AWAY)
        time.sleep(RETRY_S)

    def _say(self, text: str) -> None:
        sys.stderr.write(f"braid: {text}\n")
        sys.stderr.flush()
