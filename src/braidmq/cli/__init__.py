"""The ``braid`` command."""

from braidmq.cli.app import main

__all__ = ["main"]
