"""Names below ``$queue/``: which topic of the engine they are, and what is asked of it.

$queue/{name}            the queue, to publish to and subscribe to; a name may have levels
$queue/dlq/{name}        its dead letters, to subscribe to
$queue/{name}/$ack       an answer to deliveries: also $nack, $reject and $reply
$share/{group}/$queue/…  a subscription that names its group
"""

from typing import Final, NamedTuple

from braidmq.model.errors import BadRequest
from braidmq.security.records import check_name
from braidmq.wire.mqtt.constants import Reason
from braidmq.wire.mqtt.errors import MqttError
from braidmq.wire.mqtt.text import split_share

QUEUE: Final = "$queue/"
QUEUE_BYTES: Final = QUEUE.encode()
DEAD: Final = "dlq/"
DEAD_SUFFIX: Final = ".dlq"
VERBS: Final = frozenset({"$ack", "$nack", "$reject", "$reply"})


class Address(NamedTuple):
    topic: str
    """As MQTT has it, without the verb."""
    name: str
    """Of the queue, or of the queue whose dead letters are meant."""
    dead: bool = False
    verb: str = ""


def is_queue(topic: str) -> bool:
    return topic.startswith(QUEUE)


def is_queue_filter(pattern: str) -> bool:
    shared = split_share(pattern)
    return is_queue(pattern if shared is None else shared.filter)


def parse(topic: str, problem: Reason = Reason.TOPIC_NAME_INVALID) -> Address:
    """Raises MqttError with ``problem`` for what can't be the name of a queue."""
    head, _, last = topic.rpartition("/")
    verb = last if last in VERBS else ""
    whole = head if verb else topic
    name = whole.removeprefix(QUEUE)
    dead = name.startswith(DEAD)
    if dead:
        name = name.removeprefix(DEAD)
    if "+" in name or "#" in name:
        raise MqttError(problem, f"{topic!r}: queues are subscribed to by name, without wildcards")
    if not name or whole == QUEUE[:-1] or any(each[:1] == "$" for each in name.split("/")):
        raise MqttError(problem, f"{topic!r} is not a valid queue name")
    try:
        check_name(name, "queue name")
    except BadRequest as error:
        raise MqttError(problem, str(error)) from None
    return Address(whole, name, dead, verb)


def default_group(client_id: str) -> str:
    """What comes before the last dash: ``worker-1`` and ``worker-2`` are two of ``worker``."""
    return client_id.rpartition("-")[0] or client_id
