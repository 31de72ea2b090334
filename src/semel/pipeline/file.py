"""Reads a pipeline file: TOML, values from outside, and the kind of every value.

Always true:
- nothing is imported, connected to or started here, and Spark is not needed;
- all problems that can be found without importing the user's modules are found together.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from semel.pipeline.filling import fill_in
from semel.pipeline.kinds import is_reference, kind_of
from semel.pipeline.positions import DEPTH_MAX, Positions, TextPlace, TooDeep, read_positions
from semel.pipeline.problems import Problems, nearest
from semel.pipeline.settings import NO_SOURCE, FileSections
from semel.pipeline.sink_settings import BUILT_IN, LOADER, StageTable, given, model_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from semel.pipeline.positions import Path

BYTES_MAX = 1_000_000
INTEGER_BITS = 63
"""The bits of an integer without its sign."""

_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


@dataclass(frozen=True)
class SinkTable:
    """The table of one sink, or of a second stage.

    Attributes:
        path: where the table stands.
        type: a built-in type, or `module:object`.
        settings: the given settings of a built-in type, checked; of `module:object` as written.
    """

    path: Path
    type: str
    settings: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class PipelineFile:
    """A pipeline file whose values have the right kinds.

    Attributes:
        path: the file.
        sections: its sections.
        sinks: the tables of its sinks.
        problems: what is added to when more is found wrong later.
    """

    path: FilePath
    sections: FileSections = field(repr=False)
    sinks: tuple[SinkTable, ...] = field(repr=False)
    problems: Problems = field(repr=False)

    @property
    def folder(self) -> FilePath:
        """The folder of the file: relative paths start here."""
        return self.path.parent


def read_file(
    file: str | os.PathLike[str], environ: Mapping[str, str] | None = None
) -> PipelineFile:
    """Read a pipeline file. Raises `WrongPipelineFile` with everything that is wrong."""
    given_path = FilePath(file)
    path = given_path.absolute()
    problems = Problems(str(given_path), Positions())
    text = _text_of(path, problems)
    data = _parsed(text, problems)
    problems.positions = _positions_of(text, problems)
    _refuse_large_integers(data, (), problems)
    problems.raise_any()
    data = fill_in(data, path.parent, problems, os.environ if environ is None else environ)
    sections = None
    try:
        sections = FileSections.model_validate(data)
    except ValidationError as error:
        report(problems, error, (), FileSections)
        if not {"source", "sources"} & data.keys():
            problems.at_key((), NO_SOURCE)
    tables = _sink_tables(data.get("sinks"), problems)
    problems.raise_any()
    assert sections is not None, "a file without a problem has its sections"
    return PipelineFile(path, sections, tables, problems)


def _text_of(path: FilePath, problems: Problems) -> str:
    raw = b""
    try:
        with path.open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        problems.at_key((), f"there is no such file; `semel init {path.name}` writes one")
    except OSError as error:
        problems.at_key((), f"the file cannot be read: {error.strerror or error}")
    if len(raw) > BYTES_MAX:
        problems.at_key((), f"the file has more than {BYTES_MAX} bytes, so it is not read")
        raw = b""
    problems.raise_any()
    try:
        return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        place = TextPlace(before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))
        problems.positions = Positions({(): place})
        problems.at_key((), f"expected UTF-8, found the byte 0x{raw[error.start]:02x}")
    problems.raise_any()
    raise AssertionError("a problem was raised")


def _parsed(text: str, problems: Problems) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT.fullmatch(str(error))
        why = str(error) if found is None else found[1]
        lines = text.removesuffix("\n").split("\n")
        place = TextPlace(len(lines), len(lines[-1]) + 1)
        if found is not None and found[2] is not None:
            place = TextPlace(int(found[2]), int(found[3]))
        problems.positions = Positions({(): place})
        problems.at_key((), f"this is not TOML: {why[:1].lower()}{why[1:]}")
    except RecursionError:
        _positions_of(text, problems)
        problems.at_key((), "lists or tables are nested too deeply")
    except ValueError as error:
        problems.at_key((), f"this is not TOML that can be read: {error}")
    problems.raise_any()
    raise AssertionError("a problem was raised")


def _positions_of(text: str, problems: Problems) -> Positions:
    try:
        return read_positions(text)
    except TooDeep as error:
        problems.positions = Positions({(): error.place})
        problems.at_key((), f"lists or tables are nested more than {DEPTH_MAX} deep")
    problems.raise_any()
    raise AssertionError("a problem was raised")


def _refuse_large_integers(value: Any, path: Path, problems: Problems) -> None:
    """Refuse integers of more than 64 bits: TOML has none, but `tomllib` reads them."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in pairs:
            _refuse_large_integers(each, (*path, name), problems)
    elif isinstance(value, int) and value.bit_length() > INTEGER_BITS:
        problems.at_value(path, f"integers have {INTEGER_BITS + 1} bits at most")


# -- sinks


def _sink_tables(sinks: Any, problems: Problems) -> tuple[SinkTable, ...]:
    if not isinstance(sinks, list):
        return ()  # reported with the sections
    if not sinks:
        problems.at_value(("sinks",), "expected at least one [[sinks]], found an empty list")
    tables = (sink_table(each, ("sinks", at), problems) for at, each in enumerate(sinks))
    return tuple(table for table in tables if table is not None)


def sink_table(
    table: Any, path: Path, problems: Problems, *, loader: bool = False
) -> SinkTable | None:
    """Check the table of a sink, or of a second stage (`loader`); None if something is wrong."""
    known = [*BUILT_IN, *([LOADER] if loader else [])]
    kind = _type_of(table, path, known, problems)
    if kind is None:
        return None
    own = {name: each for name, each in table.items() if name != "type"}
    if kind not in known:
        return SinkTable(path, kind, own)
    settings = checked(model_of(kind), own, path, problems)
    if settings is None:
        return None
    for name, each in settings.items():
        if isinstance(each, StageTable):
            sink_table(each.table, (*path, name), problems, loader=True)
    return SinkTable(path, kind, settings)


def _type_of(table: Any, path: Path, known: list[str], problems: Problems) -> str | None:
    """Return the type of a sink; None if it is wrong."""
    at_type = (*path, "type")
    if not isinstance(table, dict):
        problems.at_value(path, f"sinks: expected a table for each sink, found {kind_of(table)}")
        return None
    kind = table.get("type")
    if kind is None:
        problems.at_key(path, f"{name_of(path)} needs type: {', '.join(known)} or module:object")
        for name in get_close_matches("type", list(table), 1):
            text = f"unknown key {name!r} in {name_of(path)}; did you mean 'type'?"
            problems.at_key((*path, name), text)
    elif not isinstance(kind, str):
        problems.at_value(at_type, f"type: expected a text, found {kind_of(kind)}")
    elif kind in known or is_reference(kind):
        return kind
    else:
        problems.at_value(
            at_type,
            f"unknown type of a sink {kind!r}; {nearest(kind, known)} (a sink of your own is "
            "module:object)",
        )
    return None


def checked(
    model: type[BaseModel], settings: Mapping[str, Any], path: Path, problems: Problems
) -> dict[str, Any] | None:
    """Return the given settings with their kinds checked; None if something is wrong."""
    try:
        return given(model.model_validate(settings))
    except ValidationError as error:
        report(problems, error, path, model)
        return None


# -- what pydantic finds


def report(problems: Problems, error: ValidationError, path: Path, model: type[BaseModel]) -> None:
    """Add what pydantic found wrong with the table at `path`."""
    for each in error.errors(include_url=False):
        at = (*path, *each["loc"])
        name = str(at[-1]) if at else "the file"
        table = name_of(at[:-1])
        match each["type"]:
            case "missing":
                problems.at_key(at[:-1], f"{table} needs {_wanted(at)}")
            case "extra_forbidden":
                known = _keys(_model_at(model, each["loc"][:-1]))
                problems.at_key(at, f"unknown key {name!r} in {table}; {nearest(name, known)}")
            case "missing_one":
                problems.at_key(at, each["msg"])
            case "within":
                inner = (*at, *each["ctx"]["at"])
                problems.at_value(inner, each["msg"])
            case "kind":
                problems.at_value(at, f"{name}: {each['msg']}")
            case "model_type" | "model_attributes_type" | "dict_type" | "list_type":
                wanted = "[[sinks]], a table for each sink" if at == ("sinks",) else "a table"
                found = kind_of(each["input"])
                problems.at_value(at, f"{name}: expected {wanted}, found {found}")
            case _:
                problems.at_value(at, f"{name}: {each['msg']}")


def _wanted(at: Path) -> str:
    """Return what is missing, as the file writes it."""
    if len(at) == 1:
        return "[[sinks]]" if at[0] == "sinks" else f"[{at[0]}]"
    return str(at[-1])


def name_of(path: Path) -> str:
    """Return how a table is written in the file."""
    if not path:
        return "the file"
    names = [str(each) for each in path if not isinstance(each, int)]
    return f"[[{names[0]}]]" if path[0] == "sinks" and len(names) == 1 else f"[{'.'.join(names)}]"


def _keys(model: type[BaseModel]) -> list[str]:
    return [each.alias or name for name, each in model.model_fields.items()]


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    """Return the model of a table within the table of `model`."""
    for each in path:
        found = {field.alias or name: field for name, field in model.model_fields.items()}
        inner = found.get(str(each))
        model = model if inner is None else _model_in(inner.annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation names, alone or in a union or a container."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
