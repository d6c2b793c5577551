"""BraidMQ: a message broker in which many protocols are strands of one durable log."""

__version__ = "0.1.0"
