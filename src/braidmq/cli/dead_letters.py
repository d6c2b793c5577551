"""``braid dlq``: dead letters: list, return, remove."""

import base64
import sys
from typing import Annotated, Any

import typer

from braidmq.cli.api import LIMIT, Api, Limit
from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.node import Node
from braidmq.cli.output import counted, printable
from braidmq.cli.progress import Bar
from braidmq.cli.units import moment_ms, time_text
from braidmq.model.errors import BadSetting

app = Commands(name="dlq", help="Dead letters: messages that were given up.", no_args_is_help=True)

COLUMNS = ("offset", "died", "reason", "subscription", "attempts", "error", "value")
FIELDS = (
    "topic",
    "queue",
    "partition",
    "original_offset",
    "subscription",
    "reason",
    "attempts",
    "error",
    "died",
    "key",
    "headers",
)
VALUE_CHARS_MAX = 60
DEATH = ("x-death", "x-first-death-", "x-last-death-")
"""Headers that say again what the fields say."""

Topic = Annotated[
    str,
    typer.Argument(help="The topic the messages died in.", autocompletion=complete("topics")),
]
AnyTopic = Annotated[
    str | None,
    typer.Argument(
        help="The topic the messages died in.",
        show_default="all topics",
        autocompletion=complete("topics"),
    ),
]
Offset = Annotated[int, typer.Argument(help="Which one, as `braid dlq list` numbers them.", min=0)]
OneOffset = Annotated[int | None, typer.Argument(min=0, help="Which one.", show_default="none")]
Every = Annotated[bool, typer.Option("--all", help="All there are, the oldest first.")]
Queue = Annotated[
    str,
    typer.Option(help="The queue they lie in, if an exchange leads to several.", show_default=""),
]
Reason = Annotated[
    str | None, typer.Option(help="Only what died of this: rejected, max-attempts, expired, …")
]
Subscription = Annotated[
    str | None, typer.Option(help="Only what this subscription, or group, gave up.")
]
Since = Annotated[
    str | None,
    typer.Option(help="Only what died since: a time such as 2026-05-01T12:00, or 10m ago."),
]
Until = Annotated[str | None, typer.Option(help="Only what died before.")]
EVERYWHERE = ("namespace", "topic", "queue", *COLUMNS)
LESSER = ("namespace", "attempts", "queue", "subscription", "value", "reason")


def _wanted(
    reason: str | None, subscription: str | None, since: str | None, until: str | None, queue: str
) -> dict[str, str | int]:
    given: dict[str, str | int | None] = {
        "reason": reason,
        "subscription": subscription,
        "since_ms": None if since is None else moment_ms(since),
        "until_ms": None if until is None else moment_ms(until),
        "queue": queue or None,
    }
    return {name: value for name, value in given.items() if value is not None}


@app.command("list")
def list_letters(
    node: InNamespace,
    out: Out,
    topic: AnyTopic = None,
    start: Annotated[
        int, typer.Option(min=0, help="Begin at this offset. With a topic, and no filter.")
    ] = 0,
    limit: Limit = LIMIT,
    reason: Reason = None,
    subscription: Subscription = None,
    since: Since = None,
    until: Until = None,
    queue: Queue = "",
) -> None:
    """Show dead letters of a topic, or of all topics you may read, and why they died.

    Without a topic, and where no namespace is named, those of all namespaces.

    Examples: braid dlq list orders --limit 20; braid dlq list --reason max-attempts --since 1h
    """
    wanted = _wanted(reason, subscription, since, until, queue)
    if start and (topic is None or wanted):
        raise BadSetting(
            "--start is an offset of one topic's dead letters",
            remedy="Name a topic and no filter, or leave it out",
        )
    if topic is not None and not wanted:
        path = ("topics", topic, "dead-letters")
        letters = node.api().first(*path, limit=limit, key="letters", start=start)
    else:
        query: dict[str, str | int | None] = {
            "topic": topic,
            "namespace": _where(node, topic),
            **wanted,
        }
        letters = node.global_api().first("dead-letters", limit=limit, key="letters", **query)
    columns = COLUMNS if topic is not None else EVERYWHERE
    out.show(letters if out.is_data else [_row(each) for each in letters], columns, LESSER)


def _where(node: Node, topic: str | None) -> str | None:
    """None is everywhere: without a topic, unless somebody said where."""
    return node.given_namespace if topic is None else node.namespace


@app.command("show")
def show_letter(
    node: InNamespace,
    out: Out,
    topic: Topic,
    offset: Offset,
    queue: Queue = "",
) -> None:
    """Show one dead letter: its death, and the whole message.

    Example: braid dlq show orders 17
    """
    api = node.api()
    letter = api.get("topics", topic, "dead-letters", offset, queue=queue or None)
    if out.is_data:
        out.data(letter)
        return
    headers = letter["message"].get("headers", {})
    described = {
        **_row(letter),
        "key": letter["message"].get("key"),
        "headers": [
            f"{name}={value}" for name, value in headers.items() if not name.startswith(DEATH)
        ]
        or None,
    }
    out.show_one(described, FIELDS)
    print()
    print(printable(value_text(letter["message"])))


@app.command()
def retry(
    node: InNamespace,
    out: Out,
    topic: AnyTopic = None,
    offset: OneOffset = None,
    every: Every = False,
    reason: Reason = None,
    subscription: Subscription = None,
    since: Since = None,
    until: Until = None,
    queue: Queue = "",
    everybody: Annotated[
        bool,
        typer.Option(
            help="For all subscriptions of the topic, not only the one that gave the message up."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
) -> None:
    """Return dead letters to where they came from: one, some or all; for who gave them up.

    Examples: braid dlq retry orders 17; braid dlq retry orders --all --dry-run;
    braid dlq retry --reason max-attempts --since 1h
    """
    wanted = _wanted(reason, subscription, since, until, queue)
    where = _where(node, topic)
    if topic is not None and offset is not None and not every:
        path = ("topics", topic, "dead-letters", offset)
        found = node.api().get(*path, queue=queue or None)
        wanted |= {"queue": found["queue"], "offset": offset}
    elif offset is not None or not (every or wanted):
        raise BadSetting(
            "no dead letters were selected", remedy="Give a topic and an offset, a filter, or --all"
        )
    body: dict[str, object] = {
        **wanted,
        **({} if topic is None else {"topic": topic}),
        **({} if where is None else {"namespace": where}),
        "all": every,
        "dry_run": dry_run,
        "to": "topic" if everybody else "subscription",
    }
    if topic is not None:
        seen(node.api(), "topics", topic)
    done = _return_all(node.global_api(), body)
    if out.is_data:
        out.data(done)
        return
    what = "would be published again" if dry_run else "published again"
    print(f"{counted(done['count'], 'dead letter')} {what}")
    if dry_run and done["examples"]:
        out.show([_row(each) for each in done["examples"]], RETURNED, LESSER)
    _tell_stayed(done)


RETURNED = ("namespace", "topic", "subscription", "queue", "offset", "died", "reason", "error")


RETURNED_AT_ONCE = 1000
"""So that somebody who waits sees it go on."""


def _return_all(api: Api, body: dict[str, object]) -> dict[str, Any]:
    """Call by call; what needs several calls is counted first, for who waits."""
    done = _return_some(api, body)
    if not done["next"]:
        return done
    left = 0
    if sys.stderr.isatty() and not body["dry_run"]:
        counting = {**body, "dry_run": True, "cursor": done["next"]}
        while True:
            part = api.post("dead-letters", "return", body=counting)
            left += part["count"] + part["stayed_count"]
            if not part["next"]:
                break
            counting["cursor"] = part["next"]
    total = done["count"] + done["stayed_count"] + left if left else None
    with Bar("returning", total) as bar:
        while done["next"]:
            bar.show(done["count"] + done["stayed_count"])
            part = _return_some(api, {**body, "cursor": done["next"]})
            done["next"] = part["next"]
            for name in ("count", "stayed_count"):
                done[name] += part[name]
            for name in ("examples", "stayed"):
                done[name] = done[name] or part[name]
    return done


def _return_some(api: Api, body: dict[str, object]) -> dict[str, Any]:
    found: dict[str, Any] = api.post(
        "dead-letters", "return", body={**body, "limit": RETURNED_AT_ONCE}
    )
    return found


def _tell_stayed(done: dict[str, Any]) -> None:
    if not done["stayed_count"]:
        return
    print(f"{counted(done['stayed_count'], 'dead letter')} can't go back:")
    for each in {each["code"]: each for each in reversed(done["stayed"])}.values():
        print(f"  {each['code']}: {printable(each['detail'])}")


@app.command()
def purge(
    node: InNamespace,
    out: Out,
    topic: Topic,
    offset: OneOffset = None,
    every: Every = False,
    queue: Queue = "",
    yes: Yes = False,
) -> None:
    """Remove a dead letter of a topic, or all. This can't be undone.

    Examples: braid dlq purge orders 17; braid dlq purge orders --all
    """
    if (offset is None) != every:
        raise BadSetting("no dead letters were selected", remedy="Give an offset, or --all")
    api, where = node.api(), queue or None
    path = ("topics", topic, "dead-letters")
    if offset is None:
        api.get(*path, limit=1, queue=where)
        confirm(yes, f"Remove all dead letters of topic {topic!r}?")
        removed = api.delete(*path, queue=where)
    else:
        api.get(*path, offset, queue=where)
        confirm(yes, f"Remove dead letter {offset} of topic {topic!r}?")
        api.delete(*path, offset, queue=where)
        removed = {"count": 1, "stayed": 0}
    stayed = f"; consumers have {removed['stayed']} more" if removed["stayed"] else ""
    what = counted(removed["count"], "dead letter")
    out.done(f"removed {what} of topic {topic!r}{stayed}", removed)


def _row(letter: dict[str, Any]) -> dict[str, Any]:
    value = value_text(letter["message"]) if "message" in letter else ""
    short = value if len(value) <= VALUE_CHARS_MAX else value[: VALUE_CHARS_MAX - 1] + "…"
    known = dict.fromkeys((*EVERYWHERE, *FIELDS))
    return {
        **known,
        **letter,
        "died": time_text(letter.get("at_ms")),
        "value": " ".join(short.split()),
    }


def value_text(message: dict[str, Any]) -> str:
    """The value of a message of the API, for a person."""
    if "value_base64" in message:
        data = base64.b64decode(message["value_base64"])
        return data.decode(errors="backslashreplace")
    return str(message["value"] or "")
