"""``braid templates``: settings for topics, by the pattern of their names."""

import json
from typing import Annotated, Any

import typer

from braidmq.cli.commands import Commands, InNamespace, Out
from braidmq.cli.completion import complete
from braidmq.cli.confirm import Yes, confirm, seen
from braidmq.cli.units import settings

app = Commands(
    name="templates",
    help="Settings for topics, by the pattern of their names.",
    no_args_is_help=True,
)

COLUMNS = ("name", "pattern", "priority", "settings")

Name = Annotated[
    str, typer.Argument(help="The template's name.", autocompletion=complete("templates"))
]


@app.command("list")
def list_templates(node: InNamespace, out: Out) -> None:
    """Show all templates of a namespace.

    Example: braid templates list
    """
    found = node.api().every("templates")
    out.show(found if out.is_data else [_told(each) for each in found], COLUMNS)


@app.command("show")
def show_template(node: InNamespace, out: Out, name: Name) -> None:
    """Show a template.

    Example: braid templates show shop
    """
    found = node.api().get("templates", name)
    out.show_one(found if out.is_data else _told(found), ("namespace", *COLUMNS))


@app.command("set")
def set_template(
    node: InNamespace,
    out: Out,
    name: Name,
    pattern: Annotated[str, typer.Argument(help="Regular expression, searched for in names.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting that matching topics get, such as ttl_ms=1d or retention.bytes=1GiB;"
            " may be given again. `braid topics show` has all names.",
        ),
    ] = None,
    priority: Annotated[int, typer.Option(help="Of several that match the highest counts.")] = 0,
) -> None:
    """Create or replace a template. Topics that match it change at once.

    What a topic was made with wins over its template.

    Example: braid templates set shop '^shop[.]' --set ttl_ms=1d --priority 5
    """
    body: dict[str, object] = {
        "pattern": pattern,
        "settings": settings(changes or []),
        "priority": priority,
    }
    out.quiet(node.api().put("templates", name, body=body))


@app.command()
def delete(node: InNamespace, out: Out, name: Name, yes: Yes = False) -> None:
    """Delete a template. Topics that matched it change at once.

    Example: braid templates delete shop --yes
    """
    api = node.api()
    seen(api, "templates", name)
    confirm(yes, f"Delete template {name!r}? Topics that match it change at once.")
    api.delete("templates", name)
    out.done(f"deleted template {name!r}", {"deleted": name})


def _told(template: dict[str, Any]) -> dict[str, Any]:
    return {**template, "settings": json.dumps(template["settings"])}
