"""Direct reply-to: answers that go straight to a waiting channel, with no queue between."""

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braidmq.gateways.amqp.consumers import Consumers

PREFIX = "amq.rabbitmq.reply-to"


class Replies:
    def __init__(self) -> None:
        self._waiting: dict[str, Consumers] = {}

    def address(self, consumers: "Consumers") -> str:
        """The name under which a channel gets answers; the same for all its requests."""
        address = consumers.reply_address
        if address is None:
            address = consumers.reply_address = f"{PREFIX}.{secrets.token_urlsafe(24)}"
            self._waiting[address] = consumers
        return address

    def forget(self, consumers: "Consumers") -> None:
        """It is closed: nobody can answer it any more."""
        if consumers.reply_address is not None:
            self._waiting.pop(consumers.reply_address, None)

    def find(self, key: bytes) -> "Consumers | None":
        """The channel that waits for answers under this routing key."""
        found = self._waiting.get(key.decode("utf-8", "replace"))
        return found if found is not None and not found.is_closed else None
