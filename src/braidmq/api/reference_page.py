"""``/docs``: the reference of the API as one page of HTML that needs no network and no scripts.

It is made from the OpenAPI document that the node serves, so that both say the same.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any

Json = dict[str, Any]

STYLE = """\
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; display: flex }
nav { width: 15rem; padding: 1rem; position: sticky; top: 0; height: 100vh; overflow: auto;
      box-sizing: border-box; flex: none }
nav a { display: block; text-decoration: none; padding: .1rem 0 }
main { padding: 1rem 2rem 6rem; max-width: 60rem; min-width: 0 }
code, pre { font: 13px/1.4 ui-monospace, monospace }
pre { overflow: auto; padding: .6rem; background: #8882; border-radius: 4px }
details { border: 1px solid #8884; border-radius: 4px; margin: .4rem 0; padding: 0 .8rem }
details[open] { padding-bottom: .6rem }
summary { cursor: pointer; padding: .4rem 0 }
summary span { opacity: .75; margin-left: .6rem }
.method { display: inline-block; width: 4.2rem; font-weight: 700 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
         border-bottom: 1px solid #8883 }
@media (max-width: 50rem) {
  body { display: block }
  nav { position: static; height: auto; width: auto }
}
"""

CODE = re.compile(r"`([^`]+)`")


def page(document: Json) -> str:
    return "".join(_parts(document))


def _parts(document: Json) -> Iterator[str]:
    info, schemas = document["info"], document["components"]["schemas"]
    by_tag: dict[str, list[tuple[str, str, Json]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    title = escape(f"{info['title']} {info['version']}: the HTTP API")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<style>{STYLE}</style></head><body><nav><b>{title}</b>"
    tags = [each for each in document["tags"] if each["name"] in by_tag]
    for tag in tags:
        yield f'<a href="#{_anchor(tag["name"])}">{escape(tag["name"])}</a>'
    yield '<a href="#schemas">schemas</a><a href="/openapi.json">openapi.json</a></nav><main>'
    yield f"<h1>{title}</h1>{_prose(info['description'])}"
    for tag in tags:
        yield f'<h2 id="{_anchor(tag["name"])}">{escape(tag["name"])}</h2>'
        yield _prose(tag["description"])
        for method, path, operation in by_tag[tag["name"]]:
            yield from _operation(method, path, operation)
    yield '<h2 id="schemas">schemas</h2>'
    for name, schema in schemas.items():
        yield from _schema(name, schema)
    yield "</main></body></html>\n"


def _operation(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f'<details id="{escape(operation["operationId"])}"><summary>'
    yield f'<code><span class="method">{method}</span>{escape(path)}</code>'
    yield f"<span>{escape(operation['summary'])}</span></summary>"
    yield _prose(operation["description"])
    if operation["parameters"]:
        yield "<table><tr><th>parameter</th><th>in</th><th>type</th><th></th></tr>"
        for each in operation["parameters"]:
            needed = "" if not each["required"] else " (needed)"
            yield f"<tr><td><code>{escape(each['name'])}</code>{needed}</td><td>{each['in']}</td>"
            yield f"<td>{_type(each['schema'])}</td>"
            yield f"<td>{_inline(each.get('description', ''))}</td></tr>"
        yield "</table>"
    if "requestBody" in operation:
        for kind, media in operation["requestBody"]["content"].items():
            yield f"<p>Body: {_type(media['schema'])} as <code>{escape(kind)}</code></p>"
            for example in media.get("examples", {}).values():
                yield f"<pre>{escape(json.dumps(example['value'], indent=2))}</pre>"
    yield "<table><tr><th>status</th><th>answer</th><th></th></tr>"
    for status, response in operation["responses"].items():
        kinds = {_type(media["schema"]) for media in response.get("content", {}).values()}
        said = [_inline(response["description"])]
        for name, header in response.get("headers", {}).items():
            said.append(f"header <code>{escape(name)}</code>: {_inline(header['description'])}")
        yield f"<tr><td>{status}</td><td>{' or '.join(sorted(kinds))}</td>"
        yield f"<td>{'<br>'.join(said)}</td></tr>"
    yield "</table></details>"


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield f'<details id="schema-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
    yield _prose(schema.get("description", ""))
    if "properties" in schema:
        required = schema.get("required", ())
        yield "<table><tr><th>field</th><th>type</th><th></th></tr>"
        for field, each in schema["properties"].items():
            needed = " (always there)" if field in required else ""
            yield f"<tr><td><code>{escape(field)}</code>{needed}</td><td>{_type(each)}</td>"
            yield f"<td>{_inline(each.get('description', ''))}</td></tr>"
        yield "</table>"
    else:
        yield f"<p>{_type(schema)}</p>"
    yield "</details>"


def _type(schema: Json) -> str:
    """In a few words, with a link to what has a name."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(each) for each in schema[several])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(each))}</code>" for each in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        parts = schema.get("prefixItems") or [schema.get("items") or {}]
        return f"list of {', '.join(_type(each) for each in parts)}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    if schema.get("format") == "binary":
        return "bytes"
    bounds = [
        f"{word} {schema[name]}"
        for name, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "at most"))
        if name in schema
    ]
    default = schema.get("default")
    if default not in (None, "", [], {}):
        bounds.append(f"default {json.dumps(default)}")
    return escape(" ".join([str(kind), *bounds]))


def _prose(text: str) -> str:
    paragraphs = [part for part in text.strip().split("\n\n") if part]
    return "".join(f"<p>{_inline(' '.join(part.split()))}</p>" for part in paragraphs)


def _inline(text: str) -> str:
    return CODE.sub(r"<code>\1</code>", escape(text))


def _anchor(name: str) -> str:
    return escape(name.replace(" ", "-"))
