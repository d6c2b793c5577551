"""``braid storage``: damaged files. What is quarantined, and the ways out of it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from braidmq.cli.api import Api
from braidmq.cli.commands import AnyNode, Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm
from braidmq.cli.output import counted
from braidmq.cli.units import size_text
from braidmq.model.errors import SetupError

app = Commands(
    name="storage",
    help="Damaged files: what is quarantined, and how to go on.",
    no_args_is_help=True,
)

COLUMNS = ("namespace", "topic", "partition", "file", "byte", "reason")

Topic = Annotated[
    str, typer.Argument(help="As `braid storage list` shows it.", autocompletion=complete("topics"))
]
Number = Annotated[int, typer.Argument(help="The number of the partition.")]
DataDir = Annotated[Path, typer.Option(help="The data directory of a node that does not run.")]


@app.command("list")
def list_quarantined(
    node: AnyNode,
    out: Out,
) -> None:
    """Show the partitions that are quarantined, and the files that were set aside.

    Example: braid storage list
    """
    found = quarantined(node.global_api())
    if out.is_data:
        out.data(found)
        return
    if found["partitions"]:
        out.show(found["partitions"], COLUMNS, ("namespace", "byte"))
    else:
        print("no partition is quarantined")
    if found["set_aside"]:
        print("set aside, for you to look at and delete:")
        for each in found["set_aside"]:
            print(f"  {each['file']}  {size_text(each['bytes'])}")


def quarantined(api: Api) -> dict[str, list[Any]]:
    """All that is quarantined, and all that was set aside."""
    found: dict[str, list[Any]] = {"partitions": [], "set_aside": []}
    for page in api.pages("quarantine"):
        for name, listed in found.items():
            listed += page[name]
    return found


@app.command()
def retry(
    node: InNamespace,
    out: Out,
    topic: Topic,
    partition: Number = 0,
) -> None:
    """Serve a quarantined partition again, after its damaged file was restored.

    All of it is read first: if it is still damaged, it stays quarantined.

    Example: braid storage retry orders 0
    """
    api = node.api()
    api.post("topics", topic, "partitions", partition, "quarantine", "retry")
    out.done(
        f"partition {partition} of topic {topic!r} is whole and served again",
        {"topic": topic, "partition": partition, "quarantined": False},
    )


@app.command()
def skip(
    node: InNamespace,
    out: Out,
    topic: Topic,
    partition: Number = 0,
    yes: Yes = False,
) -> None:
    """Serve a quarantined partition without what is damaged: those messages are lost.

    The damaged files are set aside in the data directory, not deleted.

    Example: braid storage skip orders 0 --yes
    """
    confirm(yes, f"Lose what is damaged in partition {partition} of topic {topic!r}?")
    api = node.api()
    found = api.post("topics", topic, "partitions", partition, "quarantine", "skip")
    if out.is_data:
        out.data(found)
        return
    for each in found["skipped"]:
        ranges = ", ".join(f"{start} to {stop - 1}" for start, stop in each["ranges"])
        print(f"{each['file']}: skipped bytes {ranges}; {each['records']} records are lost")
        if each["aside"]:
            print(f"  the damaged file is now {each['aside']}")
    print(f"partition {partition} of topic {topic!r} is served again")


def _require_data(data_dir: Path) -> None:
    """Made anew where a letter was mistyped, it would look repaired."""
    from braidmq.storage.journal import DIRECTORY

    if not (data_dir / DIRECTORY).is_dir():
        raise SetupError(
            f"'{data_dir}' is not the data directory of a node",
            remedy="Give --data-dir as `braid serve` has it",
        )


@app.command("skip-entry")
def skip_entry(
    out: Out,
    data_dir: DataDir,
    yes: Yes = False,
) -> None:
    """Skip the first unreadable entry of the journal: its contents are lost.

    For a node that refuses to start with "was durable and can't be read", or whose journal file is
    missing or cut, when there is no backup of it. An entry may hold messages, acknowledgements or a
    change of topics. The damaged file is set aside, not deleted. If there is more damage, the node
    refuses again: repeat the command.

    Example: braid storage skip-entry --data-dir /var/lib/braidmq --yes
    """
    from braidmq.storage.disk import RealDisk
    from braidmq.storage.repair import skip_damaged_entry

    _require_data(data_dir)
    confirm(yes, "Lose the first journal entry that can't be read?")
    found = skip_damaged_entry(RealDisk(data_dir))
    if out.is_data:
        out.data(None if found is None else {f: getattr(found, f) for f in found.__struct_fields__})
        return
    if found is None:
        print("nothing is damaged in the journal")
        return
    print(f"{found.file}: {found.reason}")
    if found.stop > found.start:
        print(f"  skipped bytes {found.start} to {found.stop - 1}")
    if found.last_lsn >= found.first_lsn:
        print(f"  entries {found.first_lsn} to {found.last_lsn} are lost")
    if found.aside:
        print(f"  the damaged file is now {found.aside}")


@app.command()
def rebuild(out: Out, data_dir: DataDir, yes: Yes = False) -> None:
    """Go on without a snapshot, with what segments and journal say of themselves.

    For a node that refuses to start with "no snapshot can be read", when there is no backup of one.
    Topics come back by their names with all messages that are on disk; their settings, what was
    acknowledged, exchanges, bindings, users and permissions do not, but for what the journal still
    has. So messages come twice. Nothing is deleted.

    Example: braid storage rebuild --data-dir /var/lib/braidmq --yes
    """
    from braidmq.engine.engine import Engine
    from braidmq.model.clock import SystemClock
    from braidmq.storage.disk import RealDisk

    _require_data(data_dir)
    confirm(yes, "Lose settings, users and acknowledgements?")
    engine = Engine.open(RealDisk(data_dir), SystemClock().now_ms(), rebuild=True)
    try:
        engine.store.checkpoint()
        found: list[dict[str, Any]] = [
            {
                "namespace": topic.namespace,
                "topic": topic.name,
                "messages": sum(each.log.retained()[0] for each in topic.partitions),
            }
            for topic in engine.state.topics_of()
        ]
        if out.is_data:
            out.data(found)
            return
        for note in engine.store.recovery.notes:
            print(note)
        if not found:
            print("no topics were found")
        for each in found:
            print(f"{each['namespace']} {each['topic']}: {counted(each['messages'], 'message')}")
    finally:
        engine.close()
