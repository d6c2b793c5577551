"""Every command of ``braid``, and how it is tried."""

from typing import Any, NamedTuple


class Row(NamedTuple):
    """The rest of a command's line, where it works, where it is misused, and where what it names is
    not there; None where that can't be."""

    works: str | None = ""
    wrong: str = "--no-such-option"
    unknown: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    only_looks: bool = False
    json: bool = True
    local: bool = False
    """It needs no node."""
    anyone: bool = False
    """It works without any permission; what it lists may be nothing."""
    also: str | None = None
    """Another line that works."""
    raw: bool = False
    """It looks for a name that the node made: what it is told is not made steady before."""


def looks(works: str = "", unknown: str | None = None, **more: object) -> Row:
    return Row(works, unknown=unknown, only_looks=True, **more)  # type: ignore[arg-type]


def local(works: str | None, **more: object) -> Row:
    return Row(works, local=True, **more)  # type: ignore[arg-type]


TOPIC = ("topics create t --partitions 2", "publish t 1 2 3 --partition 0")
NO_TOPIC = ("topics delete t --yes",)

LAKE: dict[str, Any] = {"before": ("@lake",), "after": ("@gone lake",)}
DATA: dict[str, Any] = {"before": ("@data",), "after": ("@gone data nothing",)}

ELSEWHERE = {
    "serve": "tests/test_serve.py",
    "storage retry": "tests/cli/test_cli_storage.py",
    "storage skip": "tests/cli/test_cli_storage.py",
    "pipeline run": "tests/pipeline/test_run_command.py",
    "config show": "tests/config/test_reference.py",
    "bench amqp": "tests/cli/test_cli_node.py",
    "bench mqtt": "tests/loadgen/test_mqtt_runs.py",
}
"""What prints nothing steady where it works, or needs damaged files: where it is tried."""

ROWS: dict[str, Row] = {
    "publish": Row("t one two --key k", "t x --priority highest", "nothing x", TOPIC, NO_TOPIC),
    "consume": looks("orders --last 3", "nothing", wrong="orders --last 3 --from 1h", json=True),
    "top": looks("--once", wrong="--interval soon", json=True),
    "doctor": looks("", json=True),
    "usage": looks("--daily --namespace shop", wrong="--from yesterday"),
    "audit": looks("--kind administration --text /v1/users/ann", wrong="--kind nothing"),
    "init": local(
        "home --new-password geheim --host broker.example.com",
        wrong="home --user a:b",
        after=("@gone home",),
    ),
    "serve": local(None, wrong="--http-port 70000", json=False),
    "topics list": looks(),
    "topics show": looks("orders", "nothing"),
    "topics consumers": looks("payments", "nothing"),
    "topics create": Row("t --partitions 2 --set ttl_ms=2h", "t --set ttl", None, after=NO_TOPIC),
    "topics alter": Row(
        "t --set retention.bytes=1GiB", "t", "nothing --set ttl_ms=1h", TOPIC, NO_TOPIC
    ),
    "topics delete": Row("t --yes", "t", "nothing --yes", TOPIC, NO_TOPIC),
    "topics purge": Row(
        "t --yes", "t", "nothing --yes", (*TOPIC, "consume t --group g --count 1"), NO_TOPIC
    ),
    "groups list": looks("", "--topic nothing"),
    "groups show": looks("billing", "nobody"),
    "groups seek": Row(
        "g earliest --yes",
        "g backwards --yes",
        "nobody earliest --yes",
        (*TOPIC, "consume t --group g --count 1"),
        NO_TOPIC,
    ),
    "groups delete": Row(
        "g --yes", "g", "nobody --yes", (*TOPIC, "consume t --group g --count 1"), NO_TOPIC
    ),
    "dlq list": looks("", "nothing", wrong="--start 3"),
    "dlq show": looks("payments 0", "payments 99", wrong="payments first"),
    "dlq retry": looks("payments --all --dry-run", "nothing --all", wrong="payments"),
    "dlq purge": Row(
        "t --all --yes",
        "t",
        "t 99 --yes",
        (*TOPIC, "consume t --group g --reject bad"),
        NO_TOPIC,
    ),
    "delayed list": looks("orders", "nothing"),
    "delayed count": looks("orders", "nothing"),
    "delayed cancel": Row(
        "t 0 0 --yes",
        "t 0 0",
        "t 0 99 --yes",
        ("topics create t --partitions 1", "publish t later --delay 1h"),
        NO_TOPIC,
    ),
    "schedules list": looks("", "nothing"),
    "schedules show": looks("orders report", "orders nothing"),
    "schedules add": Row(
        "t tick tock --every 1h", "t tick tock", "nothing a b --every 1h", TOPIC, NO_TOPIC
    ),
    "schedules pause": Row(
        "t tick", "t", "t nothing", (*TOPIC, "schedules add t tick tock --every 1h"), NO_TOPIC
    ),
    "schedules resume": Row(
        "t tick", "t", "t nothing", (*TOPIC, "schedules add t tick tock --every 1h"), NO_TOPIC
    ),
    "schedules delete": Row(
        "t tick --yes",
        "t tick",
        "t nothing --yes",
        (*TOPIC, "schedules add t tick tock --every 1h"),
        NO_TOPIC,
    ),
    "leases list": looks(anyone=True),
    "leases end": Row("kept --yes", "kept", "nothing --yes", ("@lease kept",)),
    "transactions list": looks(anyone=True),
    "transactions show": looks("nightly-17", "nothing"),
    "transactions commit": Row("work-{n}", "", "nothing", ("@transaction work-{n}",)),
    "transactions abort": Row(
        "work-{n} --yes", "work-{n}", "nothing --yes", ("@transaction work-{n}",)
    ),
    "exchanges list": looks(),
    "exchanges create": Row(
        "e --kind topic", "e --argument x", after=("exchanges delete e --yes",)
    ),
    "exchanges delete": Row("e --yes", "e", "nothing --yes", ("exchanges create e",)),
    "bindings list": looks("", "--source nothing"),
    "bindings create": Row("amq.topic t --key a.b", "amq.topic", "nothing t", TOPIC, NO_TOPIC),
    "bindings delete": Row(
        "amq.topic t --key a.b --yes",
        "amq.topic t",
        "nothing t --yes",
        (*TOPIC, "bindings create amq.topic t --key a.b"),
        NO_TOPIC,
    ),
    "connections list": looks(anyone=True),
    "connections history": looks("--namespace mill", wrong="--limit 0", anyone=True),
    "connections close": Row("{made} --yes", "{made}", "nobody-1 --yes", ("@connection",)),
    "consumers list": looks("", "nothing"),
    "mqtt sessions": looks(anyone=True),
    "mqtt filters": looks("thermometer-7", "thermometer-8"),
    "mqtt retained": looks("", wrong="a/#/b"),
    "stats reliability": looks(),
    "stats delays": looks(),
    "stats priorities": looks("orders", "nothing"),
    "stats transactions": looks(),
    "users list": looks(),
    "users add": Row("bob x --tag monitoring", "a:b x", None, (), ("users delete bob --yes",)),
    "users password": Row(
        "bob y", "", "nobody y", ("users add bob x",), ("users delete bob --yes",)
    ),
    "users tags": Row(
        "bob monitoring", "", "nobody x", ("users add bob x",), ("users delete bob --yes",)
    ),
    "users delete": Row("bob --yes", "bob", "nobody --yes", ("users add bob x",)),
    "tokens list": looks("--for ann"),
    "tokens create": Row(
        "--description build --expires 30d", "--expires never", "--for nobody", anyone=True
    ),
    "tokens revoke": Row("{made} --yes", "{made}", "0 --yes", ("@token",), anyone=True, raw=True),
    "permissions list": looks("--namespace shop", "--namespace nowhere"),
    "permissions set": Row(
        "bob ^a .* .* -n yard",
        "bob ( .* .* -n yard",
        "nobody a b c -n yard",
        ("users add bob x",),
        ("users delete bob --yes",),
    ),
    "permissions clear": Row(
        "bob -n yard --yes",
        "bob -n yard",
        "nobody -n yard --yes",
        ("users add bob x", "permissions set bob a b c -n yard"),
        ("users delete bob --yes",),
    ),
    "policies list": looks("--namespace shop", "--namespace nowhere"),
    "policies set": Row(
        'p ^a \'{"message-ttl": "1h"}\' -n yard',
        "p ^a { -n yard",
        "p ^a {} -n nowhere",
        after=("policies delete p -n yard --yes",),
    ),
    "policies delete": Row(
        "p -n yard --yes",
        "p -n yard",
        "nothing -n yard --yes",
        ("policies set p ^a '{\"max-length\": 1}' -n yard",),
    ),
    "templates list": looks(),
    "templates show": looks("logs", "nothing"),
    "templates set": Row(
        "short ^a --set ttl_ms=1d",
        "short ( --set ttl_ms=1d",
        None,
        after=("templates delete short --yes",),
    ),
    "templates delete": Row("s --yes", "s", "nothing --yes", ("templates set s ^zz",)),
    "namespaces list": looks(),
    "namespaces add": Row(
        "n --max-queues 7", "n --max-queues many", after=("namespaces delete n --yes",)
    ),
    "namespaces limits": Row(
        "n --max-queues 7",
        "n --max-queues many",
        "nowhere --max-queues 7",
        ("namespaces add n",),
        ("namespaces delete n --yes",),
    ),
    "namespaces quotas": looks("shop", "nowhere"),
    "namespaces delete": Row("n --yes", "n", "nowhere --yes", ("namespaces add n",)),
    "context add": local(
        "prod --url https://braid.example --user ann --password geheim",
        wrong="prod --token x --user y",
        after=("context remove prod --yes",),
        json=False,
    ),
    "context use": local(
        "prod",
        wrong="",
        unknown="nothing",
        before=("context add prod --user ann",),
        after=("context remove prod --yes",),
        json=False,
    ),
    "context list": local(
        "",
        before=(
            "context add prod --url https://braid.example --user ann --password geheim --use",
            "context add here --token braid_secret --namespace shop",
        ),
        after=("context remove prod --yes", "context remove here --yes"),
    ),
    "context show": local(
        "prod",
        unknown="nothing",
        before=("context add prod --user ann --password geheim",),
        after=("context remove prod --yes",),
    ),
    "context remove": local(
        "prod --yes", wrong="here", unknown="nothing --yes", before=("context add prod --user a",)
    ),
    "config reload": Row(),
    "log-level show": looks(),
    "log-level set": Row("info", "loud"),
    "pipeline new": local("report", wrong="a/b", after=("@gone report.toml",)),
    "pipeline check": local("usage", wrong="usage --set x", unknown="nothing.toml"),
    "pipeline run": local(None, wrong="archive --set x", unknown="nothing.toml", json=False),
    "pipeline export": local(
        "declared.toml --sdp project",
        wrong="archive",
        unknown="nothing.toml --sdp x",
        before=("@example declared.toml",),
        after=("@gone declared.toml project",),
    ),
    "pipeline list": looks("", before=("@pipeline archive shop",), also="--shipped", anyone=True),
    "pipeline status": looks("archive", "nothing", before=("@pipeline archive shop",)),
    "pipeline stop": Row("archive", "x --set y", "nothing", ("@pipeline archive yard",)),
    "lake info": local("lake", wrong="x --storage y", unknown="nothing", **LAKE),
    "lake optimize": local("lake", wrong="x --file-bytes many", unknown="nothing", **LAKE),
    "lake vacuum": local(
        "lake --dry-run --retention 0 --short",
        wrong="x --retention soon",
        unknown="nothing --yes",
        before=("@lake", "lake optimize lake"),
        after=("@gone lake",),
    ),
    "storage list": looks(),
    "storage retry": Row(None, "orders first", "nothing 0", json=False),
    "storage skip": Row(None, "orders 0", "nothing 0 --yes", json=False),
    "storage skip-entry": local(
        "--data-dir data --yes", wrong="--data-dir data", unknown="--data-dir nothing --yes", **DATA
    ),
    "storage rebuild": local(
        "--data-dir data --yes", wrong="--data-dir data", unknown="--data-dir nothing --yes", **DATA
    ),
    "config check": local(
        "node.toml",
        wrong="wrong.toml",
        unknown="nothing.toml",
        before=(
            "@file node.toml '[listeners]\nhttp_port = 8081\n'",
            "@file wrong.toml '[listeners]\nhttp_port = 70000\nhtpp = 1\n'",
        ),
        json=False,
    ),
    # Its reference page, docs/configuration.md, is compared elsewhere.
    "config show": local(None, wrong="--config nothing.toml", json=False),
    "bench amqp": local(None, wrong="--workload Z", unknown="--url amqp://127.0.0.1:1", json=False),
    "bench mqtt": local(None, wrong="--size 1", unknown="--url mqtt://127.0.0.1:1", json=False),
}
