"""Scenarios in which BraidMQ answers otherwise than RabbitMQ, each with the reason."""

_CRASH = (
    "RabbitMQ's reader crashes and the socket closes without a word; we answer with the code that"
    " the specification has for it"
)
_HEAD = (
    "RabbitMQ looks only at the head of a queue for expired messages; ours expire when their time"
    " is over, wherever they stand"
)
_STREAM = (
    "RabbitMQ's streams can do less than its queues; here a stream is a queue that keeps what was"
    " read, can be got from and purged, and needs no prefetch"
)

KNOWN_DIFFERENCES: dict[str, str] = {
    "framing.unknown_class": _CRASH,
    "framing.unknown_method_of_a_known_class": _CRASH,
    "framing.unknown_method_on_channel_0": _CRASH,
    "framing.table_with_unknown_type": _CRASH,
    "framing.header_with_malformed_properties": (
        "RabbitMQ calls it its own internal error (541); it is a frame error of the client (501)"
    ),
    "handshake.header_of_amqp_0_9": "we speak 0-9-1 only and say so, as clause 4.2.2 wants it",
    "handshake.start_offers": (
        "we offer methods of our own: basic.retry, basic.fail, confirm.places and more, as"
        " capabilities that begin with braid."
    ),
    "lifetimes.ttl_of_message_waits_for_the_head": _HEAD,
    "lifetimes.ttl_and_priorities": _HEAD,
    "lifetimes.priority_and_max_length_drop_the_head": (
        "RabbitMQ drops the most important message first; we drop the least important"
    ),
    "policies.message_ttl_and_what_is_there": (
        "RabbitMQ stamps a message with the TTL its queue has when it arrives; ours is the queue's,"
        " and holds for all that is in it from when it is set"
    ),
    "policies.reject_publish_for_a_queue_that_has_more": (
        "RabbitMQ applies the length before the overflow mode and so drops messages of a queue that"
        " is to refuse; we keep them and refuse"
    ),
    "quorum.exclusive_consumer": (
        "RabbitMQ 3.10 lets a second consumer in beside an exclusive one of a quorum queue"
    ),
    "quorum.requeued_goes_behind_what_waits": (
        "RabbitMQ 3.10 sends it to the end of a quorum queue that has no delivery limit; with a"
        " limit, which every quorum queue has since RabbitMQ 4, it keeps its place, as always here"
    ),
    "quorum.stream_consumer_without_prefetch_is_refused": _STREAM,
    "quorum.stream_get_is_refused": _STREAM,
    "quorum.stream_purge_is_refused": _STREAM,
}
