"""BraidMQ: a message broker in which many protocols are strands of one durable log."""

from importlib.metadata import version

__version__ = version("braidmq")
