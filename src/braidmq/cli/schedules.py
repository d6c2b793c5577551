"""``braid schedules``: messages that are published again and again."""

from typing import Annotated, Any

import typer

from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.output import Output, counted
from braidmq.cli.units import duration_ms, pairs, span_text, time_text
from braidmq.model.errors import BadSetting

app = Commands(
    name="schedules",
    help="Schedules: messages that are published again and again, by cron or interval.",
    no_args_is_help=True,
)

COLUMNS = ("topic", "name", "when", "zone", "paused", "next", "runs", "last", "error")
LESSER = ("zone", "runs", "last", "paused")
FIELDS = (
    *("topic", "name", "user", "created", "when", "zone", "value", "key", "headers", "partition"),
    *("paused", "next_runs", "runs", "last", "error"),
)

Topic = Annotated[
    str, typer.Argument(help="The topic they are published in.", autocompletion=complete("topics"))
]
Name = Annotated[
    str,
    typer.Argument(
        help="The schedule's name, one of its topic.", autocompletion=complete("schedules")
    ),
]


@app.command("list")
def list_schedules(
    node: InNamespace,
    out: Out,
    topic: Annotated[
        str | None, typer.Argument(help="Only this topic.", autocompletion=complete("topics"))
    ] = None,
) -> None:
    """Show schedules, when they run next, and why the last run failed, if it did.

    Example: braid schedules list
    """
    path = ("schedules",) if topic is None else ("topics", topic, "schedules")
    found = node.api().every(*path)
    out.show(found if out.is_data else [_told(each) for each in found], COLUMNS, LESSER)


@app.command()
def add(
    node: InNamespace,
    out: Out,
    topic: Topic,
    name: Name,
    value: Annotated[str, typer.Argument(help="What is published.")],
    cron: Annotated[
        str | None,
        typer.Option(help="minute hour day-of-month month day-of-week, such as '0 9 * * mon-fri'."),
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Instead of --cron: an interval, such as 30s or 2h.")
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Time zone of --cron, such as Europe/Berlin.", show_default="UTC"),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Decides the partition.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="name=value; may be given again.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Where it goes, whatever its key.")
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Not before it is resumed.")] = False,
) -> None:
    """Publish a message again and again; a schedule of that name is replaced.

    It runs while you have the right to write to the topic.

    Example: braid schedules add orders report 'make it' --cron '0 9 * * mon-fri'

    Example: braid schedules add orders tick tock --every 30s
    """
    if (cron is None) == (every is None):
        raise BadSetting("a schedule has either --cron or --every", remedy="Give one of them")
    body: dict[str, object] = {"value": value, "paused": paused, "headers": pairs(header or [])}
    if cron is not None:
        body["cron"] = cron
    if every is not None:
        body["every_ms"] = duration_ms(every)
    if zone is not None:
        body["zone"] = zone
    if key is not None:
        body["key"] = key
    if partition is not None:
        body["partition"] = partition
    api = node.api()
    _show(api.put("topics", topic, "schedules", name, body=body), out)


@app.command("show")
def show_schedule(
    node: InNamespace,
    out: Out,
    topic: Topic,
    name: Name,
) -> None:
    """Show a schedule and its next five runs.

    Example: braid schedules show orders report
    """
    api = node.api()
    _show(api.get("topics", topic, "schedules", name), out)


@app.command()
def pause(
    node: InNamespace,
    out: Out,
    topic: Topic,
    name: Name,
) -> None:
    """Let a schedule rest. Runs that come meanwhile are not made up for.

    Example: braid schedules pause orders report
    """
    node.api().post("topics", topic, "schedules", name, "pause")
    out.quiet({"topic": topic, "name": name, "paused": True})


@app.command()
def resume(
    node: InNamespace,
    out: Out,
    topic: Topic,
    name: Name,
) -> None:
    """Go on, with the next run that is due from now on.

    Example: braid schedules resume orders report
    """
    node.api().post("topics", topic, "schedules", name, "resume")
    out.quiet({"topic": topic, "name": name, "paused": False})


@app.command()
def delete(
    node: InNamespace,
    out: Out,
    topic: Topic,
    name: Name,
    yes: Yes = False,
) -> None:
    """Delete a schedule. What it has published stays.

    Example: braid schedules delete orders report --yes
    """
    api = node.api()
    found = seen(api, "topics", topic, "schedules", name)
    ran = "" if found is None else f", which ran {counted(found['runs'], 'time')}"
    confirm(yes, f"Delete schedule {name!r} of topic {topic!r}{ran}?")
    api.delete("topics", topic, "schedules", name)
    out.done(f"deleted schedule {name!r} of topic {topic!r}", {"deleted": name, "topic": topic})


def _show(schedule: dict[str, Any], out: Output) -> None:
    out.show_one(schedule if out.is_data else _told(schedule), FIELDS)


def _told(schedule: dict[str, Any]) -> dict[str, Any]:
    upcoming = [str(time_text(at)) for at in schedule["next_runs_ms"]]
    return {
        **schedule,
        "key": schedule.get("key"),
        "headers": [f"{name}={value}" for name, value in schedule["headers"].items()],
        "partition": schedule.get("partition"),
        "created": time_text(schedule["created_ms"]),
        "when": schedule["cron"] or f"every {span_text(schedule['every_ms'])}",
        "next": upcoming[0] if upcoming else None,
        "next_runs": "\n".join(upcoming) or None,
        "last": time_text(schedule["last_run_ms"]) if schedule["last_run_ms"] else None,
        "error": schedule["error"] or None,
    }
