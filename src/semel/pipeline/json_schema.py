"""The JSON Schema of a pipeline file, for editors; it is made of the same models that read files.

Always true: a key that `semel check` accepts is in the schema, with its description.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.pipeline.settings import FileSections
from semel.pipeline.sink_settings import BUILT_IN, LOADER, function_model, model_of

if TYPE_CHECKING:
    from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"


def json_schema() -> dict[str, Any]:
    """Return the schema of a whole file."""
    made = FileSections.model_json_schema(by_alias=True)
    sinks = [_sink(kind) for kind in BUILT_IN]
    sinks.append(_own())
    stages = [{"$ref": f"#/$defs/{_title(kind)}"} for kind in [*BUILT_IN, LOADER]]
    for each in sinks:
        if "then" in each["properties"]:
            each["properties"]["then"]["anyOf"] = [*stages, {"$ref": "#/$defs/OwnSink"}]
    definitions = {each["title"]: each for each in [*sinks, _sink(LOADER)]}
    made["$defs"] |= definitions
    made["properties"]["sinks"] = {
        "description": made["properties"]["sinks"]["description"],
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [{"$ref": f"#/$defs/{each['title']}"} for each in sinks]},
    }
    made["properties"]["sources"]["minProperties"] = 1
    return {"$schema": DIALECT, **_plain(made), "title": "A semel pipeline file"}


def _title(kind: str) -> str:
    return f"{kind.title().replace('-', '')}Sink"


def _sink(kind: str) -> dict[str, Any]:
    """Return the schema of the table of a built-in type."""
    return _table(model_of(kind), _title(kind), {"const": kind})


def _own() -> dict[str, Any]:
    """Return the schema of a sink of one's own: those of a function, and any other setting."""
    made = _table(function_model(), "OwnSink", {"type": "string", "pattern": OWN})
    return {**made, "additionalProperties": True, "description": "A sink, class or function."}


def _table(model: type[BaseModel], title: str, kind: dict[str, Any]) -> dict[str, Any]:
    made = model.model_json_schema(by_alias=True)
    text, _, _ = str(made.get("description", "")).partition("\n\n")
    return {
        "title": title,
        "description": " ".join(text.split()),
        "type": "object",
        "additionalProperties": False,
        "required": ["type", *made.get("required", [])],
        "properties": {"type": kind, **made["properties"]},
    }


def _plain(schema: Any) -> Any:
    """Return a schema without what pydantic adds for itself: titles of keys, defaults of None.

    `X | None` means that a key may be left out; TOML has no null.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _plain(each) for name, each in schema.items()}
    if isinstance(made.get("anyOf"), list):
        kept = [each for each in made["anyOf"] if each != {"type": "null"}]
        made |= {"anyOf": kept}
        if len(kept) == 1:
            del made["anyOf"]
            made = {**kept[0], **made}
    if "default" in made and made["default"] is None:
        del made["default"]
    for table in ("properties", "$defs"):
        if isinstance(made.get(table), dict):
            made[table] = {name: _untitled(each) for name, each in made[table].items()}
    return made


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict) and "properties" not in schema:
        return {name: each for name, each in schema.items() if name != "title"}
    return schema
