"""All of the HTTP gateway, put together."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from braidmq.api.access import Access
from braidmq.api.app import App
from braidmq.api.context import ApiContext
from braidmq.api.endpoints import operations_of
from braidmq.api.guard import Guard
from braidmq.api.long_polls import Waiting
from braidmq.api.openapi import describe
from braidmq.api.resources.admin import Admin
from braidmq.api.resources.audit import AuditResource
from braidmq.api.resources.bulk import Bulk
from braidmq.api.resources.bulk_publishing import BulkPublishing
from braidmq.api.resources.clients import Clients
from braidmq.api.resources.configuration import Configuration, Reloader
from braidmq.api.resources.dead_letters import DeadLetters
from braidmq.api.resources.delayed import DelayedResource
from braidmq.api.resources.exchanges import Exchanges
from braidmq.api.resources.groups import Groups
from braidmq.api.resources.health import Health
from braidmq.api.resources.leases import LeasesResource
from braidmq.api.resources.metrics_stream import MetricsStream
from braidmq.api.resources.monitoring import MetricsSource, Monitoring
from braidmq.api.resources.node import Figures, Node
from braidmq.api.resources.pipelines import PipelinesResource
from braidmq.api.resources.policies import Policies
from braidmq.api.resources.producers import Producers
from braidmq.api.resources.publishing import Publishing
from braidmq.api.resources.quarantine import QuarantineResource
from braidmq.api.resources.reading import Reading
from braidmq.api.resources.receipts import Answers
from braidmq.api.resources.returning import AllDeadLetters
from braidmq.api.resources.schedules import SchedulesResource
from braidmq.api.resources.statistics import Statistics
from braidmq.api.resources.subscriptions import Subscriptions
from braidmq.api.resources.templates import Templates
from braidmq.api.resources.topics import Topics
from braidmq.api.resources.transactions import Transactions
from braidmq.api.resources.usage import UsageResource
from braidmq.api.settings import HttpSettings
from braidmq.api.withdrawals import Withdrawals
from braidmq.audit.trail import AuditTrail
from braidmq.gateways.mqtt.lists import MqttLists
from braidmq.net.listeners import Listener
from braidmq.net.settings import ListenerSpec
from braidmq.net.web_origins import WebCallers
from braidmq.runtime.node_loop import NodeLoop
from braidmq.security.accounts import Accounts
from braidmq.security.logins import Logins
from braidmq.security.token_logins import TokenLogins
from braidmq.security.tokens import Tokens

RESOURCES = (
    Health,
    Topics,
    Publishing,
    Producers,
    Transactions,
    Reading,
    Bulk,
    BulkPublishing,
    LeasesResource,
    SchedulesResource,
    Subscriptions,
    Groups,
    Answers,
    DelayedResource,
    DeadLetters,
    AllDeadLetters,
    Exchanges,
    Templates,
    Policies,
    PipelinesResource,
    Node,
    Monitoring,
    Statistics,
    UsageResource,
    Clients,
    QuarantineResource,
    Configuration,
    AuditResource,
    Admin,
)


def openapi_text() -> str:
    """The document that a node serves, as docs/openapi.json has it."""
    document = describe([each for resource in RESOURCES for each in operations_of(resource)])
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def make_api(
    node_loop: NodeLoop,
    accounts: Accounts,
    logins: Logins,
    tokens: Tokens,
    health: Health,
    metrics: MetricsSource,
    data_dir: Path | None = None,
    web: WebCallers | None = None,
    listeners: Sequence[Listener] = (),
    settings: HttpSettings | None = None,
    mqtt: MqttLists | None = None,
    reloader: Reloader | None = None,
    audit: AuditTrail | None = None,
    warnings_of: Callable[[ListenerSpec], Iterable[str]] = lambda _: (),
) -> App:
    """``data_dir``: where bulk readers on this machine find the segments, if they may."""
    token_logins = logins.tokens or TokenLogins(accounts, tokens, node_loop.clock)
    access = Access(accounts, logins, token_logins, node_loop.clock)
    context = ApiContext(node_loop, access)
    waiting = Waiting(node_loop, (settings or HttpSettings()).poll_wait_ms)
    figures = Figures(context)
    resources = [
        health,
        Topics(context),
        Publishing(context),
        Producers(context),
        Transactions(context),
        Reading(context),
        Bulk(context, data_dir),
        BulkPublishing(context),
        LeasesResource(context),
        SchedulesResource(context),
        Subscriptions(context, waiting),
        Groups(context, waiting),
        Answers(context, waiting),
        DelayedResource(context),
        DeadLetters(context),
        AllDeadLetters(context),
        Exchanges(context),
        Templates(context),
        Policies(context),
        PipelinesResource(context),
        Node(context, figures, listeners, warnings_of),
        Monitoring(context, metrics),
        Statistics(context),
        UsageResource(context),
        Clients(context, mqtt),
        QuarantineResource(context),
        Configuration(reloader),
        AuditResource(audit),
        Admin(
            accounts,
            logins,
            tokens,
            node_loop.durable,
            node_loop.clock,
            node_loop.view.state.quotas,
        ),
    ]
    assert {type(each) for each in resources} == set(RESOURCES)
    stream = MetricsStream(figures, access.left_s)
    guard = Guard(context, tokens, metrics, mqtt)
    app = App(guard, resources, stream, web, node_loop.input_budget, node_loop.rates)
    accounts.watch(Withdrawals(context, waiting).on_change)
    accounts.watch(stream.recheck)
    app.on_stop += [waiting.stop, stream.stop]
    app.on_settings.append(waiting.replace)
    return app
