"""``braid dlq``: dead letters: list, requeue, remove."""

import base64
from typing import Annotated, Any

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
    console,
    print_json,
    printable,
    show,
    show_one,
)
from braidmq.cli.units import time_text
from braidmq.model.errors import BadSetting

app = typer.Typer(
    name="dlq", help="Dead letters: messages that were given up.", no_args_is_help=True
)

COLUMNS = ("offset", "died", "reason", "subscription", "attempts", "error", "value")
FIELDS = (
    "topic",
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

Topic = Annotated[str, typer.Argument(help="The topic the messages died in.")]
Offset = Annotated[int, typer.Argument(help="Which one, as `braid dlq list` numbers them.", min=0)]
OneOffset = Annotated[
    int | None, typer.Argument(min=0, help="Which one.", show_default="none: give --all")
]
Every = Annotated[bool, typer.Option("--all", help="All there are, the oldest first.")]


@app.command("list")
def list_letters(
    topic: Topic,
    start: Annotated[int, typer.Option(min=0, help="Begin at this offset.")] = 0,
    limit: Limit = LIMIT,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show the dead letters of a topic, the oldest first, and why they died.

    Example: braid dlq list orders --limit 20
    """
    api = Api(url, user, password, namespace)
    letters = api.get("topics", topic, "dead-letters", start=start, limit=limit)["letters"]
    show(letters if as_json else [_row(each) for each in letters], COLUMNS, as_json)


@app.command("show")
def show_letter(
    topic: Topic,
    offset: Offset,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show one dead letter: its death, and the whole message.

    Example: braid dlq show orders 17
    """
    letter = Api(url, user, password, namespace).get("topics", topic, "dead-letters", offset)
    if as_json:
        print_json(letter)
        return
    headers = letter["message"].get("headers", {})
    described = {
        **_row(letter),
        "key": letter["message"].get("key"),
        "headers": [
            f"{name}={value}" for name, value in headers.items() if not name.startswith(DEATH)
        ],
    }
    show_one(described, FIELDS, as_json)
    out = console()
    out.print()
    out.print(printable(value_text(letter["message"])), highlight=False, markup=False)


@app.command()
def retry(
    topic: Topic,
    offset: OneOffset = None,
    every: Every = False,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Republish one or all dead letters to their topic: a new message for all its groups.

    Examples: braid dlq retry orders 17; braid dlq retry orders --all
    """
    _need_one_or_all(offset, every)
    api = Api(url, user, password, namespace)
    if offset is None:
        count = _retry_all(api, topic)
    else:
        api.post("topics", topic, "dead-letters", offset, "retry")
        count = 1
    _counted(count, "published again", as_json)


@app.command()
def purge(
    topic: Topic,
    offset: OneOffset = None,
    every: Every = False,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Remove a dead letter, or all. This can't be undone.

    Examples: braid dlq purge orders 17; braid dlq purge orders --all
    """
    _need_one_or_all(offset, every)
    api = Api(url, user, password, namespace)
    if offset is None:
        count = api.delete("topics", topic, "dead-letters")["count"]
    else:
        api.delete("topics", topic, "dead-letters", offset)
        count = 1
    _counted(count, "removed", as_json)


def _need_one_or_all(offset: int | None, every: bool) -> None:
    if (offset is None) != every:
        raise BadSetting("no dead letters were selected", remedy="Give an offset, or --all")


def _retry_all(api: Api, topic: str) -> int:
    """Call by call, with the count on stderr where a person sees it."""
    from rich.console import Console

    count: int = 0
    with Console(stderr=True).status("retrying") as status:
        while True:
            done = api.post("topics", topic, "dead-letters", "retry")
            count += done["count"]
            status.update(f"retrying: {count:,}")
            if not done["more"]:
                return count


def _counted(count: int, what: str, as_json: bool) -> None:
    if as_json:
        print_json({"count": count})
    else:
        print(f"{count} dead letter{'' if count == 1 else 's'} {what}")


def _row(letter: dict[str, Any]) -> dict[str, Any]:
    value = value_text(letter["message"])
    short = value if len(value) <= VALUE_CHARS_MAX else value[: VALUE_CHARS_MAX - 1] + "…"
    known = dict.fromkeys((*COLUMNS, *FIELDS))
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
