"""The settings of each type of sink, read from the constructors of the sinks themselves.

Always true:
- a setting of a built-in sink is a field of its class: its name, its kind and its default are read
  there, and a kind that is not in `KINDS` is an error of this module, which a test finds;
- what cannot be written in a file (`filesystem`) and what is for authors of sinks is left out.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema, create_model

from semel.errors import ConfigurationError
from semel.pipeline import kinds
from semel.pipeline.problems import nearest
from semel.pipeline.settings import Section
from semel.protocol import OnDoubt, OnReject
from semel.sinks import Basic, Bearer, Certificate, Function, Retry, Sink

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILT_IN = {
    "http": "Http",
    "postgres": "Postgres",
    "redis": "Redis",
    "kafka": "Kafka",
    "files": "Files",
}
"""The types of a sink in a file, and their classes in `semel.sinks`."""

LOADER = "postgres-load"
"""The type of a second stage that is not a sink."""

LEFT_OUT = frozenset({"filesystem", "function", "keyed_by_event", "name", "span_chunks"})

AUTH: dict[str, type[Any]] = {"bearer": Bearer, "basic": Basic, "certificate": Certificate}

_DOUBTS = [each.value for each in OnDoubt if each is not OnDoubt.PROBE]


@dataclass(frozen=True)
class Loadable:
    """A value that names `module:object`, which is imported later."""

    reference: str


@dataclass(frozen=True)
class StageTable:
    """The table of a second stage, which is read later, as a sink is."""

    table: Mapping[str, Any]


def _retry(value: Any) -> Any:
    if not isinstance(value, dict):
        raise kinds.wrong("a table { first_s, most_s, for_s }", value)
    for name, each in value.items():
        if name not in _RETRY:
            text = f"unknown key {name!r} in retry; {nearest(name, _RETRY)}"
            raise kinds.wrong_within((name,), text)
        if not kinds.is_number(each):
            found = kinds.kind_of(each)
            raise kinds.wrong_within((name,), f"{name}: expected a number, found {found}")
    try:
        return Retry(**value)
    except ConfigurationError as error:
        raise kinds.wrong_within((), str(error)) from None


_RETRY = [each.name for each in fields(Retry)]


def _auth(value: Any) -> Any:
    """Return the credentials of a table, or of a list of tables."""
    if isinstance(value, list) and value:
        return tuple(_one_auth(each, (at,)) for at, each in enumerate(value))
    return _one_auth(value, ())


def _one_auth(value: Any, path: tuple[int, ...]) -> Any:
    words = " or ".join(repr(each) for each in AUTH)
    if not isinstance(value, dict):
        raise kinds.wrong(f"a table with type = {words}", value)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in AUTH:
        found = "nothing" if kind is None else kinds.kind_of(kind)
        raise kinds.wrong_within((*path, "type"), f"type: expected {words}, found {found}")
    known = {each.name: each for each in fields(AUTH[kind])}
    for name, each in value.items():
        if name != "type" and name not in known:
            text = f"unknown key {name!r} in auth of type {kind!r}; {nearest(name, known)}"
            raise kinds.wrong_within((*path, name), text)
        if not isinstance(each, str) or not each:
            found = "an empty text" if each == "" else kinds.kind_of(each)
            text = f"{name}: expected a non-empty text, found {found}"
            raise kinds.wrong_within((*path, name), text)
    for name, setting in known.items():
        if setting.default is MISSING and name not in value:
            raise kinds.wrong_within(path, f"auth of type {kind!r} needs {name}")
    return AUTH[kind](**{name: each for name, each in value.items() if name != "type"})


def _on_doubt(value: Any) -> Any:
    if value in _DOUBTS:
        return value
    if kinds.is_reference(value):
        return Loadable(value)
    raise kinds.wrong(f'{", ".join(map(repr, _DOUBTS))} or "module:function"', value)


def _probe(value: Any) -> Any:
    """An HTTP probe is a URL template, or a function."""
    if kinds.is_reference(value):
        return Loadable(value)
    if isinstance(value, str) and value:
        return value
    raise kinds.wrong('a URL or "module:function"', value)


def _function(value: Any) -> Any:
    if kinds.is_reference(value):
        return Loadable(value)
    raise kinds.wrong('"module:function"', value)


def _stage(value: Any) -> Any:
    if not isinstance(value, dict):
        raise kinds.wrong("a table with the type of a sink", value)
    return StageTable(value)


def _own(validate: Any, schema: dict[str, Any]) -> Any:
    return Annotated[Any, PlainValidator(validate), WithJsonSchema(schema)]


_FUNCTION_SCHEMA = {"type": "string", "pattern": r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"}
_AUTH_SCHEMA = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": list(AUTH)}},
    "additionalProperties": {"type": "string"},
}

FunctionName = _own(_function, _FUNCTION_SCHEMA)

KINDS: dict[str, Any] = {
    "str": kinds.AnyText,
    "str | None": kinds.Text,
    "int": kinds.Integer,
    "int | None": kinds.Integer,
    "float": kinds.Number,
    "float | None": kinds.Number,
    "bool": kinds.Flag,
    "Any": kinds.Json,
    "Mapping[str, str]": kinds.TextTable,
    "Mapping[str, Any]": kinds.Values,
    "tuple[str, ...]": kinds.Texts,
    "str | tuple[str, ...]": kinds.TextOrTexts,
    "str | Sequence[str] | None": kinds.TextOrTexts,
    "Sequence[str] | None": kinds.Texts,
    "Sequence[str] | Mapping[str, str] | None": kinds.Columns,
    "str | os.PathLike[str]": kinds.Text,
    "DoubtPolicy": _own(_on_doubt, {"anyOf": [{"enum": _DOUBTS}, _FUNCTION_SCHEMA]}),
    "Doubt": _own(_on_doubt, {"anyOf": [{"enum": _DOUBTS}, _FUNCTION_SCHEMA]}),
    "RejectPolicy": kinds.one_of([each.value for each in OnReject]),
    "OnReject | RejectWord": kinds.one_of([each.value for each in OnReject]),
    "Retry": _own(
        _retry,
        {
            "type": "object",
            "properties": {name: {"type": "number"} for name in _RETRY},
            "additionalProperties": False,
        },
    ),
    "Auth | tuple[Auth, ...] | None": _own(
        _auth, {"anyOf": [_AUTH_SCHEMA, {"type": "array", "items": _AUTH_SCHEMA, "minItems": 1}]}
    ),
    "Callable[[Event], bool | None] | None": FunctionName,
    "Loader | Sink | Callable[[Manifest], object] | None": _own(
        _stage, {"type": "object", "required": ["type"]}
    ),
}
KINDS["Retry | None"] = KINDS["Retry"]
"""The kind of value for each type that a setting of a sink has in Python."""

_PROBE_OF_HTTP = _own(_probe, {"type": "string", "minLength": 1})


def sink_class(kind: str) -> type[Any]:
    """Return the class of a built-in type, or of the loader."""
    name = "PostgresLoad" if kind == LOADER else BUILT_IN[kind]
    found: type[Any] = getattr(importlib.import_module("semel.sinks"), name)
    return found


@cache
def model_of(kind: str) -> type[BaseModel]:
    """Return the model of the settings of a built-in type."""
    return _model(sink_class(kind), kind)


@cache
def function_model() -> type[BaseModel]:
    """Return the model of the settings of a sink that is a function."""
    return _model(Function, "function")


def _model(described: type[Any], kind: str) -> type[BaseModel]:
    """Return the model of the fields of a sink's class."""
    texts = _descriptions(described)
    members: dict[str, Any] = {}
    if issubclass(described, Sink):
        members["name"] = (
            kinds.Text | None,
            Field(None, description="The name in the ledger; it stays the same for ever."),
        )
    for each in fields(described):
        if each.name in LEFT_OUT or not each.init:
            continue
        of_field = KINDS[str(each.type)]
        if (kind, each.name) == ("http", "probe"):
            of_field = _PROBE_OF_HTTP
        required = each.default is MISSING and each.default_factory is MISSING
        shown = _default(each)
        text = IN_A_FILE.get((kind, each.name)) or texts.get(each.name, "")
        members[f"{each.name}_"] = (
            of_field,
            Field(... if required else None, alias=each.name, description=text, examples=shown),
        )
    return create_model(
        f"{kind.title().replace('-', '')}Settings",
        __base__=Section,
        __doc__=inspect.getdoc(described) or "",
        **members,
    )


def _default(setting: Any) -> list[Any] | None:
    """Return the default of a setting, if a file can write it."""
    value = setting.default
    if value is MISSING or value is None or value in ("", ()):
        return None
    return [list(value) if isinstance(value, tuple) else value]


def own_class_model(described: type[Any], *, required: bool = True) -> type[BaseModel] | None:
    """Return the model of a sink's class of another package; None if it takes any setting.

    A setting of a type that is not in `KINDS` takes any value: its class checks it. Without
    `required` no setting has to be given, because a sink of the class has them all.
    """
    members: dict[str, Any] = {}
    for name, each in inspect.signature(described).parameters.items():
        if each.kind is each.VAR_KEYWORD:
            return None
        of_field = KINDS.get(str(each.annotation), kinds.Json)
        needed = required and each.default is each.empty and name != "name"
        members[f"{name}_"] = (of_field, Field(... if needed else None, alias=name))
    return create_model(f"{described.__name__}Settings", __base__=Section, **members)


def given(model: BaseModel) -> dict[str, Any]:
    """Return the settings that the file gives, by the names of the constructor."""
    set_fields = type(model).model_fields
    return {set_fields[name].alias or name: getattr(model, name) for name in model.model_fields_set}


IN_A_FILE = {
    ("http", "headers"): "Templates by name.",
    ("http", "body"): "A JSON template (tables, lists, texts); by default all columns as JSON.",
    ("http", "auth"): "Credentials: a table with its `type`, or a list of tables.",
    ("http", "probe"): (
        "A URL template to GET (200: arrived, 404: not), or `module:function` that takes the event."
    ),
    ("files", "then"): "The second stage: the table of a loader or of another sink.",
}
"""What is said of settings that a file writes in another way than Python."""

_ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*?)(?=^\w+(?:, \w+)*: |\Z)", re.MULTILINE | re.DOTALL)


def _descriptions(described: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a class say of its settings, by name."""
    found: dict[str, str] = {}
    for each in reversed(described.__mro__):
        text = inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2]
        for entry in _ENTRY.finditer(textwrap.dedent(text)):
            sentence = " ".join(entry[2].split())
            found |= dict.fromkeys(entry[1].split(", "), sentence[:1].upper() + sentence[1:])
    return found
