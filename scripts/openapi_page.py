"""Write a page of the reference from an OpenAPI document: routes, headers and objects."""

import json
from collections.abc import Iterator
from typing import Any


def openapi_page(document: dict[str, Any], *, title: str, introduction: str) -> str:
    """Return the Markdown page of an HTTP API."""
    lines = [f"# {title}", "", introduction, ""]
    lines += ["| route | method | | body | response | errors |", "|---|---|---|---|---|---|"]
    headers: dict[str, dict[str, str]] = {"request": {}, "response": {}}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            lines.append(_route(path, method, operation))
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "header":
                    headers["request"][parameter["name"]] = parameter["description"]
            for name, header in operation["responses"].get("200", {}).get("headers", {}).items():
                headers["response"][name] = header["description"]
    for kind, names in headers.items():
        if names:
            lines += ["", f"## Headers of the {kind}", "", "| header | |", "|---|---|"]
            lines += [f"| `{name}` | {_cell(about)} |" for name, about in names.items()]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += ["", f"## {name}", "", schema.get("description", ""), "", *_fields(schema)]
    return "\n".join(lines) + "\n"


def _route(path: str, method: str, operation: dict[str, Any]) -> str:
    about = f"{operation['summary']}. {operation.get('description', '')}"
    if query := [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]:
        about += " Query: " + ", ".join(f"`{name}`" for name in query) + "."
    responses = operation["responses"]
    good: dict[str, Any] = next((one for status, one in responses.items() if status < "300"), {})
    errors = ", ".join(status for status in sorted(responses) if status >= "400")
    cells = [
        f"`{path}`",
        method.upper(),
        _cell(about),
        _content_type(operation.get("requestBody", {})),
        _content_type(good),
        errors,
    ]
    return f"| {' | '.join(cells)} |"


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    yield "| field | type | default | |"
    yield "|---|---|---|---|"
    for name, field in schema["properties"].items():
        # Fields of responses have no default: they are always present.
        default = f"`{json.dumps(field['default'])}`" if field.get("default") is not None else ""
        about = _cell(field.get("description", ""))
        yield f"| `{name}` | {_type(field)} | {default} | {about} |"


def _content_type(message: dict[str, Any]) -> str:
    content = message.get("content", {})
    if "application/json" in content:
        return _type(content["application/json"].get("schema", {}))
    return ", ".join(f"`{kind}`" for kind in content)


def _type(schema: dict[str, Any]) -> str:
    """Write a JSON schema as a type, with links to the sections of objects."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        choices = schema.get("enum") or [schema["const"]]
        return " or ".join(f"`{json.dumps(choice)}`" for choice in choices)
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any" if schema else ""))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
