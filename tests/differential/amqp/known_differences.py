"""Scenarios in which BraidMQ answers otherwise than RabbitMQ, each with the reason."""

KNOWN_DIFFERENCES: dict[str, str] = {}
