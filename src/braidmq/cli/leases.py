"""``braid leases``: who reads in bulk, and what stays for them."""

from typing import Annotated

import typer

from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.units import now_ms, span_text

app = Commands(
    name="leases",
    help="Leases: they keep messages for bulk readers (Spark).",
    no_args_is_help=True,
)

COLUMNS = ("name", "holder", "user", "topics", "partitions", "age", "ends_in", "parts")


@app.command("list")
def list_leases(
    node: InNamespace,
    out: Out,
) -> None:
    """Show who reads in bulk, and from where on nothing is deleted for them.

    Example: braid leases list
    """
    found = node.api().every("leases")
    if not out.is_data:
        now = now_ms()
        found = [
            {
                **each,
                "topics": sorted({at["topic"] for at in each["positions"]}),
                "partitions": len(each["positions"]),
                "age": span_text(max(0, now - each["created_ms"])),
                "ends_in": span_text(max(0, each["expires_ms"] - now)),
                "parts": f"{each['finished']}/{each['parts']}" if each["parts"] else None,
            }
            for each in found
        ]
    out.show(found, COLUMNS, ("user", "parts", "partitions", "age"))


@app.command()
def end(
    node: InNamespace,
    out: Out,
    name: Annotated[
        str,
        typer.Argument(help="As `braid leases list` shows it.", autocompletion=complete("leases")),
    ],
    yes: Yes = False,
) -> None:
    """End a lease: its messages may be deleted, and the query that holds it may fail.

    Example: braid leases end spark-batch-0123456789ab --yes
    """
    api = node.api()
    seen(api, "leases", name)
    confirm(yes, f"End lease {name!r}? The query that holds it may fail.")
    api.delete("leases", name)
    out.done(f"ended lease {name!r}", {"ended": name})
