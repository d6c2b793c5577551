"""``braid doctor``: checks a node and its machine, and says what to do about what it finds.

Each check is a function that gives a finding. Those of the machine need the node's data directory:
from it come the disk, and the process that has it locked.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidmq import __version__
from braidmq.cli.api import Api, NodeUnreachable
from braidmq.cli.commands import Out, WithAmqp
from braidmq.cli.node import Node
from braidmq.cli.output import console
from braidmq.cli.storage import quarantined
from braidmq.cli.units import size_text, span_text
from braidmq.model.errors import BraidError, Kind

if TYPE_CHECKING:
    from rich.table import Table

CLOCK_MS_MAX = 2000
SYNCS = 20
SYNC_BYTES = 4096
SYNC_MS_MAX = 20.0
"""A disk of a server takes a few; from here on every confirm feels it."""
CERTIFICATE_MS_MIN = 14 * 24 * 3600 * 1000
"""Let's Encrypt's are renewed 30 days before their end: by now that has failed for two weeks."""
OPEN_FILES_MIN = 4096
OPEN_FILES_USED_MAX = 0.8


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


STYLES = {
    Verdict.OK: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.SKIPPED: "dim",
}


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: Verdict
    finding: str
    remedy: str = ""


def doctor(
    node: WithAmqp,
    out: Out,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The node's data directory, if this is its machine: checks the disk, how long a"
            " sync takes, and the open files of the node."
        ),
    ] = None,
) -> None:
    """Check a node: reachable, ready, logins, version, clock, pressure, disk, open files.

    Exits with 1 if a check failed. A warning is no failure. Room on the disk is compared with the
    default watermarks.

    Examples: braid doctor; braid doctor --data-dir /var/lib/braidmq --json
    """
    node = node.with_password()
    findings = list(_node(node.global_api()))
    if findings[0].verdict is Verdict.OK:
        findings.append(_amqp(node))
    findings += _machine(data_dir)
    if out.is_data:
        out.data([asdict(each) for each in findings])
    else:
        console().print(_table(findings))
    if any(each.verdict is Verdict.FAIL for each in findings):
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in ("check", "verdict", "finding"):
        table.add_column(column, overflow="fold")
    for each in findings:
        said = f"{each.finding}. {each.remedy}" if each.remedy else each.finding
        table.add_row(each.check, Text(each.verdict, style=STYLES[each.verdict]), Text(said))
    return table


def _node(api: Api) -> Iterator[Finding]:
    """What the node says of itself. The first is whether it says anything."""
    try:
        status, health = api.probe("/health")
    except NodeUnreachable as error:
        yield _failed("reachable", error)
        return
    yield Finding("reachable", Verdict.OK, "the node answers over HTTP")
    if status != 200:
        wrong = health.get("error", {}).get("message", "storage failed")
        yield Finding("storage", Verdict.FAIL, wrong, "Repair the disk, then restart the node")
    else:
        yield Finding("storage", Verdict.OK, "the disk can be written")
        yield from _degraded(api, health)
    status, ready = api.probe("/ready")
    if status != 200:
        yield Finding(
            "ready", Verdict.FAIL, ready.get("reason", "the node is not accepting traffic")
        )
    else:
        yield Finding("ready", Verdict.OK, "the node accepts traffic")
    before_ms = time.time() * 1000
    try:
        overview = api.get("overview")
    except BraidError as error:
        if error.kind is Kind.FORBIDDEN:
            remedy = "Log in as an administrator"
            yield Finding(
                "login", Verdict.WARN, f"{error}: the node's figures were not checked", remedy
            )
        else:
            yield _failed("login", error)
        return
    here_ms = (before_ms + time.time() * 1000) / 2
    yield Finding("login", Verdict.OK, "user and password are right")
    yield _version(overview)
    yield clock_finding(overview, here_ms)
    yield pressure_finding(overview)
    listeners = api.every("listeners")
    yield from certificate_findings(listeners, round(time.time() * 1000))
    yield from listener_findings(listeners)


def _degraded(api: Api, health: dict[str, Any]) -> Iterator[Finding]:
    """What is quarantined, each for itself if the asker may know, and what was set aside."""
    count = health.get("degraded", {}).get("quarantined_partitions", 0)
    try:
        found = quarantined(api)
    except BraidError:
        found = None
    if count and not found:
        said = f"{count} partitions are not served: their files are damaged"
        yield Finding("quarantine", Verdict.FAIL, said, "Log in as an administrator to see which")
    for each in found["partitions"] if found else ():
        yield Finding(
            "quarantine",
            Verdict.FAIL,
            f"partition {each['partition']} of {each['topic']} in {each['namespace']}:"
            f" {each['file']} is damaged at byte {each['byte']}: {each['reason']}",
            "Restore the file, then `braid storage retry`; or `braid storage skip` to give up what"
            " is damaged; or delete the topic",
        )
    if not count:
        yield Finding("quarantine", Verdict.OK, "all partitions are served")
    if found and found["set_aside"]:
        size = sum(each["bytes"] for each in found["set_aside"])
        said = f"{len(found['set_aside'])} files in aside/ of the data directory"
        remedy = "The node does not use them: look at them (`braid storage list`), then delete them"
        yield Finding("set aside", Verdict.WARN, f"{said}, {size_text(size)}", remedy)


def _version(overview: dict[str, Any]) -> Finding:
    found = overview["version"]
    if found != __version__:
        said = f"the node is {found}, this command {__version__}"
        return Finding("version", Verdict.WARN, said, "Use the same version")
    return Finding("version", Verdict.OK, f"{found}, up {span_text(overview['uptime_ms'])}")


def clock_finding(overview: dict[str, Any], here_ms: float) -> Finding:
    ahead_ms = round(overview["started_ms"] + overview["uptime_ms"] - here_ms)
    if abs(ahead_ms) > CLOCK_MS_MAX:
        which = "ahead of" if ahead_ms > 0 else "behind"
        return Finding(
            "clock",
            Verdict.WARN,
            f"the node's clock is {span_text(abs(ahead_ms))} {which} this machine's",
            "Delays and expiry follow the node's clock: run NTP on both machines",
        )
    return Finding("clock", Verdict.OK, "the clocks of the node and of this machine agree")


def pressure_finding(overview: dict[str, Any]) -> Finding:
    held = f"{size_text(overview['memory_bytes'])} of messages in memory"
    level = overview["pressure"]
    if level == "normal":
        return Finding("pressure", Verdict.OK, f"publishers are not held back; {held}")
    verdict = Verdict.FAIL if level == "blocked" else Verdict.WARN
    remedy = "Consume or purge messages, or raise the watermarks in its table `limits`"
    return Finding("pressure", verdict, f"publishers are {level}; {held}", remedy)


def certificate_findings(listeners: list[dict[str, Any]], now_ms: int) -> Iterator[Finding]:
    """One for each certificate, however many listeners show it; none of a node without TLS."""
    shown: dict[tuple[str, str, int], list[str]] = {}
    for listener in listeners:
        for each in listener["certificates"]:
            of = (each["subject"], each["serial"], each["expires_ms"])
            shown.setdefault(of, []).append(listener["name"])
    for (subject, serial, expires_ms), names in shown.items():
        left_ms = expires_ms - now_ms
        what = f"{subject} (serial {serial}; {', '.join(names)})"
        remedy = "Renew it; the node reads the new files by itself, or `braid config reload`"
        if left_ms <= 0:
            said = f"{what} expired {span_text(-left_ms)} ago"
            yield Finding("certificate", Verdict.FAIL, said, remedy)
        elif left_ms < CERTIFICATE_MS_MIN:
            said = f"{what} expires in {span_text(left_ms)}"
            yield Finding("certificate", Verdict.WARN, said, remedy)
        else:
            said = f"{what} is good for {span_text(left_ms)}"
            yield Finding("certificate", Verdict.OK, said)


def listener_findings(listeners: list[dict[str, Any]]) -> Iterator[Finding]:
    """One for each that is careless about something."""
    for each in listeners:
        for warning in each.get("warnings", ()):
            said, _, remedy = warning.partition(": ")
            text = f"{each['name']} ({each['url']}) is open to the network: {said}"
            yield Finding("listener", Verdict.WARN, text, remedy[:1].upper() + remedy[1:])
    if not any(each.get("warnings") for each in listeners):
        said = "none is open to the network without TLS, or to any web page"
        yield Finding("listeners", Verdict.OK, said)


def _amqp(node: Node) -> Finding:
    if node.token is not None:
        said = "a token is no login over AMQP"
        return Finding("amqp", Verdict.SKIPPED, said, "Give --user and --password")
    try:
        with node.broker("doctor"):
            return Finding("amqp", Verdict.OK, f"connected to port {node.amqp_port}")
    except BraidError as error:
        return _failed("amqp", error)


def _failed(check: str, error: BraidError) -> Finding:
    return Finding(check, Verdict.FAIL, " ".join(str(error).split()))


# --- the machine ---


def _machine(data_dir: Path | None) -> Iterator[Finding]:
    if data_dir is None:
        for check in ("disk", "sync", "open files"):
            said = "run this on the node's machine with --data-dir"
            yield Finding(check, Verdict.SKIPPED, said)
        return
    if not data_dir.is_dir():
        yield Finding("disk", Verdict.FAIL, f"{data_dir} is not a directory")
        return
    yield _disk(data_dir)
    yield _sync(data_dir)
    yield _open_files(data_dir)


def _disk(data_dir: Path) -> Finding:
    import shutil

    from braidmq.config.settings import LimitSettings

    marks = LimitSettings()
    usage = shutil.disk_usage(data_dir)
    said = f"{size_text(usage.free)} free of {size_text(usage.total)}"
    remedy = "Free disk space, or shorten retention"
    if usage.free < marks.disk_block_bytes:
        return Finding("disk", Verdict.FAIL, f"{said}: publishers are blocked", remedy)
    if usage.free < marks.disk_slow_bytes:
        return Finding("disk", Verdict.WARN, f"{said}: publishers are slowed", remedy)
    return Finding("disk", Verdict.OK, said)


def _sync(data_dir: Path) -> Finding:
    """As the journal does it: blocks that are there already, then fdatasync."""
    import tempfile
    from statistics import median

    took_ms: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=data_dir, buffering=0) as file:
            for _ in range(SYNCS):
                file.seek(0)
                file.write(bytes(SYNC_BYTES))
                began_s = time.perf_counter()
                os.fdatasync(file.fileno())
                took_ms.append((time.perf_counter() - began_s) * 1000)
    except OSError as error:
        said = f"cannot write to {data_dir}: {error.strerror}"
        return Finding("sync", Verdict.WARN, said, "Run this as the node's user")
    middle, worst = median(took_ms), max(took_ms)
    said = f"{middle:.2f} ms, at worst {worst:.2f} ms of {SYNCS}"
    if middle > SYNC_MS_MAX:
        return Finding("sync", Verdict.WARN, said, "Confirms wait for it: use a faster disk")
    return Finding("sync", Verdict.OK, said)


def _open_files(data_dir: Path) -> Finding:
    process = _process(data_dir)
    if process is None:
        said = f"no node runs on {data_dir}, or this user may not see it"
        return Finding("open files", Verdict.WARN, said)
    used, most = process
    said = f"{used} of {most} in use"
    if used > most * OPEN_FILES_USED_MAX or most < OPEN_FILES_MIN:
        remedy = (
            "Each connection takes one: raise the limit (ulimit -n, LimitNOFILE), then restart it"
        )
        return Finding("open files", Verdict.WARN, said, remedy)
    return Finding("open files", Verdict.OK, said)


def _process(data_dir: Path) -> tuple[int, int] | None:
    """Open files, and how many there may be, of the node that has the directory locked."""
    from braidmq.storage.directory import LOCK_FILE

    try:
        at = Path("/proc") / str(int((data_dir / LOCK_FILE).read_text()))
        used = len(list((at / "fd").iterdir()))
        (limit,) = [
            line.removeprefix("Max open files").split()[0]
            for line in (at / "limits").read_text().splitlines()
            if line.startswith("Max open files")
        ]
        return used, int(limit)
    except (OSError, ValueError):
        return None
