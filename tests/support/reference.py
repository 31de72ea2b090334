"""`docs/reference/`, made of the command line, the pipeline file's schema, and the public names.

`make reference` writes it again: `python -m support.reference` in `tests`. Of a page with prose
only what is between the marks `<!-- ... -->` and `<!-- end -->` is generated.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main

import semel
from semel import sinks
from semel.cli.main import app
from semel.pipeline import json_schema
from semel.verify.chaos import KINDS

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGE = FOLDER / "pipeline-file.md"
COMMANDS_PAGE = FOLDER / "commands.md"
API_PAGE = FOLDER / "api.md"
SCHEMA_FILE = FOLDER / "pipeline.schema.json"

# -- the pipeline file

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


# -- the command line

_COMMAND = re.compile(r"<!-- semel (?P<name>[a-z -]+) -->\n.*?<!-- end -->\n", re.DOTALL)
_HEADING = "## `semel {}`"
_WIDTH = 120
_VALUES = {int: "N", float: "N", Path: "FILE"}


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Give every command that does something, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def groups(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Give every group of commands, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield " ".join((*path, name)), command
            yield from groups(command, *path, name)


def _value(each: Any) -> str:
    """Name the value of an option or argument."""
    annotation = each.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(choice.value) for choice in annotation)
    if each.metavar:
        return str(each.metavar)
    if each.param_type_name == "argument":
        return str(each.name).upper()
    return _VALUES.get(annotation, "TEXT")


def _usage(each: Any) -> str:
    """Write an option or argument as a synopsis has it."""
    many = "..." if each.nargs == -1 or getattr(each, "multiple", False) else ""
    if each.param_type_name == "argument":
        value = _value(each)
        return f"{value}{many}" if each.required or value.startswith("[") else f"[{value}]{many}"
    names = each.opts[0] if getattr(each, "is_flag", False) else f"{each.opts[0]} {_value(each)}"
    return names if each.required else f"[{names}]{many}"


def _default(each: Any) -> str:
    if isinstance(each.show_default, str):
        return each.show_default
    if each.required:
        return "required"
    if getattr(each, "is_flag", False) or each.default is None or not each.show_default:
        return ""
    value = each.default.value if isinstance(each.default, Enum) else each.default
    return f"`{value}`" if value != "" else ""


def synopsis(name: str, command: Any) -> str:
    """Write how a command is called, on lines that fit on a screen."""
    words = [_usage(each) for each in command.params if each.name != "help"]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    first = [_usage(each) for each in arguments]
    text = " ".join(f"semel {name}".split() + first)
    lines = [text]
    for word in words:
        if word in first:
            continue
        if len(lines[-1]) + len(word) + 1 > _WIDTH:
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def command_block(name: str, command: Any) -> str:
    """Write the generated part of a command: synopsis, arguments and options, example."""
    found = [f"<!-- semel {name} -->", "```", synopsis(name, command), "```", ""]
    table = []
    for each in command.params:
        if each.name in ("help", "ledger", "as_json") or not each.help:
            continue
        flag = each.param_type_name == "argument" or getattr(each, "is_flag", False)
        shown = _value(each) if each.param_type_name == "argument" else each.opts[0]
        shown = shown if flag else f"{each.opts[0]} {_value(each)}"
        text = " ".join(each.help.split()).replace("|", "\\|")
        table.append(
            f"| `{shown.replace('|', chr(92) + '|')}` | {_default(each)} | {_bare(text)} |"
        )
    if table:
        found += ["| option | default | |", "|---|---|---|", *table, ""]
    found += [_bare(" ".join(command.epilog.split())), "<!-- end -->", ""]
    return "\n".join(found)


def _bare(text: str) -> str:
    """Keep Markdown from reading texts of the help as markup."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_\[\]<>])", r"\\\1", each) for each in parts[::2]]
    return "`".join(parts)


def written_commands(page: str) -> str:
    """Give the page of the commands with its generated parts as the command line has them. A
    command that the page does not have gets a section at its end; marks of one that is gone are
    removed, and a person removes the prose.
    """
    for name, command in commands(typer.main.get_command(app)):
        block = command_block(name, command)
        mark = f"<!-- semel {name} -->\n"
        if mark in page:
            before, _, rest = page.partition(mark)
            page = before + block + rest.partition("<!-- end -->\n")[2]
        else:
            page = f"{page.rstrip()}\n\n{_HEADING.format(name)}\n\n{block}"
    known = {name for name, _ in commands(typer.main.get_command(app))}
    return _COMMAND.sub(lambda found: found[0] if found["name"] in known else "", page)


# -- the public names

API_HEAD = """# The API

The public names of semel, from their docstrings. In each section a table says what they are; below
it, the site has each with its signature.
[The promise](../promise.md#the-parameters-of-deliver) explains the parameters.
"""

API: dict[str, tuple[str, str]] = {
    "Deliver": (
        (""),
        (
            "semel.deliver semel.deliver_batch semel.stop semel.explain semel.by_range "
            "semel.by_directory semel.spark.make_session semel.spark.register "
            "semel.spark.delivered_by"
        ),
    ),
    "Monitoring": (
        ("[Operating](../operating.md) has the metrics, the log lines and the alerts."),
        ("semel.JsonLogs- semel.monitoring.Alert"),
    ),
    "Events and functions": ("", "semel.Event semel.sink"),
    "Sinks": (
        ("Each sink has [a page](../sinks.md) with its settings, errors and limits."),
        (
            "semel.sinks.Postgres- semel.sinks.Redis- semel.sinks.Kafka- semel.sinks.Files- "
            "semel.sinks.Manifest semel.sinks.files.committed semel.sinks.files.read "
            "semel.sinks.Loader semel.sinks.PostgresLoad- semel.sinks.Http- semel.sinks.Bearer "
            "semel.sinks.Basic semel.sinks.Certificate semel.sinks.Function- semel.sinks.Retry"
        ),
    ),
    "Write a sink": (
        ("[Write your own sink](../own-sink.md) has the rules and a complete example."),
        (
            "semel.sinks- semel.sinks.Sink semel.sinks.Capability semel.sinks.OnDoubt "
            "semel.sinks.OnReject semel.sinks.Target semel.sinks.Chunk semel.sinks.Session "
            "semel.sinks.AnySession semel.sinks.ProbingSession semel.sinks.TransactionalSession "
            "semel.sinks.SequencedSession semel.sinks.WholeSession semel.sinks.Progress "
            "semel.sinks.Tail semel.sinks.Receipt semel.sinks.DELIVERED semel.sinks.Ended "
            "semel.sinks.EndedPart"
        ),
    ),
    "Prove a sink or a store": (
        (
            "Pytest suites: subclass one of them ([prove a sink](../verify-sink.md), "
            "[write your own store](../own-store.md))."
        ),
        ("semel.verify.SinkContract semel.verify.store_contract.StoreContract"),
    ),
    "Test a pipeline": (
        (
            "[Test your pipeline](../testing.md#the-pipeline-crash-it-everywhere) shows them. The "
            "fixture `semel_pipeline` of the pytest plugin makes a `PipelineUnderTest` with a "
            "ledger of its own."
        ),
        ("semel.testing.PipelineUnderTest semel.testing.CrashOutcome"),
    ),
    "Inbox": (
        ("[Streams](../streams.md#inbox) describes it."),
        (
            "semel.Inbox semel.NewEvent semel.streams.Stored semel.streams.InboxPartition "
            "semel.streams.InboxReader semel.streams.Pruned semel.INBOX_SCHEMA"
        ),
    ),
    "Pacing": ("", "semel.streams.Application"),
    "Read a ledger": ("", "semel.Ledger"),
    "Errors": ("", "semel.errors-"),
}
"""The sections of the page: what they say first, and their names; of a name that ends with `-` the
members are not shown. The errors are added in the order of their module.
"""


def public_names() -> list[str]:
    """Give the names that the page must have."""
    at_sinks = [each for each in sinks.__all__ if each not in semel.__all__]
    return [f"semel.{each}" for each in semel.__all__] + [
        f"semel.sinks.{each}" for each in at_sinks
    ]


def _errors() -> list[str]:
    """Give the public errors in the order of their module."""
    tree = ast.parse(inspect.getsource(semel.errors))
    classes = [each.name for each in tree.body if isinstance(each, ast.ClassDef)]
    return [f"semel.{each}" for each in classes if each in semel.__all__]


def _found(path: str) -> Any:
    """Give what a public name stands for."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name) if module else import_module(path)
    except AttributeError:
        return import_module(path)


def _first_sentence(path: str) -> str:
    """Give what a name is, in a sentence."""
    found = _found(path)
    if not (inspect.isclass(found) or callable(found) or inspect.ismodule(found)):
        return f"A constant, `{type(found).__name__}`."
    paragraph = " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())
    sentence = re.match(r".*?[.:](?= |$)", paragraph)
    text = paragraph if sentence is None else sentence[0]
    return _bare(text.replace("|", "\\|"))


def api_page() -> str:
    """Write the page of the public names. Raises KeyError for one that no section has."""
    lines = [API_HEAD.rstrip()]
    shown: set[str] = set()
    for title, (says, names) in API.items():
        paths = [*names.split(), *(_errors() if title == "Errors" else ())]
        lines += ["", f"## {title}", ""] + ([says, ""] if says else [])
        lines += ["| name | |", "|---|---|"]
        lines += [
            f"| `{each}` | {_first_sentence(each)} |"
            for path in paths
            for each in [path.strip("-")]
        ]
        for path in paths:
            name = path.strip("-")
            shown.add(name)
            if name == "semel.sink":  # a function and a module of this name
                lines += ["", '<a id="semel.sink"></a>', "", "::: semel.sinks.function.sink"]
                lines += ["    options:", "      heading: sink"]
                continue
            lines += ["", f"::: {name}"]
            if path.endswith("-"):
                lines += ["    options:", "      members: false"]
    missing = [each for each in public_names() if each not in shown | {"semel.sinks.sink"}]
    if missing:
        raise KeyError(
            f"add {', '.join(missing)} to a section of API in tests/support/reference.py"
        )
    return "\n".join(lines) + "\n"


# -- all of it


def schema_file() -> str:
    """Write the JSON Schema of a pipeline file, as `semel schema` prints it."""
    from semel.events.encoding import readable_json

    return readable_json(json_schema()) + "\n"


FAULTS_PAGE = FOLDER.parent / "verification.md"
_FAULTS = re.compile(r"<!-- kinds of faults -->\n.*?<!-- end -->", re.DOTALL)


def written_faults(page: str) -> str:
    """Write the table of the faults of `semel chaos` into its page."""
    rows = [
        "<!-- kinds of faults -->",
        "| fault | what happens | to | seconds |",
        "|---|---|---|---|",
    ]
    for name, each in KINDS.items():
        least, most = each.lasts_s
        lasts = f"{least:g}-{most:g}" if most else "at once"
        rows.append(f"| `{name}` | {each.what} | {', '.join(each.targets)} | {lasts} |")
    return _FAULTS.sub("\n".join([*rows, "<!-- end -->"]), page)


PAGES: dict[Path, Callable[[str], str]] = {
    COMMANDS_PAGE: written_commands,
    PAGE: written,
    FAULTS_PAGE: written_faults,
    API_PAGE: lambda _: api_page(),
    SCHEMA_FILE: lambda _: schema_file(),
}


def stale() -> dict[str, str]:
    """Give the files of the reference that are not as they would be written, with what to do."""
    return {
        path.name: f"{path.name} is out of date: run `make reference`"
        for path, made in PAGES.items()
        if made(path.read_text()) != path.read_text()
    }


if __name__ == "__main__":
    for path, made in PAGES.items():
        path.write_text(made(path.read_text()))
