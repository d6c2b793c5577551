"""``braid storage``: damaged files. What is quarantined, and the ways out of it."""

from pathlib import Path
from typing import Annotated

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
)
from braidmq.cli.units import size_text

app = typer.Typer(
    name="storage",
    help="Damaged files: what is quarantined, and how to go on.",
    no_args_is_help=True,
)

COLUMNS = ("namespace", "topic", "partition", "file", "byte", "reason")

Topic = Annotated[str, typer.Argument(help="As `braid storage list` shows it.")]
Number = Annotated[int, typer.Argument(help="The number of the partition.")]
DataDir = Annotated[Path, typer.Option(help="The data directory of a node that does not run.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command("list")
def list_quarantined(
    as_json: Json = False, url: Url = DEFAULT_URL, user: User = GUEST, password: Secret = None
) -> None:
    """Show the partitions that are quarantined, and the files that were set aside.

    Example: braid storage list
    """
    found = Api(url, user, password).get("quarantine")
    if as_json:
        print_json(found)
        return
    show(found["partitions"], COLUMNS, as_json)
    if found["set_aside"]:
        typer.echo("set aside, for you to look at and delete:")
        for each in found["set_aside"]:
            typer.echo(f"  {each['file']}  {size_text(each['bytes'])}")


@app.command()
def retry(
    topic: Topic,
    partition: Number = 0,
    as_json: Json = False,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Serve a quarantined partition again, after its damaged file was restored.

    All of it is read first: if it is still damaged, it stays quarantined.

    Example: braid storage retry orders 0
    """
    api = Api(url, user, password, namespace)
    api.post("topics", topic, "partitions", partition, "quarantine", "retry")
    if as_json:
        print_json({"topic": topic, "partition": partition, "quarantined": False})
        return
    typer.echo(f"partition {partition} of {topic} is whole and served again")


@app.command()
def skip(
    topic: Topic,
    partition: Number = 0,
    yes: Yes = False,
    as_json: Json = False,
    namespace: Namespace = ROOT,
    url: Url = DEFAULT_URL,
    user: User = GUEST,
    password: Secret = None,
) -> None:
    """Serve a quarantined partition without what is damaged: those messages are lost.

    The damaged files are set aside in the data directory, not deleted.

    Example: braid storage skip orders 0
    """
    if not yes:
        typer.confirm(f"Lose what is damaged in partition {partition} of {topic}?", abort=True)
    api = Api(url, user, password, namespace)
    found = api.post("topics", topic, "partitions", partition, "quarantine", "skip")
    if as_json:
        print_json(found)
        return
    for each in found["skipped"]:
        ranges = ", ".join(f"{start} to {stop - 1}" for start, stop in each["ranges"])
        typer.echo(f"{each['file']}: skipped bytes {ranges}; {each['records']} records are lost")
        if each["aside"]:
            typer.echo(f"  the damaged file is now {each['aside']}")
    typer.echo(f"partition {partition} of {topic} is served again")


@app.command("skip-entry")
def skip_entry(data_dir: DataDir, yes: Yes = False, as_json: Json = False) -> None:
    """Skip the first unreadable entry of the journal: its contents are lost.

    For a node that refuses to start with "was durable and can't be read", or whose journal file is
    missing or cut, when there is no backup of it. An entry may hold messages, acknowledgements or a
    change of topics. The damaged file is set aside, not deleted. If there is more damage, the node
    refuses again: repeat the command.

    Example: braid storage skip-entry --data-dir /var/lib/braidmq
    """
    from braidmq.storage.disk import RealDisk
    from braidmq.storage.repair import skip_damaged_entry

    if not yes:
        typer.confirm("Lose the first journal entry that can't be read?", abort=True)
    found = skip_damaged_entry(RealDisk(data_dir))
    if as_json:
        print_json(
            None if found is None else {f: getattr(found, f) for f in found.__struct_fields__}
        )
        return
    if found is None:
        typer.echo("nothing is damaged in the journal")
        return
    typer.echo(f"{found.file}: {found.reason}")
    if found.stop > found.start:
        typer.echo(f"  skipped bytes {found.start} to {found.stop - 1}")
    if found.last_lsn >= found.first_lsn:
        typer.echo(f"  entries {found.first_lsn} to {found.last_lsn} are lost")
    if found.aside:
        typer.echo(f"  the damaged file is now {found.aside}")


@app.command()
def rebuild(data_dir: DataDir, yes: Yes = False) -> None:
    """Go on without a snapshot, with what segments and journal say of themselves.

    For a node that refuses to start with "no snapshot can be read", when there is no backup of one.
    Topics come back by their names with all messages that are on disk; their settings, what was
    acknowledged, exchanges, bindings, users and permissions do not, but for what the journal still
    has. So messages come twice. Nothing is deleted.

    Example: braid storage rebuild --data-dir /var/lib/braidmq
    """
    from braidmq.engine.engine import Engine
    from braidmq.model.clock import SystemClock
    from braidmq.storage.disk import RealDisk

    if not yes:
        typer.confirm("Lose settings, users and acknowledgements?", abort=True)
    engine = Engine.open(RealDisk(data_dir), SystemClock().now_ms(), rebuild=True)
    try:
        engine.store.checkpoint()
        for note in engine.store.recovery.notes:
            typer.echo(note)
        for topic in engine.state.topics_of():
            count = sum(each.log.next_offset - each.log.start_offset for each in topic.partitions)
            typer.echo(f"{topic.namespace} {topic.name}: {count} messages")
    finally:
        engine.close()
