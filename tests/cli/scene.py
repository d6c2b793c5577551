"""What the golden tests of the command line look at, and how its replies are made steady.

Whatever changes from run to run (times, ports, ids, figures of the whole node) is replaced in the
node's answers before a command sees them: tables stay aligned.
"""

import base64
import json
import re
from typing import Any

from braidmq.cli.api import Api, Reply

NOW_MS = 1_767_225_600_000  # 2026-01-01
UP_MS = 65_000
TOKEN = "f86f044e60de9291"
ABSOLUTE_MS = 1_600_000_000_000

HOUR_MS = 3_600_000
AGES = ("oldest_ready_ms", "oldest_in_flight_ms")
AHEAD = ("expires_ms", "deliver_at_ms", "next_timer_ms")

FIXED: dict[str, Any] = {
    "request_id": "4f1c2a-7",
    "age_ms": 5000,
    "oldest_age_ms": 5000,
    "served_per_second": 0.0,
    "timers": 1,
    "node": "vm",
    "version": "0.1.0",
}
OVERVIEW = {
    **{"started_ms": NOW_MS, "uptime_ms": UP_MS, "pressure": "normal", "topics": 3},
    **{"subscriptions": 2, "consumers": 1, "connections": 1, "ready": 7, "in_flight": 0},
    **{"memory_bytes": 370_000, "rates": {"published": 12.5, "delivered": 10.0, "acked": 10.0}},
}
USED = {"published": 12, "published_bytes": 3400, "delivered": 10, "delivered_bytes": 2900}
TEXTS = [
    (re.compile(r"\b(amqp|mqtt|work)-\d+\b"), r"\1-1"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:40000"),
    (re.compile(r"\bport \d+"), "port 40001"),
    (re.compile(r'"x-death-time": "\d+"'), f'"x-death-time": "{NOW_MS}"'),
    (re.compile(r"/\S*/pytest-\d+/(?:popen-gw\d+/)?[^/\s\"]+/"), "/somewhere/"),
    (re.compile(r"part-\S+parquet"), "part-0.parquet"),
    (re.compile(r"braid_[0-9a-f]{16}_[0-9a-f]{64}"), f"braid_{TOKEN}_" + "0" * 64),
    (re.compile(r"\b[0-9a-f]{16}\b"), TOKEN),
    (re.compile(r'"timestamp_ms": \d+'), f'"timestamp_ms": {NOW_MS}'),
    (re.compile(r'"seconds": [\d.]+'), '"seconds": 0.1'),
    (re.compile(r"/\S*/pipeline/shipped/"), "shipped/"),
    (re.compile(r"checkpoint: .*"), "checkpoint: somewhere"),
]


def steady_text(text: str) -> str:
    for pattern, constant in TEXTS:
        text = pattern.sub(constant, text)
    return text


def steady(found: Any) -> Any:
    if isinstance(found, list):
        return [steady(each) for each in found]
    if not isinstance(found, dict):
        return found
    made = {name: _steady_field(name, value) for name, value in found.items()}
    if "uptime_ms" in found and "pressure" in found:
        made |= OVERVIEW
        made["totals"] = dict.fromkeys(made["totals"], 3)
    if "published_bytes" in found:
        made |= USED
    if "producers" in found and "committed" in found:
        made |= {"open": 1, "committed": 3, "aborted": 1, "producers": 2, "records": 1}
        made["open_by_namespace"] = {SHOP: 1}
    return made


def _steady_field(name: str, value: Any) -> Any:
    if name in FIXED:
        return FIXED[name]
    if name in AHEAD and isinstance(value, int):
        return NOW_MS + UP_MS + HOUR_MS
    if name in AGES and value is not None:
        return FIXED["age_ms"]
    if name.endswith("_ms") and isinstance(value, int) and value > ABSOLUTE_MS:
        return NOW_MS
    if name == "next_runs_ms":
        return [NOW_MS + 60_000 * number for number in range(len(value))]
    if name == "id" and isinstance(value, int):
        return 1
    return steady(value)


def steady_reply(reply: Reply) -> Reply:
    try:
        found = json.loads(reply.body)
    except ValueError:
        return reply
    body = steady_text(json.dumps(steady(found)))
    return reply._replace(body=body.encode())


# --- what there is ---

SHOP = "shop"
"""Its contents are only looked at. What is changed is in another namespace, the yard."""
YARD = "yard"
MILL = "mill"
"""Where nobody connects but who is to be seen in the history of connections."""
OUTSIDER = ("--user", "outsider", "--password", "x")


def build(url: str) -> None:
    """What all commands that only look are shown."""
    node = Api(url, "guest", "guest")
    node.put("users", "outsider", body={"password": "x", "tags": []})
    node.put("users", "ann", body={"password": "x", "tags": ["monitoring", "sales"]})
    for name in (SHOP, YARD, MILL):
        node.put("namespaces", name, body={"max_connections": 100})
        node.put(
            "permissions", name, "guest", body={"configure": ".*", "write": ".*", "read": ".*"}
        )
    node.put("permissions", SHOP, "ann", body={"configure": "^ann-", "write": ".*", "read": ""})
    node.post("tokens", body={"user": "ann", "description": "build server"})
    definition = {"max-length": 100_000, "overflow": "reject-publish", "message-ttl": 3_600_000}
    body = {"pattern": r"^logs\..*", "definition": definition, "apply_to": "queues"}
    node.put("policies", SHOP, "short", body=body)
    _build_shop(Api(url, "guest", "guest", SHOP))


def _build_shop(shop: Api) -> None:
    for name in ("orders", "payments"):
        shop.put("topics", name, body={"settings": {"partitions": 2, "retry": {"attempts": 3}}})
    long = "customers-who-asked-to-be-called-back-by-the-sales-team-of-northern-europe"
    shop.put("topics", long, body={"settings": {"partitions": 1}})
    batch: list[dict[str, Any]] = [
        {"value": f'{{"id": {n}}}', "key": "customer-5", "partition": n % 2} for n in range(1, 6)
    ]
    batch.append({"value_base64": base64.b64encode(b"\xff\x00").decode(), "partition": 0})
    shop.post("topics", "orders", "messages", "batch", body={"messages": batch})
    late = {"value": "remember the milk", "delay_ms": 36_000_000, "partition": 1, "key": "k"}
    shop.post("topics", "orders", "messages", "batch", body={"messages": [late]})
    shop.put("topics", "orders", "subscriptions", "billing", body={})
    shop.put("topics", "payments", "subscriptions", "ledger", body={})
    dead = [{"value": each, "key": "c", "partition": 0} for each in ("no amount", "17 EUR " * 20)]
    shop.post("topics", "payments", "messages", "batch", body={"messages": dead})
    path = ("topics", "payments", "subscriptions", "ledger", "receive")
    got = shop.post(*path, body={"limit": 10})
    receipts = [each["receipt"] for each in got["messages"]]
    error = "the amount of this payment is not a number that the ledger understands"
    shop.post("receipts", "reject", body={"receipts": receipts, "error": error})
    weekly = {"value": "make it", "cron": "0 9 * * mon-fri", "zone": "Europe/Berlin"}
    shop.put("topics", "orders", "schedules", "report", body=weekly)
    shop.put("exchanges", "events", body={"kind": "topic", "durable": True})
    bound = {"source": "events", "destination": "orders", "routing_key": "orders.#"}
    shop.post("bindings", body={**bound, "destination_kind": "topic", "arguments": {}})
    template = {"pattern": "^logs[.]", "settings": {"ttl_ms": 86_400_000}, "priority": 5}
    shop.put("templates", "logs", body=template)
    position = {"topic": "orders", "partition": 0, "offset": 0}
    shop.put(
        "leases",
        "spark-batch-1",
        body={"positions": [position], "holder": "nightly", "ttl_ms": 3_600_000},
    )
    _open_transaction(shop, "nightly-17")


def _open_transaction(api: Api, name: str) -> None:
    # Nobody says a word in it, on however slow a machine.
    body = {"name": name, "timeout_ms": 600_000, "session_ms": 600_000}
    api.post("transactions", body=body)
    api._call(
        "POST",
        ("topics", "payments", "messages"),
        {},
        {"value": "later", "partition": 1},
        {"Braid-Transaction": name},
    )
