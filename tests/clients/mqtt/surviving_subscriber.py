"""A paho subscriber that a restart of the broker must not stop: ``python surviving_subscriber.py
PORT TOPIC FILE``. It writes down what it got, and only then acknowledges."""

import sys
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion


def main(port: str, topic: str, path: str) -> None:
    with Path(path).open("a") as done:

        def connected(client: mqtt.Client, *_: Any) -> None:
            client.subscribe(topic, qos=1)

        def got(client: mqtt.Client, _: Any, message: mqtt.MQTTMessage) -> None:
            done.write(message.payload.decode() + "\n")
            done.flush()
            client.ack(message.mid, message.qos)

        def ready(*_: Any) -> None:
            sys.stdout.write("ready\n")
            sys.stdout.flush()

        client = mqtt.Client(
            CallbackAPIVersion.VERSION2, f"sub-{topic}", clean_session=False, manual_ack=True
        )
        client.username_pw_set("guest", "guest")
        client.on_connect, client.on_message = connected, got
        client.on_subscribe = ready
        client.reconnect_delay_set(1, 1)
        client.connect("127.0.0.1", int(port))
        client.loop_forever(retry_first_connection=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
