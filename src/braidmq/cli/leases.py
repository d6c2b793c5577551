"""``braid leases``: who reads in bulk, and what stays for them."""

import time
from typing import Annotated

import typer

from braidmq.cli.api import DEFAULT_URL, GUEST, ROOT, Api, Json, Namespace, Secret, Url, User, show
from braidmq.cli.units import span_text

app = typer.Typer(
    name="leases",
    help="Leases: they keep messages for bulk readers (Spark).",
    no_args_is_help=True,
)

COLUMNS = ("name", "holder", "user", "topics", "partitions", "age", "ends_in", "parts")


@app.command("list")
def list_leases(
    namespace: Namespace = ROOT,
    as_json: Json = False,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Show who reads in bulk, and from where on nothing is deleted for them.

    Example: braid leases list
    """
    found = Api(url, user, password, namespace).get("leases")
    if not as_json:
        now_ms = int(time.time() * 1000)
        found = [
            {
                **each,
                "topics": sorted({at["topic"] for at in each["positions"]}),
                "partitions": len(each["positions"]),
                "age": span_text(max(0, now_ms - each["created_ms"])),
                "ends_in": span_text(max(0, each["expires_ms"] - now_ms)),
                "parts": f"{each['finished']}/{each['parts']}" if each["parts"] else None,
            }
            for each in found
        ]
    show(found, COLUMNS, as_json)


@app.command()
def end(
    name: Annotated[str, typer.Argument(help="As `braid leases list` shows it.")],
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """End a lease: its messages may be deleted, and the query that holds it may fail.

    Example: braid leases end spark-batch-0123456789ab
    """
    Api(url, user, password, namespace).delete("leases", name)
