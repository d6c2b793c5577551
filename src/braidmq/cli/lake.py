"""``braid lake``: Delta tables that pipelines write, kept in order without a node."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braidmq.cli.commands import Commands, Out
from braidmq.cli.confirm import Yes, confirm
from braidmq.cli.output import counted
from braidmq.cli.units import UNITS_MS, duration_ms, pairs, size_bytes, size_text
from braidmq.model.errors import BadSetting

if TYPE_CHECKING:
    from braidmq.pipeline.lake.options import LakeOptions

app = Commands(
    name="lake",
    help="Lakes: Delta tables that pipelines write, kept in order.",
    no_args_is_help=True,
)

FIELDS = ("path", "version", "files", "size", "rows", "partitioned_by", "columns")

Place = Annotated[str, typer.Argument(help="A directory, or an address such as s3://bucket/lake.")]
Storage = Annotated[
    list[str] | None,
    typer.Option(help="Of the object store, as aws_region=eu-central-1; may be repeated."),
]


@app.command()
def info(
    out: Out,
    path: Place,
    storage: Storage = None,
) -> None:
    """Show what a lake has: version, files, rows, columns.

    Example: braid lake info /data/lake/orders
    """
    options = _options(path, storage)
    from braidmq.pipeline.lake.upkeep import facts

    found = facts(options)
    if not out.is_data:
        found = {**found, "path": path, "size": size_text(found["bytes"])}
    out.show_one(found, FIELDS)


@app.command()
def optimize(
    out: Out,
    path: Place,
    storage: Storage = None,
    file_bytes: Annotated[
        str, typer.Option(help="Files up to this size are made larger, such as 64MiB.")
    ] = "256MiB",
) -> None:
    """Make large files of small ones, partition by partition. No row changes, readers go on.

    Example: braid lake optimize /data/lake/orders
    """
    largest_bytes = size_bytes(file_bytes)
    options = _options(path, storage)
    from braidmq.pipeline.lake import upkeep

    done = upkeep.optimize(options, largest_bytes)
    out.done(
        f"{counted(done.removed, 'file')} became {done.added}, version {done.version}",
        {"removed": done.removed, "added": done.added, "version": done.version},
    )


@app.command()
def vacuum(
    out: Out,
    path: Place,
    storage: Storage = None,
    retention: Annotated[
        str | None,
        typer.Option(
            help="For how long older versions can still be read, such as 14d; a number alone is"
            " hours.",
            show_default="the table's own, a week",
        ),
    ] = None,
    short: Annotated[
        bool,
        typer.Option("--short", help="Less than a week: nobody reads or writes for longer."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: Yes = False,
) -> None:
    """Remove files that no version within the retention needs, and those of writers that failed.

    Examples: braid lake vacuum /data/lake/orders --dry-run;
    braid lake vacuum /data/lake/orders --yes
    """
    hours = None if retention is None else _hours(retention)
    options = _options(path, storage)
    from braidmq.pipeline.lake import upkeep

    if not dry_run:
        confirm(yes, f"Remove what no version of {path} within the retention needs?")
    names = upkeep.vacuum(options, hours, short=short, dry_run=dry_run)
    out.show_lines(names, [{"file": name, "removed": not dry_run} for name in names])


def _hours(text: str) -> int:
    if text.isdecimal():
        return int(text)
    hours, rest = divmod(duration_ms(text), UNITS_MS["h"])
    if rest:
        raise BadSetting(f"{text!r} is no whole number of hours", remedy="Use a value such as 14d")
    return hours


def _options(path: str, storage: list[str] | None) -> "LakeOptions":
    from braidmq.pipeline.session import require_spark

    require_spark()
    from braidmq.pipeline.definition import STORAGE
    from braidmq.pipeline.lake.options import parse_lake_options

    given = {f"{STORAGE}{name}": value for name, value in pairs(storage or []).items()}
    # Meant from here: it is this process that looks, no executor elsewhere.
    where = path if "://" in path else str(Path(path).absolute())
    return parse_lake_options({"path": where, **given})
