"""Which settings can change while the node runs: of every key, which part of a node takes it
(``PART_OF``), or why none does (``RESTART``). tests/config/test_reloading.py looks that each is in
one of the two, and that its part does take it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

ENTRIES: Final = "listeners.entries"

LISTENER: Final = "its port is opened when the node starts"
_AUDIT: Final = "the audit log is to say all of a run"
_FILES: Final = "the files that are there have these sizes"

RESTART: Final[Mapping[str, str]] = {
    "node.data_dir": "the node has this directory open, and locked",
    "node.dev": "who was let in without a password would stay",
    **{
        f"listeners.{name}": LISTENER
        for name in (
            "host",
            *("amqp_port", "mqtt_port", "ws_port", "http_port"),
            *("amqps_port", "mqtts_port", "wss_port", "https_port"),
        )
    },
    "storage.segment_bytes_max": _FILES,
    "storage.index_interval_bytes": _FILES,
    "storage.journal_file_bytes": _FILES,
    "audit.enabled": _AUDIT,
    "audit.directory": _AUDIT,
    "audit.topic": _AUDIT,
    "storage.tail_bytes_max": "memory is given out when the node starts",
}
"""Key → why it takes a restart."""


def _keys(section: str, *names: str) -> Iterator[str]:
    return (f"{section}.{name}" for name in names)


PART_OF: Final[Mapping[str, str]] = {
    key: part
    for part, keys in {
        "node": _keys("node", "shutdown_deadline_s"),
        "certificates": (
            ENTRIES,
            *_keys("tls", "cert", "key", "client_certs", "ca", "crl", "user_from"),
            *_keys("tls", "min_version", "ciphers", "handshake_timeout_s", "watch_s"),
            *_keys("tls", "certificates"),
        ),
        "pressure": (
            *_keys("limits", "memory_slow_bytes", "memory_block_bytes"),
            *_keys("limits", "disk_slow_bytes", "disk_block_bytes"),
        ),
        "retention": (
            *_keys("retention", "check_messages", "check_interval_s"),
            *_keys("retention", "compaction_interval_min_s", "first_compaction_s"),
        ),
        "amqp": (
            *_keys("limits", "unconfirmed_messages_max", "unconfirmed_bytes_max"),
            *_keys("amqp", "product", "frame_bytes_max", "channel_max", "heartbeat_s"),
            *_keys("amqp", "handshake_timeout_s", "consumer_timeout_s", "message_bytes_max"),
        ),
        "mqtt": (
            *_keys("mqtt", "receive_maximum", "packet_bytes_max", "connect_bytes_max"),
            *_keys("mqtt", "topic_alias_maximum", "topic_levels_max", "maximum_qos"),
            *_keys("mqtt", "keep_alive_s_max", "session_expiry_s_max", "foreign_client_ids"),
            *_keys("mqtt", "session_messages_max", "delayed_messages_max", "queue_batch"),
            *_keys("mqtt", "subscriptions_max", "retained_messages_max", "retained_bytes_max"),
            *_keys("mqtt", "output_bytes_max", "share_strategy", "redirect", "sys_interval_s"),
            *_keys("mqtt", "origins"),
        ),
        "http": _keys("http", "allowed_hosts", "allowed_origins", "poll_wait_ms"),
        "log": _keys("log", "level", "format"),
        "metrics": _keys("metrics", "public", "local", "topics_max", "lanes_max"),
        "alerts": _keys("alerts", "window_s", "timeout_s", "hosts"),
        "usage": _keys("usage", "days", "rows_max"),
        "jwt": (
            *_keys("jwt", "jwks", "ca", "issuer", "audience", "algorithms", "leeway_s"),
            *_keys("jwt", "users", "user_claim", "scope_claim", "scope_prefix", "refresh_s"),
        ),
        "audit": _keys("audit", "file_bytes_max", "files_max"),
        "rates": (
            *_keys("rates", "limit_loopback", "over_limit"),
            *_keys("rates", "connections_per_min", "connections_burst"),
            *_keys("rates", "messages_per_s", "messages_burst", "bytes_per_s", "bytes_burst"),
            *_keys("rates", "subscriptions_per_s", "subscriptions_burst"),
            *_keys("rates", "user_messages_per_s", "user_bytes_per_s"),
            *_keys("rates", "node_messages_per_s", "node_bytes_per_s"),
            *_keys("rates", "failed_logins", "failed_login_wait_max_s"),
        ),
    }.items()
    for key in keys
}
"""Key → the part of a node that takes it while it runs."""
