"""``braid`` in this process, against a live node in another."""

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from braidmq.cli.app import main
from braidmq.testing.live import LiveNode


@dataclass
class Outcome:
    code: int
    raw: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.raw.decode()


class Cli:
    def __init__(self, node: LiveNode, patch: pytest.MonkeyPatch) -> None:
        self.node = node
        self._patch = patch
        patch.setenv("BRAID_URL", node.http_url)
        patch.setenv("BRAID_AMQP_PORT", str(node.ports["amqp_port"]))
        patch.setenv("COLUMNS", "200")
        # Contexts of whoever runs the tests are none of ours.
        patch.setenv("XDG_CONFIG_HOME", "/nonexistent")

    def run(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
        with self._patch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", errors)
            with pytest.raises(SystemExit) as ended:
                main(list(arguments))
        out.flush()
        assert isinstance(out.buffer, io.BytesIO)
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Outcome(code or 0, out.buffer.getvalue(), errors.getvalue())

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        """What a command that succeeds prints."""
        outcome = self.run(*arguments, stdin=stdin)
        assert (outcome.code, outcome.errors) == (0, "")
        return outcome.text

    def rows(self, *arguments: str) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.ok(*arguments).splitlines()]

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def lines(self, *arguments: str) -> list[Any]:
        """Of a command that prints an object a line."""
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def fails(self, code: int, *arguments: str, stdin: bytes = b"") -> str:
        """The one line a command that fails says."""
        outcome = self.run(*arguments, stdin=stdin)
        assert (outcome.code, outcome.text) == (code, ""), outcome.errors
        (line,) = outcome.errors.splitlines()
        assert line.startswith("braid: error: ")
        return line.removeprefix("braid: error: ")
