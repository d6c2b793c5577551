"""All of the HTTP gateway, put together."""

from pathlib import Path

import msgspec

from braidmq.gateways.broker import Broker
from braidmq.gateways.http.access import Access
from braidmq.gateways.http.admin import Admin
from braidmq.gateways.http.app import App
from braidmq.gateways.http.bulk import Bulk
from braidmq.gateways.http.bulk_publishing import BulkPublishing
from braidmq.gateways.http.dead_letters import DeadLetters
from braidmq.gateways.http.delayed import DelayedResource
from braidmq.gateways.http.desk import Desk
from braidmq.gateways.http.exchanges import Exchanges
from braidmq.gateways.http.groups import Groups
from braidmq.gateways.http.guard import Guard
from braidmq.gateways.http.health import Health
from braidmq.gateways.http.leases import LeasesResource
from braidmq.gateways.http.node import Figures, Node
from braidmq.gateways.http.openapi import describe
from braidmq.gateways.http.operating import MetricsSource, Operating
from braidmq.gateways.http.operations import operations_of
from braidmq.gateways.http.pipelines import PipelinesResource
from braidmq.gateways.http.policies import Policies
from braidmq.gateways.http.producers import Producers
from braidmq.gateways.http.publishing import Publishing
from braidmq.gateways.http.quarantine import QuarantineResource
from braidmq.gateways.http.reading import Reading
from braidmq.gateways.http.receipts import Answers
from braidmq.gateways.http.streams import MetricsStream
from braidmq.gateways.http.subscriptions import Subscriptions
from braidmq.gateways.http.templates import Templates
from braidmq.gateways.http.topics import Topics
from braidmq.gateways.http.transactions import Transactions
from braidmq.gateways.http.waiting import Waiting
from braidmq.gateways.http.withdrawals import Withdrawals
from braidmq.gateways.web import WebCallers
from braidmq.security.accounts import Accounts
from braidmq.security.logins import Logins
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
    Subscriptions,
    Groups,
    Answers,
    DelayedResource,
    DeadLetters,
    Exchanges,
    Templates,
    Policies,
    PipelinesResource,
    Node,
    Operating,
    QuarantineResource,
    Admin,
)


def openapi_text() -> str:
    """The document that a node serves, as docs/openapi.json has it."""
    document = describe([each for resource in RESOURCES for each in operations_of(resource)])
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def make_api(
    broker: Broker,
    accounts: Accounts,
    logins: Logins,
    tokens: Tokens,
    health: Health,
    metrics: MetricsSource,
    data_dir: Path | None = None,
    web: WebCallers | None = None,
) -> App:
    """``data_dir``: where bulk readers on this machine find the segments, if they may."""
    access = Access(accounts, logins, tokens, broker.clock)
    desk = Desk(broker, access)
    waiting = Waiting(broker)
    figures = Figures(desk)
    resources = [
        health,
        Topics(desk),
        Publishing(desk),
        Producers(desk),
        Transactions(desk),
        Reading(desk),
        Bulk(desk, data_dir),
        BulkPublishing(desk),
        LeasesResource(desk),
        Subscriptions(desk, waiting),
        Groups(desk, waiting),
        Answers(desk, waiting),
        DelayedResource(desk),
        DeadLetters(desk),
        Exchanges(desk),
        Templates(desk),
        Policies(desk),
        PipelinesResource(desk),
        Node(desk, figures),
        Operating(desk, metrics),
        QuarantineResource(desk),
        Admin(accounts, logins, tokens, broker.durable, broker.clock),
    ]
    assert {type(each) for each in resources} == set(RESOURCES)
    stream = MetricsStream(figures)
    guard = Guard(desk, tokens, metrics)
    app = App(guard, resources, stream, web, broker.intake)
    accounts.watch(Withdrawals(desk, waiting).on_change)
    app.on_stop += [waiting.stop, stream.stop]
    return app
