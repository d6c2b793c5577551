"""Attacks that make a loop of the node long: one function each, of the node's ports and of how long
it may take, for a table of attacks with a probe beside them (docs/adr/0020).

``python -m bench.hostile_loops [seconds [name …]]`` runs each beside a client that publishes and
waits for its confirms, and prints how long that waited.
"""

import json
import multiprocessing
import sys
import tempfile
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel as Channel

from braidmq.testing.live import live_node

Ports = dict[str, int]
Attack = Callable[[Ports, float], None]

QUEUES = 3000
MESSAGES = 50_000
LONGEST_NAME = 250
GUEST = "Basic " + b64encode(b"guest:guest").decode()


def http(ports: Ports, method: str, path: str, body: object = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    address = f"http://127.0.0.1:{ports['http_port']}{path}"
    request = urllib.request.Request(address, data, method=method)
    request.add_header("Authorization", GUEST)
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=60).read()


def amqp(ports: Ports, vhost: str = "/") -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", ports["amqp_port"], vhost, heartbeat=0)
    )


def policies_over_many_queues(ports: Ports, seconds: float) -> None:
    channel = amqp(ports).channel()
    for number in range(QUEUES):
        channel.queue_declare(f"many-{number}", durable=True)
    over, length = time.monotonic() + seconds, 0
    while time.monotonic() < over:
        length += 1
        policy = {"pattern": "^many-", "definition": {"max-length": length}, "apply_to": "queues"}
        http(ports, "PUT", "/v1/policies/%2F/many", policy)
    http(ports, "DELETE", "/v1/policies/%2F/many")


def namespaces_deleted_whole(ports: Ports, seconds: float) -> None:
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        http(ports, "PUT", "/v1/namespaces/crowded", {})
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        http(ports, "PUT", "/v1/permissions/crowded/guest", every)
        connection = amqp(ports, "crowded")
        channel = connection.channel()
        for number in range(QUEUES):
            channel.queue_declare(f"q{number}", durable=True)
        connection.close()
        http(ports, "DELETE", "/v1/namespaces/crowded")


def rejected_all_at_once(ports: Ports, seconds: float) -> None:
    channel = amqp(ports).channel()
    channel.exchange_declare("graves", "fanout", durable=True)
    channel.queue_declare("grave", durable=True)
    channel.queue_bind("grave", "graves")
    arguments = {"x-dead-letter-exchange": "graves"}
    channel.queue_declare("dying", durable=True, arguments=arguments)
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        for _ in range(MESSAGES):
            channel.basic_publish("", "dying", b"x")
        tag = 0
        for method, _, _ in channel.consume("dying", inactivity_timeout=2):
            if method is None:
                break
            tag = method.delivery_tag
            if tag % MESSAGES == 0:
                break
        channel.basic_nack(tag, multiple=True, requeue=False)
        channel.cancel()
        channel.queue_purge("grave")


def patterns_that_never_end(ports: Ports, seconds: float) -> None:
    over, number = time.monotonic() + seconds, 0
    connection = amqp(ports)
    for pattern in (
        "^(a+)+$",
        "(a|aa)+$",
        "(.*a){12}b",
        "^(?=(a+)+$)b",
        ".*.*.*.*.*=",
        "(a?){30}b",
    ):
        name = f"p{number}"
        number += 1
        body = {"pattern": pattern, "definition": {"max-length": 5}, "apply_to": "queues"}
        http(ports, "PUT", f"/v1/policies/%2F/{name}", body)
    while time.monotonic() < over:
        number += 1
        channel = connection.channel()
        channel.queue_declare("a" * (LONGEST_NAME - 8) + f"{number:06}!", exclusive=True)
        channel.close()


def filled(channel: Channel, queue: str, arguments: dict[str, Any] | None = None) -> None:
    channel.queue_declare(queue, durable=True, arguments=arguments)
    for _ in range(MESSAGES):
        channel.basic_publish("", queue, b"x")


def priorities_purged(ports: Ports, seconds: float) -> None:
    channel = amqp(ports).channel()
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        filled(channel, "ranked", {"x-max-priority": 5})
        channel.queue_purge("ranked")


def limits_lowered(ports: Ports, seconds: float) -> None:
    channel = amqp(ports).channel()
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        filled(channel, "shrinking")
        policy = {"pattern": "^shrinking$", "definition": {"max-length": 1}, "apply_to": "queues"}
        http(ports, "PUT", "/v1/policies/%2F/shrink", policy)
        http(ports, "DELETE", "/v1/policies/%2F/shrink")


def all_outlived(ports: Ports, seconds: float) -> None:
    channel = amqp(ports).channel()
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        filled(channel, "outlived")
        policy = {"pattern": "^outlived$", "definition": {"message-ttl": 1}, "apply_to": "queues"}
        http(ports, "PUT", "/v1/policies/%2F/outlive", policy)
        http(ports, "DELETE", "/v1/policies/%2F/outlive")


def each_with_its_own_time(ports: Ports, seconds: float) -> None:
    """Every other message expires, all of those at once."""
    channel = amqp(ports).channel()
    channel.queue_declare("timed", durable=True)
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        for number in range(MESSAGES):
            lives = pika.BasicProperties(expiration="2000" if number % 2 else "3600000")
            channel.basic_publish("", "timed", b"x", lives)
        time.sleep(2)
        channel.queue_purge("timed")


def full_with_dead_letters(ports: Ports, seconds: float) -> None:
    channel = amqp(ports).channel()
    channel.exchange_declare("ends", "fanout", durable=True)
    channel.queue_declare("end", durable=True, arguments={"x-max-length": 1000})
    channel.queue_bind("end", "ends")
    full = {"x-max-length": 1000, "x-dead-letter-exchange": "ends"}
    channel.queue_declare("full", durable=True, arguments=full)
    over, number = time.monotonic() + seconds, 0
    while time.monotonic() < over:
        number += 1
        channel.basic_publish("", "full", b"x", pika.BasicProperties(message_id=str(number)))


def many_consumers(ports: Ports, seconds: float) -> None:
    """Each with room for one, in many priorities."""
    connection = amqp(ports)
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    channel.queue_declare("crowd", durable=True)
    for number in range(QUEUES):
        channel.basic_consume(
            "crowd",
            lambda *_: None,
            arguments={"x-priority": number % 100},
            consumer_tag=f"c{number}",
        )
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        for _ in range(QUEUES):
            channel.basic_publish("", "crowd", b"x")
        connection.process_data_events(0.1)
        channel.basic_recover(requeue=True)
        channel.queue_purge("crowd")


LOOPS: dict[str, Attack] = {
    "policies over many queues": policies_over_many_queues,
    "namespaces deleted whole": namespaces_deleted_whole,
    "many rejected at once": rejected_all_at_once,
    "patterns that never end": patterns_that_never_end,
    "priorities purged": priorities_purged,
    "limits lowered": limits_lowered,
    "a time to live all have outlived": all_outlived,
    "each with its own time": each_with_its_own_time,
    "full with dead letters": full_with_dead_letters,
    "many consumers": many_consumers,
}


def run(name: str, ports: Ports, seconds: float) -> None:
    try:
        LOOPS[name](ports, seconds)
    except (OSError, pika.exceptions.AMQPError) as error:
        sys.stderr.write(f"{name}: {error!r}\n")


def main(seconds: float = 10.0, *wanted: str) -> None:
    for name in wanted or LOOPS:
        with tempfile.TemporaryDirectory() as directory, live_node(Path(directory)) as node:
            attack = multiprocessing.Process(target=run, args=(name, dict(node.ports), seconds))
            channel = amqp(node.ports).channel()
            channel.queue_declare("probe", durable=True)
            channel.confirm_delivery()
            attack.start()
            waits = []
            while attack.is_alive():
                began = time.perf_counter()
                channel.basic_publish("", "probe", b"x")
                waits.append(time.perf_counter() - began)
                time.sleep(0.002)
            attack.join()
            waits.sort()
            middle, late = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
            sys.stdout.write(
                f"{name:34} p50 {middle * 1e3:6.1f} ms   p99 {late * 1e3:6.1f} ms   "
                f"longest {waits[-1] * 1e3:6.1f} ms   {len(waits)} publishes\n"
            )


if __name__ == "__main__":
    main(*(float(each) for each in sys.argv[1:2]), *sys.argv[2:])
