"""Direct reply-to: answers that go straight to a waiting channel, with no queue between."""

import secrets
from typing import TYPE_CHECKING

from braidmq.wire.amqp.methods import BasicDeliver, encode
from braidmq.wire.amqp.render import render_content

if TYPE_CHECKING:
    from braidmq.gateways.amqp.channel import Channel

PREFIX = "amq.rabbitmq.reply-to"


class Replies:
    def __init__(self) -> None:
        self._channels: dict[str, Channel] = {}

    def address(self, channel: "Channel") -> str:
        """The name under which a channel gets answers; the same for all its requests."""
        address = channel.reply_address
        if address is None:
            address = channel.reply_address = f"{PREFIX}.{secrets.token_urlsafe(24)}"
            self._channels[address] = channel
        return address

    def forget(self, channel: "Channel") -> None:
        """It is closed: nobody can answer it any more."""
        if channel.reply_address is not None:
            self._channels.pop(channel.reply_address, None)

    def find(self, key: bytes) -> "Channel | None":
        """The channel that waits for answers under this routing key."""
        channel = self._channels.get(key.decode("utf-8", "replace"))
        return channel if channel is not None and not channel.closing else None

    def send(
        self, channel: "Channel", exchange: bytes, key: bytes, raw: bytes, body: bytes
    ) -> None:
        assert channel.reply_tag is not None
        method = BasicDeliver(
            channel.reply_tag, channel.next_tag(), False, exchange.decode(), key.decode()
        )
        channel.send(
            render_content(channel.number, encode(method), raw, body, channel.connection.frame_max)
        )
