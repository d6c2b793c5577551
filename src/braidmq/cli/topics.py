"""``braid topics``: the logs of a running node."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from braidmq.cli.api import (
    DEFAULT_URL,
    GUEST,
    ROOT,
    Api,
    Json,
    Namespace,
    Secret,
    Url,
    User,
    cell,
    console,
    print_json,
    show,
    show_one,
    table_of,
)
from braidmq.cli.units import settings, size_text, time_text
from braidmq.model.errors import BadSetting

app = typer.Typer(
    name="topics",
    help="Topics: logs of messages. An AMQP queue is a topic of the same name.",
    no_args_is_help=True,
)

COLUMNS = ("name", "partitions", "published", "depth", "size", "subscriptions", "consumers")
FIELDS = ("name", "namespace", "created", "durable", "published", "depth", "size")
PARTITION_COLUMNS = ("partition", "start_offset", "next_offset", "messages")

Name = Annotated[str, typer.Argument(help="The topic's name.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting, such as ttl_ms=60000 or retry.attempts=5; may be given again."
        " `braid topics show` has all names.",
    ),
]


@app.command("list")
def list_topics(
    prefix: Annotated[str, typer.Option(help="Only names with this prefix.")] = "",
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show all topics: what was ever published, and what nobody has settled yet (depth).

    Example: braid topics list --prefix orders
    """
    rows = every_topic(Api(url, user, password, namespace), prefix)
    if not as_json:
        rows = [row | {"size": size_text(row["depth_bytes"])} for row in rows]
    show(rows, COLUMNS, as_json)


def every_topic(api: Api, prefix: str = "") -> list[dict[str, Any]]:
    """Page by page."""
    found: list[dict[str, Any]] = []
    while page := api.get("topics", prefix=prefix, after=found[-1]["name"] if found else ""):
        found += page
    return found


@app.command("show")
def show_topic(
    name: Name,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show a topic: its settings, its partitions and who reads it.

    Example: braid topics show orders
    """
    api = Api(url, user, password, namespace)
    topic = api.get("topics", name)
    if as_json:
        print_json(topic)
        return
    readers = api.get("topics", name, "subscriptions")
    described = {
        **topic,
        "created": time_text(topic["created_ms"]),
        "size": size_text(topic["depth_bytes"]),
    }
    show_one(described, FIELDS, as_json)
    partitions = [
        each | {"messages": each["next_offset"] - each["start_offset"]}
        for each in topic["partitions"]
    ]
    out = console()
    out.print()
    out.print(table_of(partitions, PARTITION_COLUMNS))
    if readers:
        out.print()
        out.print(table_of(readers, ("name", "mode", "consumers", "lag", "ready", "in_flight")))
    own = dict(_flat(topic["settings"]))
    rows = [
        {"setting": name, "value": cell(value), "set": "here" if name in own else ""}
        for name, value in _flat(topic["policy"])
    ]
    out.print()
    out.print(table_of(rows, ("setting", "value", "set")))


def _flat(found: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """With the names that ``--set`` takes."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of partitions.",
            show_default="3, unless a template says otherwise",
        ),
    ] = None,
    changes: Set = None,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Create a topic. Fails (exit 6) if it exists with other settings.

    Example: braid topics create orders --partitions 6 --set retention.time_ms=604800000
    """
    meant = settings(changes or [])
    if partitions is not None:
        meant["partitions"] = partitions
    made = Api(url, user, password, namespace).put("topics", name, body={"settings": meant})
    if as_json:
        print_json(made)


@app.command()
def alter(
    name: Name,
    changes: Set = None,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Change settings of a topic; those not given stay.

    Example: braid topics alter orders --set ttl_ms=3600000 --set retry.attempts=10
    """
    if not changes:
        raise BadSetting("nothing to change", remedy="Give --set NAME=VALUE")
    body: dict[str, object] = {"settings": settings(changes)}
    changed = Api(url, user, password, namespace).patch("topics", name, body=body)
    if as_json:
        print_json(changed)


@app.command()
def delete(
    name: Name,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Delete a topic with all its messages; its consumers are told.

    Example: braid topics delete orders
    """
    Api(url, user, password, namespace).delete("topics", name)


@app.command()
def purge(
    name: Name,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Remove every message that is not in flight at a consumer.

    Example: braid topics purge orders
    """
    purged = Api(url, user, password, namespace).post("topics", name, "purge")
    if as_json:
        print_json(purged)
    else:
        print(f"purged {purged['messages']} messages of {name}")
