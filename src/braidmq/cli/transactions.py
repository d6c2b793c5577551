"""``braid transactions``: those that are open, who holds readers back, and their end."""

from typing import Annotated, Any

import typer

from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm
from braidmq.cli.output import Output, counted
from braidmq.cli.units import span_text, time_text

app = Commands(
    name="transactions",
    help="Transactions: those that are open, and what they keep readers from.",
    no_args_is_help=True,
)

COLUMNS = ("name", "state", "owner", "age", "records", "topic", "partition", "from", "behind")

LESSER = ("owner", "from", "age", "state")
FIELDS = (
    *("name", "state", "owner", "started", "age", "records", "branches", "holds"),
    *("outcome", "reason", "ended"),
)

Name = Annotated[
    str,
    typer.Argument(
        help="As `braid transactions list` shows it.", autocompletion=complete("transactions")
    ),
]


@app.command("list")
def list_transactions(
    node: InNamespace,
    out: Out,
) -> None:
    """Show open transactions, the oldest first: a line for each partition they have messages in.

    `behind` is how many messages of the partition nobody gets until the transaction ends.

    Example: braid transactions list
    """
    found = node.api().every("transactions")
    if out.is_data:
        out.data(found)
        return
    out.show([line for each in found for line in _lines(each)], COLUMNS, LESSER)


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
    node: InNamespace,
    out: Out,
    name: Name,
) -> None:
    """Describe a transaction; how it ended is known for an hour.

    Example: braid transactions show nightly-17
    """
    found = node.api().get("transactions", name)
    _say(found, out)


@app.command()
def commit(
    node: InNamespace,
    out: Out,
    name: Name,
) -> None:
    """Commit a transaction: all it published is visible, all it acknowledged is done with.

    Example: braid transactions commit nightly-17
    """
    found = node.api().post("transactions", name, "commit")
    _say(found, out)


@app.command()
def abort(
    node: InNamespace,
    out: Out,
    name: Name,
    yes: Yes = False,
) -> None:
    """Abort a transaction: nobody sees what it published, and what it acknowledged comes again.

    Example: braid transactions abort nightly-17 --yes
    """
    api = node.api()
    there = api.get("transactions", name)
    if "records" in there:
        lost = counted(there["records"], "message")
        confirm(yes, f"Abort transaction {name!r}? The {lost} it published will be gone.")
    _say(api.post("transactions", name, "abort"), out)


def _say(found: dict[str, Any], out: Output) -> None:
    if out.is_data:
        out.data(found)
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
    out.show_one(told, [field for field in FIELDS if field in told])
