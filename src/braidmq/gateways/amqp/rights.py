"""What each AMQP method needs: RabbitMQ's table of access control, and our own methods.

``commands.py`` asks for it with ``require_configure``, ``require_write`` and ``require_read``, in
the order and with the words of RabbitMQ; a method without a row here is refused.
"""

from typing import NamedTuple

from braidmq.security.rights import Right, configure, read, write
from braidmq.wire.amqp import methods as m

FREE = Right(namespace="")
"""It is about the channel, and what its user has there already."""


class Row(NamedTuple):
    method: type[m.Method]
    right: Right
    variant: str = ""
    """Of one method several rows: what is special about this one."""


TABLE: tuple[Row, ...] = (
    Row(m.ExchangeDeclare, configure("exchange")),
    Row(m.ExchangeDeclare, FREE, "passive"),
    Row(
        m.ExchangeDeclare,
        configure("exchange").and_(read("exchange")).and_(write("alternate-exchange")),
        "with alternate-exchange",
    ),
    Row(m.ExchangeDelete, configure("exchange")),
    Row(m.ExchangeBind, write("destination").and_(read("source"))),
    Row(m.ExchangeUnbind, write("destination").and_(read("source"))),
    Row(m.QueueDeclare, configure("queue")),
    Row(m.QueueDeclare, FREE, "passive"),
    Row(
        m.QueueDeclare,
        configure("queue").and_(read("queue")).and_(write("x-dead-letter-exchange")),
        "with x-dead-letter-exchange",
    ),
    Row(m.QueueBind, write("queue").and_(read("exchange"))),
    Row(m.QueueUnbind, write("queue").and_(read("exchange"))),
    Row(m.QueuePurge, read("queue")),
    Row(m.QueueDelete, configure("queue")),
    Row(m.BasicPublish, write("exchange")),
    Row(m.BasicPublish, write("exchange"), "with CC or BCC"),
    Row(m.BasicConsume, read("queue")),
    Row(m.BasicConsume, read("queue"), "with x-group or x-stream-offset"),
    Row(m.BasicConsume, FREE, "of amq.rabbitmq.reply-to or amq.braidmq.group-notices"),
    Row(m.BasicGet, read("queue")),
    *(
        Row(method, FREE)
        for method in (
            m.BasicQos,
            m.BasicCancel,
            m.BasicAck,
            m.BasicNack,
            m.BasicReject,
            m.BasicRetry,
            m.BasicExtend,
            m.BasicFail,
            m.BasicRecover,
            m.BasicRecoverAsync,
            m.ConfirmSelect,
            m.ConfirmPlaces,
            m.TxSelect,
            m.TxRollback,
            m.ChannelFlow,
            m.AccessRequest,
        )
    ),
    Row(m.TxCommit, write("exchange").noting("for what was published in it")),
    Row(m.TxBegin, FREE.noting("a name that is another user's transaction is refused")),
    *(
        Row(method, FREE.noting("in one's own transaction"))
        for method in (m.TxAck, m.TxReturn, m.TxEnd, m.TxHeartbeat)
    ),
    Row(m.TxProducer, FREE.noting("a name that is another user's producer is refused")),
)
METHODS = frozenset(row.method for row in TABLE)
