"""``make pipeline-demo``: publish → transform → consume, then archive → replay, on this machine.

Starts a node of its own in a temporary directory and a local Spark, and ends both.
"""

import json
import sys
import tempfile
from pathlib import Path

from braidmq.pipeline.broker import Broker
from braidmq.pipeline.definition import find, load
from braidmq.pipeline.options import BrokerOptions
from braidmq.pipeline.reporting import Progress
from braidmq.pipeline.runner import Runner
from braidmq.pipeline.session import session
from braidmq.testing.live import live_node

ORDERS = 1000
LARGE = """
name = "large-orders"
checkpoint = "{checkpoint}"
[[source]]
name = "orders"
topic = "orders"
[[step]]
name = "large"
sql = '''
SELECT key, value, headers FROM orders
WHERE CAST(get_json_object(decode(value, 'utf-8'), '$.amount') AS INT) >= 900
'''
[[sink]]
from = "large"
topic = "large-orders"
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with live_node(place / "data", amqp_port=0, mqtt_port=0, ws_port=0) as node:
            options = BrokerOptions(url=node.http_url)
            _publish(options)
            with session("demo") as spark:
                for name, values in _steps(place):
                    path = find(name)
                    definition = load(path, values)
                    done = Runner(definition, spark, options, path.parent).run(_watch)
                    _say(f"pipeline {definition.name}: {done.rows} rows")
            _consume(options)


def _steps(place: Path) -> list[tuple[str, dict[str, str]]]:
    file = place / "large.toml"
    file.write_text(LARGE.format(checkpoint=place / "checkpoint"))
    lake = str(place / "lake")
    return [
        (str(file), {}),
        ("archive", {"topic": "orders", "lake": lake}),
        ("replay", {"topic": "orders-again", "lake": lake}),
    ]


def _publish(options: BrokerOptions) -> None:
    with Broker(options) as broker:
        for topic in ("orders", "large-orders", "orders-again"):
            broker.send("PUT", "topics", topic, body={"settings": {"partitions": 2}})
        messages = [
            {"key": f"customer-{at % 17}", "value": json.dumps({"order": at, "amount": at})}
            for at in range(ORDERS)
        ]
        broker.send("POST", "topics", "orders", "messages", "batch", body={"messages": messages})
    _say(f"published {ORDERS} orders")


def _consume(options: BrokerOptions) -> None:
    with Broker(options) as broker:
        for topic, expected in (("large-orders", 100), ("orders-again", ORDERS)):
            rows = _count(broker, topic)
            _say(f"consumed {rows} messages of {topic}")
            if rows != expected:
                sys.exit(f"expected {expected}")


def _count(broker: Broker, topic: str) -> int:
    broker.send("PUT", "topics", topic, "subscriptions", "demo", body={})
    rows = 0
    while True:
        answer = broker.send(
            "POST", "topics", topic, "subscriptions", "demo", "receive", body={"limit": 500}
        )
        messages = json.loads(answer)["messages"]
        if not messages:
            return rows
        rows += len(messages)
        receipts = [each["receipt"] for each in messages]
        broker.send("POST", "receipts", "ack", body={"receipts": receipts})


def _watch(progress: Progress) -> bool:
    return False


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
