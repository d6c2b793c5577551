"""What a program declared and what does not outlive its connection or the node by itself.

Exclusive and auto-delete queues, what is not durable, and bindings of these. Durable queues and
exchanges are not declared again: an operator may have deleted them, and meant it.
"""

import asyncio
import logging
from collections.abc import Callable

from braidmq.client.connection import ChannelOwner, Connection
from braidmq.client.errors import ConnectionLost
from braidmq.model.errors import BraidError, Conflict
from braidmq.wire.amqp.methods import (
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueueUnbind,
)
from braidmq.wire.amqp.tables import encode_table

logger = logging.getLogger(__name__)

LOCKED_WAIT_S = 0.2
"""How often we ask for an exclusive queue that our lost connection still has, to the broker: until
it notices, which may take its heartbeats."""
LOCKED_S_MAX = 120.0
"""Who has it for longer than that is somebody else."""

Bind = QueueBind | ExchangeBind
Key = tuple[str, str, str, str]


class Topology:
    def __init__(self) -> None:
        self._queues: dict[str, QueueDeclare] = {}
        self._exchanges: dict[str, ExchangeDeclare] = {}
        self._bindings: dict[tuple[Key, bytes], Bind] = {}

    def declared(self, method: Method) -> None:
        """The broker did what the method says."""
        if isinstance(method, QueueDeclare):
            if method.exclusive or method.auto_delete or not method.durable:
                self._queues[method.queue] = method
        elif isinstance(method, ExchangeDeclare):
            if method.auto_delete or not method.durable:
                self._exchanges[method.exchange] = method
        elif isinstance(method, QueueBind | ExchangeBind):
            if self._goes(method):
                self._bindings[_key(method), _arguments(method)] = method
        elif isinstance(method, QueueUnbind | ExchangeUnbind):
            self._bindings.pop((_key(method), _arguments(method)), None)
        elif isinstance(method, QueueDelete):
            self.forget_queue(method.queue)
        elif isinstance(method, ExchangeDelete):
            self._exchanges.pop(method.exchange, None)
            self._forget_bindings(lambda key: method.exchange in _exchanges_of(key))

    def is_auto_delete(self, queue: str) -> bool:
        return queue in self._queues and self._queues[queue].auto_delete

    def forget_queue(self, queue: str) -> None:
        """It is gone, and is not to come back."""
        self._queues.pop(queue, None)
        self._forget_bindings(lambda key: key[0] == "queue" and key[1] == queue)

    def _forget(self, method: Method) -> None:
        if isinstance(method, QueueDeclare):
            self._queues.pop(method.queue, None)
        elif isinstance(method, ExchangeDeclare):
            self._exchanges.pop(method.exchange, None)
        elif isinstance(method, QueueBind | ExchangeBind):
            self._bindings.pop((_key(method), _arguments(method)), None)

    def _forget_bindings(self, is_gone: Callable[[Key], bool]) -> None:
        for each in [each for each in self._bindings if is_gone(each[0])]:
            del self._bindings[each]

    def _goes(self, binding: Bind) -> bool:
        """Whether one of its ends goes by itself, and it with that."""
        if isinstance(binding, QueueBind):
            return binding.queue in self._queues or binding.exchange in self._exchanges
        return binding.destination in self._exchanges or binding.source in self._exchanges

    async def restore(self, connection: Connection) -> None:
        """Declare all of it on a new connection. Raises ConnectionLost if that is lost too.

        What is refused now is said in the log: who uses it is told by its own error.
        """
        for method in (
            *self._exchanges.values(),
            *self._queues.values(),
            *self._bindings.values(),
        ):
            try:
                await _declare(connection, method)
            except ConnectionLost:
                raise
            except BraidError as error:
                logger.warning(
                    "%s could not be restored after the connection was lost: %s",
                    method.NAME,
                    error,
                )
                if connection.error is not None:
                    self._forget(method)  # or the next connection would end over it too
                    raise connection.error from None


async def _declare(connection: Connection, method: Method) -> None:
    until = connection.loop.time() + LOCKED_S_MAX
    while True:
        channel = await connection.open_channel(1, ChannelOwner())
        try:
            await channel.ask(method)
            return
        except Conflict:
            is_exclusive = isinstance(method, QueueDeclare) and method.exclusive
            if not is_exclusive or connection.loop.time() > until:
                raise
            await asyncio.sleep(LOCKED_WAIT_S)
        finally:
            await channel.close()


def _key(method: Bind | QueueUnbind | ExchangeUnbind) -> Key:
    if isinstance(method, QueueBind | QueueUnbind):
        return "queue", method.queue, method.exchange, method.routing_key
    return "exchange", method.destination, method.source, method.routing_key


def _arguments(method: Bind | QueueUnbind | ExchangeUnbind) -> bytes:
    return encode_table(method.arguments)


def _exchanges_of(key: Key) -> set[str]:
    kind, destination, source, _ = key
    return {source} if kind == "queue" else {destination, source}
