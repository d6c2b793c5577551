"""``braid delayed``: messages that wait for their time."""

import time
from typing import Annotated

import typer

from braidmq.cli.api import (
    DEFAULT_URL,
    GUEST,
    LIMIT,
    ROOT,
    Api,
    Json,
    Limit,
    Namespace,
    Secret,
    Url,
    User,
    print_json,
    show,
)
from braidmq.cli.dead_letters import value_text
from braidmq.cli.units import span_text, time_text

app = typer.Typer(
    name="delayed", help="Delayed messages, which are delivered later.", no_args_is_help=True
)

COLUMNS = ("partition", "offset", "due", "in", "key", "value")

Topic = Annotated[str, typer.Argument(help="The topic they will be delivered in.")]
Shown = Annotated[int, typer.Argument(min=0, help="As `braid delayed list` shows it.")]


@app.command("list")
def list_delayed(
    topic: Topic,
    limit: Limit = LIMIT,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show the messages of a topic that wait, by partition and offset.

    Example: braid delayed list orders
    """
    found = Api(url, user, password, namespace).get("topics", topic, "delayed", limit=limit)
    messages = found["messages"]
    if not as_json:
        now_ms = int(time.time() * 1000)
        messages = [
            {
                "key": None,
                **each,
                "due": time_text(each["deliver_at_ms"]),
                "in": span_text(max(0, each["deliver_at_ms"] - now_ms)),
                "value": " ".join(value_text(each).split()),
            }
            for each in messages
        ]
    show(messages, COLUMNS, as_json)


@app.command()
def count(
    topic: Topic,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Count the delayed messages of a topic.

    Example: braid delayed count orders
    """
    found = Api(url, user, password, namespace).get("topics", topic, "delayed", limit=1)
    if as_json:
        print_json({"topic": topic, "count": found["count"]})
    else:
        print(found["count"])


@app.command()
def cancel(
    topic: Topic,
    partition: Shown,
    offset: Shown,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Cancel a message before its time: it is delivered to nobody.

    Example: braid delayed cancel orders 0 17
    """
    api = Api(url, user, password, namespace)
    api.delete("topics", topic, "delayed", partition, offset)
