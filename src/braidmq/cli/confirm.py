"""What takes something away asks first."""

import sys
from typing import Annotated, Any

import typer

from braidmq.cli.api import Api
from braidmq.model.errors import AccessRefused, BraidError, Kind, SetupError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class NotConfirmed(SetupError):
    code = "not-confirmed"
    remedy = "There is no terminal to ask at: give --yes"


class Declined(BraidError):
    kind = Kind.REFUSED
    code = "declined"


def confirm(yes: bool, question: str) -> None:
    """Returns if whoever sits at the terminal wants it, or --yes was given."""
    if yes:
        return
    if not sys.stdin.isatty():
        what = question.rpartition("?")[0]
        raise NotConfirmed(f"not confirmed: {what[:1].lower()}{what[1:]}")
    if not typer.confirm(question, err=True):
        raise Declined("nothing was changed")


def seen(api: Api, *path: str | int, **query: str | int | None) -> Any:
    """What is there, so that it can be said what goes; None if that may not be seen, which is no
    reason not to ask. What is not there is an error before any question."""
    try:
        return api.get(*path, **query)
    except AccessRefused:
        return None
