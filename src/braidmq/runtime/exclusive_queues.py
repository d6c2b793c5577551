"""Queues that belong to one AMQP connection: nobody else reads or removes them, in any protocol."""

from braidmq.engine.topics import Topic
from braidmq.model.errors import AccessRefused


class ExclusiveQueue(AccessRefused):
    code = "exclusive-queue"
    remedy = "Only that connection can read or delete it; it is deleted when the connection closes"


def is_shared(topic: Topic) -> bool:
    return not topic.attributes.get("amqp", {}).get("exclusive")


def require_shared(topic: Topic | None) -> None:
    """Raises ExclusiveQueue. To publish to one is allowed: that is how answers get there."""
    if topic is not None and not is_shared(topic):
        raise ExclusiveQueue(f"queue {topic.name!r} is exclusive to an AMQP connection")
