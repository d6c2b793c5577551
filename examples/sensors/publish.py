import json
import math
from datetime import UTC, datetime, timedelta

import paho.mqtt.client as mqtt

client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="sensors")
client.username_pw_set("guest", "guest")
client.connect("127.0.0.1", 1883)
client.loop_start()

begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=2)
for number in range(240):  # two hours, a reading of each room every thirty seconds
    at = begin + timedelta(seconds=30 * number)
    for room in range(1, 5):
        celsius = 18 + room + 2 * math.sin(number / 30 + room) + (number * room % 7) / 10
        reading = {"room": f"room-{room}", "celsius": round(celsius, 2), "at": at.isoformat()}
        sent = client.publish(f"sensors/room-{room}/temperature", json.dumps(reading), qos=1)
sent.wait_for_publish(30)  # acknowledged in order, and on disk

client.disconnect()
client.loop_stop()
