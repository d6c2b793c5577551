"""``braid transactions``: those that are open, who holds readers back, and their end."""

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
    print_json,
    show,
    show_one,
)
from braidmq.cli.units import span_text, time_text

app = typer.Typer(
    name="transactions",
    help="Transactions: those that are open, and what they keep readers from.",
    no_args_is_help=True,
)

COLUMNS = ("name", "state", "owner", "age", "records", "topic", "partition", "from", "behind")

FIELDS = (
    *("name", "state", "owner", "started", "age", "records", "branches", "holds"),
    *("outcome", "reason", "ended"),
)

Name = Annotated[str, typer.Argument(help="As `braid transactions list` shows it.")]


@app.command("list")
def list_transactions(
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show open transactions, the oldest first: a line for each partition they have messages in.

    `behind` is how many messages of the partition nobody gets until the transaction ends.

    Example: braid transactions list
    """
    found = Api(url, user, password, namespace).get("transactions")
    if as_json:
        print_json(found)
        return
    show([line for each in found for line in _lines(each)], COLUMNS, as_json)


def _lines(transaction: dict[str, Any]) -> list[dict[str, Any]]:
    about = {**transaction, "age": span_text(transaction["age_ms"])}
    nowhere = {"topic": None, "partition": None, "from": None, "behind": None}
    held = [
        {
            "topic": each["topic"],
            "partition": each["partition"],
            "from": each["first_offset"],
            "behind": each["behind"],
        }
        for each in transaction["holds"]
    ]
    return [{**about, **each} for each in held or [nowhere]]


@app.command("show")
def show_transaction(
    name: Name,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Describe a transaction; how it ended is known for an hour.

    Example: braid transactions show nightly-17
    """
    found = Api(url, user, password, namespace).get("transactions", name)
    _say(found, as_json)


@app.command()
def commit(
    name: Name,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Commit a transaction: all it published is visible, all it acknowledged is done with.

    Example: braid transactions commit nightly-17
    """
    found = Api(url, user, password, namespace).post("transactions", name, "commit")
    _say(found, as_json)


@app.command()
def abort(
    name: Name,
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Abort a transaction: nobody sees what it published, and what it acknowledged comes again.

    Example: braid transactions abort nightly-17
    """
    found = Api(url, user, password, namespace).post("transactions", name, "abort")
    _say(found, as_json)


def _say(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    told = dict(found)
    for field in ("started_ms", "ended_ms"):
        if field in told:
            told[field.removesuffix("_ms")] = time_text(told[field])
    if "age_ms" in told:
        told["age"] = span_text(told["age_ms"])
        told["branches"] = ", ".join(each or "(default)" for each in told["branches"])
        told["holds"] = ", ".join(
            f"{each['topic']}/{each['partition']} from {each['first_offset']} on"
            f" ({each['behind']} behind)"
            for each in told["holds"]
        )
    show_one(told, [field for field in FIELDS if field in told], as_json)
