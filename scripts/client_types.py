"""Writes what of the client follows from something else: ``python scripts/client_types.py``.

- ``client/answers.py``: what ``broker.admin`` answers, of docs/openapi.json
- ``client/sync_admin.py``: ``client/admin.py`` without ``await``
- docs/client-reference.md: the public names, of their docstrings

Run it with ``make openapi``, or when one of these changed: a test compares.
"""

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CLIENT = ROOT / "src" / "braidmq" / "client"
SCHEMAS: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"][
    "schemas"
]
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
WIDTH = 90


# --- answers ---


def type_of(schema: dict[str, Any], suffix: str = "") -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2] + suffix
    if "enum" in schema:
        return f"Literal[{', '.join(repr(each) for each in schema['enum'])}]"
    if "anyOf" in schema:
        return " | ".join(type_of(each, suffix) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list[{type_of(schema.get('items', {}), suffix)}]"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {type_of(values, suffix) if isinstance(values, dict) else 'Any'}]"
    return PLAIN.get(schema.get("type", ""), "Any")


def names_in(schema: Any) -> list[str]:
    """Schemas that one refers to."""
    if isinstance(schema, dict):
        own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
        return own + [name for each in schema.values() for name in names_in(each)]
    return [name for each in schema for name in names_in(each)] if isinstance(schema, list) else []


def reached(names: list[str]) -> list[str]:
    found: dict[str, None] = {}
    while names:
        name = names.pop()
        if name not in found:
            found[name] = None
            names += names_in(SCHEMAS[name])
    return sorted(found)


def typed_dict(name: str, suffix: str = "") -> str:
    schema = SCHEMAS[name]
    total = ", total=False" if suffix else ""
    properties = schema.get("properties", {})
    lines = [f"class {name}{suffix}(TypedDict{total}):"]
    if description := schema.get("description"):
        lines += [*docstring(description), ""]
    for field, about in properties.items():
        kind = type_of(about, suffix)
        if not suffix and field not in schema.get("required", ()):
            kind = f"NotRequired[{kind}]"
        lines.append(f"    {field}: {kind}")
        if description := about.get("description"):
            lines += docstring(description)
    return "\n".join(lines)


def docstring(text: str) -> list[str]:
    lines = textwrap.wrap(text.replace('"', "'"), WIDTH)
    lines[0] = '"""' + lines[0]
    lines[-1] += '"""'
    return [f"    {line}" for line in lines]


def answers() -> str:
    used = {node.id for node in ast.walk(admin()) if isinstance(node, ast.Name)}
    named = reached([name for name in SCHEMAS if name in used])
    settings = reached(["TopicPolicy"])
    classes = [typed_dict(name) for name in named]
    classes += [typed_dict(name, "Settings") for name in settings]
    return formatted(
        '"""What ``broker.admin`` answers: the schemas of docs/openapi.json, and those of a\n'
        'topic\'s settings, of which any may be left out; written by scripts/client_types.py."""\n'
        "from __future__ import annotations\n"
        "from typing import Any, Literal, NotRequired, TypedDict\n\n" + "\n\n".join(classes)
    )


# --- the synchronous twin ---


def admin() -> ast.Module:
    return ast.parse((CLIENT / "admin.py").read_text())


def sync_admin() -> str:
    module = admin()
    (twin,) = (each for each in module.body if isinstance(each, ast.ClassDef))
    imports = [ast.unparse(each) for each in module.body if isinstance(each, ast.ImportFrom)]
    methods = [
        called(each)
        for each in twin.body
        if isinstance(each, ast.AsyncFunctionDef) and not each.name.startswith("_")
    ]
    return formatted(
        '"""``broker.admin`` of ``connect_sync``: ``admin.py`` without ``await``, written by\n'
        'scripts/client_types.py."""\n'
        + "\n".join(imports)
        + "\nfrom collections.abc import Coroutine\nfrom typing import Any, TypeVar\n"
        + "from braidmq.client.admin import Admin, Json, Mode\n"
        + "from braidmq.client.threads import LoopThread\n"
        + '\n_T = TypeVar("_T")\n\nclass SyncAdmin:\n'
        + '    """As ``Admin``: every method waits for its answer."""\n'
        + "    def __init__(self, thread: LoopThread, admin: Admin) -> None:\n"
        + "        self._thread = thread\n        self._admin = admin\n\n"
        + "    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:\n"
        + "        return self._thread.wait_for(work)\n\n"
        + "\n\n".join(methods)
    )


def called(method: ast.AsyncFunctionDef) -> str:
    """A method that waits for its twin."""
    said = method.args
    parts = [each.arg for each in said.args[1:]]
    parts += [f"*{said.vararg.arg}"] if said.vararg else []
    parts += [f"{each.arg}={each.arg}" for each in said.kwonlyargs]
    parts += [f"**{said.kwarg.arg}"] if said.kwarg else []
    about = ast.get_docstring(method)
    body = [f'"""{about}"""'] if about else []
    body.append(f"return self._wait(self._admin.{method.name}({', '.join(parts)}))")
    returns = ast.unparse(method.returns) if method.returns else "None"
    head = f"    def {method.name}({ast.unparse(said)}) -> {returns}:"
    return "\n".join([head, *(textwrap.indent(each, "        ") for each in body)])


def formatted(code: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for work in (["check", "--fix-only", "--select", "F401,I,UP", "-q"], ["format"]):
        command = [ruff, *work, "--stdin-filename", str(CLIENT / "written.py"), "-"]
        done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
        assert not done.stderr, done.stderr
        code = done.stdout
    return code


def reference() -> str:
    from braidmq.client.reference import page  # stands on what is written above

    return page()


WRITTEN = {
    CLIENT / "answers.py": answers,
    CLIENT / "sync_admin.py": sync_admin,
    ROOT / "docs" / "client-reference.md": reference,
}


if __name__ == "__main__":
    for path, written in WRITTEN.items():
        path.write_text(written())
