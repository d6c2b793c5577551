"""Templates: settings for topics by the pattern of their names (catalogue row B7)."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from braidmq.api.context import ApiContext, InNamespace, ListInNamespace, require_storable
from braidmq.api.endpoints import Answer, Body, Call, operation
from braidmq.api.paging import Page, page_of
from braidmq.engine.errors import TooManyResizes, UnknownTemplate
from braidmq.engine.policy import IllegalPolicy, Template
from braidmq.model.errors import NotFound
from braidmq.security.permissions import check_pattern
from braidmq.security.records import check_name, kept_name
from braidmq.security.rights import TARGETS, administering

PRIORITY_MAX = 1_000_000


class NewTemplate(Body, frozen=True):
    pattern: Annotated[
        str, Meta(description="A regular expression that names contain", examples=["^shop[.]"])
    ]
    settings: Annotated[dict[str, Any], Meta(description="Any of TopicPolicy")]
    priority: Annotated[
        int,
        Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX, description="Of several the highest counts"),
    ] = 0


class TemplateInfo(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    pattern: str
    settings: dict[str, Any]
    priority: int


class Templates:
    def __init__(self, context: ApiContext) -> None:
        self._context = context

    @operation(
        "GET",
        "/v1/templates",
        right=administering("query.namespace"),
        tag="templates",
        errors=(NotFound,),
    )
    async def list_templates(self, call: Call, query: ListInNamespace) -> list[TemplateInfo] | Page:
        """List templates, by name."""
        every = [each for _, each in self._context.engine().templates.of(query.namespace)]
        found, cursor = await page_of(every, query, lambda each: (each.name,), tuple[str])
        return Page([shown(query.namespace, each.name, each) for each in found], cursor)

    @operation(
        "GET",
        "/v1/templates/{name}",
        right=administering("query.namespace"),
        tag="templates",
        errors=(UnknownTemplate,),
    )
    async def describe_template(self, call: Call, name: str, query: InNamespace) -> TemplateInfo:
        """Describe a template."""
        found = self._context.engine().state.templates.get((query.namespace, name))
        if found is None:
            raise UnknownTemplate(f"there is no template {name!r} in namespace {query.namespace!r}")
        return shown(query.namespace, name, found)

    @operation(
        "PUT",
        "/v1/templates/{name}",
        right=administering("query.namespace").noting(TARGETS),
        tag="templates",
        statuses=(201, 200),
        errors=(NotFound, IllegalPolicy, TooManyResizes),
        examples=({"pattern": "^shop[.]", "settings": {"ttl_ms": 86_400_000}, "priority": 5},),
    )
    async def put_template(
        self, call: Call, name: str, query: InNamespace, body: NewTemplate
    ) -> TemplateInfo | Answer:
        """Make or change a template; topics that match it change at once."""
        check_name(name, "template name")
        check_pattern(body.pattern)
        require_storable(body.settings)
        engine = self._context.engine()
        known = (query.namespace, name) in engine.state.templates
        set_by = kept_name(call.user)
        made = Template(name, body.pattern, body.settings, body.priority, set_by=set_by)
        steps = engine.templates.putting(query.namespace, made, now_ms=self._context.now_ms)
        await self._context.node_loop.work(steps)
        await self._context.done()
        return Answer(shown(query.namespace, name, made), 200 if known else 201)

    @operation(
        "DELETE",
        "/v1/templates/{name}",
        right=administering("query.namespace"),
        tag="templates",
        statuses=(204,),
        errors=(UnknownTemplate,),
    )
    async def delete_template(self, call: Call, name: str, query: InNamespace) -> None:
        """Delete a template; topics that matched it change at once."""
        engine = self._context.engine()
        steps = engine.templates.deleting(query.namespace, name, now_ms=self._context.now_ms)
        await self._context.node_loop.work(steps)
        await self._context.done()


def shown(namespace: str, name: str, template: Template) -> TemplateInfo:
    return TemplateInfo(namespace, name, template.pattern, template.settings, template.priority)
