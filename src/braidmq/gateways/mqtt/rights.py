"""What each MQTT packet needs. ``publisher.py``, ``subscriber.py`` and ``queues/`` check it;
what is not listed here concerns only the client's own session."""

from typing import NamedTuple

from braidmq.security.rights import TARGETS, Right, configure, read, write

FREE = Right(namespace="")


class Row(NamedTuple):
    packet: str
    right: Right


TABLE: tuple[Row, ...] = (
    Row("CONNECT", FREE.noting("any permission on the namespace")),
    Row("CONNECT with a will", write("will topic").noting("asked again when it is published")),
    Row("PUBLISH `{topic}`", write("topic")),
    Row("PUBLISH `{topic}` retained", write("topic")),
    Row(
        "PUBLISH `$SYS/broker/connection/{client id}/state`",
        write("topic").noting("for the bridge of that client id alone; so for its will"),
    ),
    Row("PUBLISH `$queue/{name}`", write("name").noting("configure, too, if it is not there")),
    Row("PUBLISH `$queue/{name}/$ack`, `$nack`, `$reject`", FREE.noting("of one's own deliveries")),
    Row(
        "PUBLISH `$queue/{name}/$reply`", write("response topic").noting("of one's own deliveries")
    ),
    Row("PUBLISH `$admin/queue/create`", configure("name").noting(TARGETS)),
    Row("PUBLISH `$admin/queue/{name}/config`", configure("name").noting(TARGETS)),
    Row(
        "PUBLISH `$admin/queue/{name}/config` without a payload",
        Right(needs=configure("name").needs + read("name").needs, any_of=True),
    ),
    Row("PUBLISH `$admin/queue/{name}/stats`", read("name")),
    Row("SUBSCRIBE `{filter}`", read("filter")),
    Row("SUBSCRIBE `$share/{group}/{filter}`", read("filter")),
    Row("SUBSCRIBE `$queue/{name}`", read("name").noting("configure, too, if it is not there")),
    Row(
        "SUBSCRIBE `$share/{group}/$queue/{name}`",
        read("name").noting("configure, too, if it is not there"),
    ),
    Row("SUBSCRIBE `$queue/dlq/{name}`", read("dead-letter topic")),
    Row("SUBSCRIBE `$admin/queue/{name}/stats`", read("filter").noting("and read on `name`")),
    Row("UNSUBSCRIBE", FREE),
)
