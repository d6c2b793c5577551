"""``braid delayed``: messages that wait for their time, and what became of them."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from braidmq.cli.api import LIMIT, Limit
from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm
from braidmq.cli.dead_letters import value_text
from braidmq.cli.output import Output
from braidmq.cli.units import now_ms, span_text, time_text

app = Commands(
    name="delayed", help="Delayed messages, which are delivered later.", no_args_is_help=True
)

COLUMNS = ("partition", "offset", "due", "in", "key", "value")
LESSER = ("key",)
ENDED = ("partition", "offset", "due", "state", "ended")


class DelayState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


State = Annotated[
    DelayState,
    typer.Option(help="Those that wait, or what became of others since the node started."),
]

Topic = Annotated[
    str,
    typer.Argument(help="The topic they will be delivered in.", autocompletion=complete("topics")),
]
Shown = Annotated[int, typer.Argument(min=0, help="As `braid delayed list` shows it.")]


@app.command("list")
def list_delayed(
    node: InNamespace,
    out: Out,
    topic: Topic,
    state: State = DelayState.PENDING,
    limit: Limit = LIMIT,
) -> None:
    """Show the messages of a topic that wait, by partition and offset.

    Of those whose time came, that were cancelled or that expired before it, the last come first:
    at most a hundred of each are known.

    Example: braid delayed list orders --state cancelled
    """
    api = node.api()
    path = ("topics", topic, "delayed")
    if state is not DelayState.PENDING:
        ended = api.first(*path, limit=limit, key="ended", state=state.value)
        _show_ended(ended, out)
        return
    messages = api.first(*path, limit=limit, key="messages", state=state.value)
    if not out.is_data:
        now = now_ms()
        messages = [
            {
                "key": None,
                **each,
                "due": time_text(each["deliver_at_ms"]),
                "in": span_text(max(0, each["deliver_at_ms"] - now)),
                "value": " ".join(value_text(each).split()),
            }
            for each in messages
        ]
    out.show(messages, COLUMNS, LESSER)


def _show_ended(ended: list[dict[str, Any]], out: Output) -> None:
    if not out.is_data:
        ended = [
            {
                **each,
                "due": time_text(each["deliver_at_ms"]),
                "ended": time_text(each["ended_ms"]),
            }
            for each in ended
        ]
    out.show(ended, ENDED)


@app.command()
def count(
    node: InNamespace,
    out: Out,
    topic: Topic,
    state: State = DelayState.PENDING,
) -> None:
    """Count the delayed messages of a topic.

    Example: braid delayed count orders
    """
    api = node.api()
    found = api.get("topics", topic, "delayed", state=state.value, limit=1)
    if out.is_data:
        out.data({"topic": topic, "count": found["count"]})
    else:
        print(found["count"])


@app.command()
def cancel(
    node: InNamespace,
    out: Out,
    topic: Topic,
    partition: Shown,
    offset: Shown,
    yes: Yes = False,
) -> None:
    """Cancel a message before its time: it is delivered to nobody.

    Example: braid delayed cancel orders 0 17 --yes
    """
    what = f"message {offset} of partition {partition} of topic {topic!r}"
    confirm(yes, f"Cancel {what}? Nobody will get it.")
    node.api().delete("topics", topic, "delayed", partition, offset)
    out.done(f"cancelled {what}", {"topic": topic, "partition": partition, "offset": offset})
