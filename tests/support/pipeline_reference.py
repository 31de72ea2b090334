"""The tables of docs/pipeline-file.md, made of the JSON Schema of a pipeline file.

`python -m support.pipeline_reference` in `tests` writes them into the page.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from semel.pipeline import json_schema

PAGE = Path(__file__).parents[2] / "docs" / "pipeline-file.md"

TABLES = {
    "[pipeline]": "PipelineSection",
    "partition_by": "PartitionBy",
    "[source]": "SourceSection",
    "[transform]": "TransformSection",
    "[identity]": "IdentitySection",
    "http": "HttpSink",
    "postgres": "PostgresSink",
    "redis": "RedisSink",
    "kafka": "KafkaSink",
    "files": "FilesSink",
    "postgres-load": "PostgresLoadSink",
    "module:object": "OwnSink",
    "[spark]": "SparkSection",
    "[trigger]": "TriggerSection",
}
"""The tables of the page, and the definitions of the schema."""

_MARK = re.compile(r"<!-- keys of (?P<name>[^>]+) -->\n(?P<table>.*?)<!-- end -->", re.DOTALL)


def kind(schema: dict[str, Any]) -> str:
    """Name what a key takes, in a few words."""
    words = [schema["const"]] if "const" in schema else schema.get("enum")
    if words is not None:
        return ", ".join(f"`{each}`" for each in words)
    if "anyOf" in schema:
        found = dict.fromkeys(kind(each) for each in schema["anyOf"])
        return "duration" if "duration" in found else " or ".join(found)
    if "pattern" in schema:
        return "`module:object`" if ":" in schema["pattern"] else "duration"
    name = "object" if "$ref" in schema else schema.get("type", "any")
    return NAMES.get(name, name) if isinstance(name, str) else "any value"


NAMES = {"string": "text", "object": "table", "array": "list", "boolean": "true or false"}


def rows(name: str) -> list[str]:
    """Give the rows of one table."""
    section = json_schema()["$defs"][TABLES[name]]
    found = ["| key | value | default | |", "|---|---|---|---|"]
    for key, setting in section["properties"].items():
        default = setting.get("default", (setting.get("examples") or [None])[0])
        shown = "required" if key in section.get("required", ()) else ""
        if default is not None:
            shown = f"`{json.dumps(default)}`"
        text = setting.get("description", "").replace("|", "\\|")
        found.append(f"| `{key}` | {kind(setting)} | {shown} | {text} |")
    return found


def written(page: str) -> str:
    """Give the page with its tables as the schema has them."""

    def table(found: re.Match[str]) -> str:
        text = "\n".join(rows(found["name"]))
        return f"<!-- keys of {found['name']} -->\n{text}\n<!-- end -->"

    return _MARK.sub(table, page)


def names(page: str) -> list[str]:
    """Give the names of the tables of the page."""
    return [found["name"] for found in _MARK.finditer(page)]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
