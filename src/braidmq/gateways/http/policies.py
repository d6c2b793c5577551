"""Policies over HTTP, for administrators.

GET              /v1/policies[/{namespace}]
GET PUT DELETE   /v1/policies/{namespace}/{name}
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from braidmq.gateways.amqp import policies
from braidmq.gateways.amqp.policies import ApplyTo, Policy
from braidmq.gateways.broker import Broker
from braidmq.gateways.http.admin import (
    NO_STORE,
    Body,
    Table,
    as_json,
    read_body,
    refuse_if_only_new,
)
from braidmq.security.accounts import Accounts


class PolicyBody(Body, frozen=True):
    pattern: str
    definition: dict[str, Any]
    priority: int = 0
    apply_to: ApplyTo = "all"


class PolicyAdmin:
    def __init__(self, broker: Broker, accounts: Accounts) -> None:
        self._broker = broker
        self._accounts = accounts

    def table(self) -> Table:
        return {
            ("policies",): {"GET": self.list_policies},
            ("policies", "*"): {"GET": self.list_policies},
            ("policies", "*", "*"): {
                "GET": self.get_policy,
                "PUT": self.put_policy,
                "DELETE": self.delete_policy,
            },
        }

    async def list_policies(self, _: Request, namespace: str | None = None) -> Response:
        if namespace is not None:
            self._accounts.namespace(namespace)
        return as_json(policies.list_policies(self._broker.engine, namespace))

    async def get_policy(self, _: Request, namespace: str, name: str) -> Response:
        return as_json(policies.find_policy(self._broker.engine, namespace, name))

    async def put_policy(self, request: Request, namespace: str, name: str) -> Response:
        body = await read_body(request, PolicyBody)
        self._accounts.namespace(namespace)
        policy = Policy(
            namespace, name, body.pattern, body.definition, body.priority, body.apply_to
        )
        broker = self._broker
        known = any(each.name == name for each in policies.list_policies(broker.engine, namespace))
        if known:
            refuse_if_only_new(request, f"policy {name!r}")
        broker.settle()
        policies.set_policy(broker.engine, policy, now_ms=broker.now_ms())
        return await self._kept(200 if known else 201)

    async def delete_policy(self, _: Request, namespace: str, name: str) -> Response:
        broker = self._broker
        broker.settle()
        policies.delete_policy(broker.engine, namespace, name, now_ms=broker.now_ms())
        return await self._kept(204)

    async def _kept(self, status: int) -> Response:
        # Queues may have dropped or moved messages: their consumers hear of it in the next turn.
        self._broker.touch()
        await self._broker.durable(self._broker.engine.store.journal.last_lsn)
        return Response(status_code=status, headers=NO_STORE)
