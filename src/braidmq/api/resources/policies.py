"""AMQP policies over HTTP: templates in RabbitMQ's words (gateways/policies.py)."""

from typing import Annotated, Any

from msgspec import Meta

from braidmq.api.context import NUMBER_MAX, ApiContext
from braidmq.api.endpoints import Answer, Body, Call, operation, refuse_if_only_new
from braidmq.api.paging import ListQuery, Page, page_of
from braidmq.api.problems import PreconditionFailed
from braidmq.api.requests import note
from braidmq.engine.errors import TooManyResizes, UnknownTemplate
from braidmq.engine.policy import IllegalPolicy
from braidmq.gateways import policies
from braidmq.gateways.policies import ApplyTo, Policy
from braidmq.model.errors import BadRequest, NotFound
from braidmq.security.records import kept_name
from braidmq.security.rights import ADMINISTRATOR, TARGETS, administering, managing


class PolicyBody(Body, frozen=True):
    pattern: Annotated[
        str, Meta(description="A regular expression that names contain", examples=["^shop[.]"])
    ]
    definition: Annotated[
        dict[str, Any], Meta(description="RabbitMQ's keys: `message-ttl`, `max-length`, …")
    ]
    priority: Annotated[
        int,
        Meta(ge=-NUMBER_MAX, le=NUMBER_MAX, description="Of several the highest counts, alone"),
    ] = 0
    apply_to: ApplyTo = "all"


class Policies:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation("GET", "/v1/policies", right=ADMINISTRATOR, tag="policies")
    async def list_policies(self, call: Call, query: ListQuery) -> list[Policy] | Page:
        """List policies of all namespaces, by namespace and name."""
        return await _page(policies.list_policies(self._context.engine()), query)

    @operation(
        "GET",
        "/v1/policies/{namespace}",
        right=managing("namespace"),
        tag="policies",
        errors=(NotFound,),
    )
    async def list_policies_of(
        self, call: Call, namespace: str, query: ListQuery
    ) -> list[Policy] | Page:
        """List policies of a namespace, by name."""
        return await _page(policies.list_policies(self._context.engine(), namespace), query)

    @operation(
        "GET",
        "/v1/policies/{namespace}/{name}",
        right=managing("namespace"),
        tag="policies",
        errors=(NotFound, UnknownTemplate),
    )
    async def describe_policy(self, call: Call, namespace: str, name: str) -> Policy:
        """Describe a policy."""
        return policies.find_policy(self._context.engine(), namespace, name)

    @operation(
        "PUT",
        "/v1/policies/{namespace}/{name}",
        right=administering("namespace").noting(TARGETS),
        tag="policies",
        statuses=(200, 201),
        errors=(NotFound, BadRequest, IllegalPolicy, TooManyResizes, PreconditionFailed),
        examples=(
            {"pattern": "^orders", "definition": {"max-length": 10_000}, "apply_to": "queues"},
        ),
    )
    async def put_policy(self, call: Call, namespace: str, name: str, body: PolicyBody) -> Answer:
        """Make or change a policy; queues and exchanges that match follow at once."""
        policy = Policy(
            namespace, name, body.pattern, body.definition, body.priority, body.apply_to
        )
        note(
            pattern=body.pattern,
            definition=str(body.definition),
            priority=body.priority,
            apply_to=body.apply_to,
        )
        engine = self._context.engine()
        known = any(each.name == name for each in policies.list_policies(engine, namespace))
        if known:
            refuse_if_only_new(call.request, f"policy {name!r}")
        now_ms, set_by = self._context.now_ms, kept_name(call.user)
        steps = policies.setting_policy(engine, policy, now_ms=now_ms, set_by=set_by)
        await self._context.node_loop.work(steps)
        await self._context.done()
        return Answer(None, 200 if known else 201)

    @operation(
        "DELETE",
        "/v1/policies/{namespace}/{name}",
        right=administering("namespace"),
        tag="policies",
        statuses=(204,),
        errors=(NotFound, UnknownTemplate),
    )
    async def delete_policy(self, call: Call, namespace: str, name: str) -> None:
        """Delete a policy; queues and exchanges that matched follow at once."""
        engine = self._context.engine()
        now_ms = self._context.now_ms
        steps = policies.deleting_policy(engine, namespace, name, now_ms=now_ms)
        await self._context.node_loop.work(steps)
        await self._context.done()


async def _page(found: list[Policy], query: ListQuery) -> Page:
    return Page(
        *await page_of(found, query, lambda each: (each.namespace, each.name), tuple[str, str])
    )
