"""What a program with a generated Python client does: publish, consume, acknowledge.

python python_case.py URL TOPIC, with the generated package ``braid_api`` in the path.
"""

import sys

from braid_api import AuthenticatedClient
from braid_api.api.publishing import publish, publish_raw
from braid_api.api.reading import read_raw
from braid_api.api.receipts import ack_many
from braid_api.api.subscriptions import create_subscription, describe_subscription, receive
from braid_api.api.topics import create_topic, describe_topic, list_topics
from braid_api.models.ack_many import AckMany
from braid_api.models.new_message import NewMessage
from braid_api.models.new_subscription import NewSubscription
from braid_api.models.placed import Placed
from braid_api.models.problem import Problem
from braid_api.models.receive_body import ReceiveBody
from braid_api.models.received import Received
from braid_api.models.settings import Settings
from braid_api.models.settings_settings import SettingsSettings
from braid_api.models.subscription_info import SubscriptionInfo
from braid_api.types import File


def main(url: str, topic: str) -> None:
    with AuthenticatedClient(url, token="Z3Vlc3Q6Z3Vlc3Q=", prefix="Basic") as client:
        given = SettingsSettings.from_dict({"partitions": 1})
        create_topic.sync(topic, client=client, body=Settings(given))
        create_subscription.sync(topic, "s", client=client, body=NewSubscription())
        placed = publish.sync(topic, client=client, body=NewMessage(value="hello", key="k"))
        assert isinstance(placed, Placed), placed
        assert placed.offset == 0
        publish_raw.sync(topic, client=client, body=File(payload=b"\x00\xff"), braid_key="k")
        found = receive.sync(topic, "s", client=client, body=ReceiveBody(limit=10))
        assert isinstance(found, Received), found
        assert found.messages[0].value == "hello"
        raw = read_raw.sync(topic, 0, 1, client=client)
        assert isinstance(raw, File)
        assert raw.payload.read() == b"\x00\xff"
        receipts = [str(each.receipt) for each in found.messages]
        ack_many.sync(client=client, body=AckMany(receipts))
        left = describe_subscription.sync(topic, "s", client=client)
        assert isinstance(left, SubscriptionInfo)
        assert (left.in_flight, left.lag) == (0, 0)
        create_topic.sync(f"{topic}-2", client=client, body=Settings())
        page = list_topics.sync_detailed(client=client, limit=1)
        assert page.headers["braid-next"]
        unknown = describe_topic.sync(f"{topic}-no", client=client)
        assert isinstance(unknown, Problem)
        assert unknown.code == "unknown-topic"


if __name__ == "__main__":
    main(*sys.argv[1:])
