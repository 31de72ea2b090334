"""Makes of a pipeline file what `semel.deliver` takes: sinks, functions, an identity.

Always true: the user's modules are imported here and nowhere before, and an error of theirs is a
problem at the line that names them.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from semel.delivery import PipelineSpec, limits_of
from semel.errors import ConfigurationError, MissingExtra, SemelError
from semel.events import Named, by_directory, by_range, implied
from semel.ledger import REMEMBER_S, open_store
from semel.monitoring import Monitoring
from semel.pipeline.file import PipelineFile, SinkTable, checked, sink_table
from semel.pipeline.kinds import is_reference
from semel.pipeline.sink_settings import (
    BUILT_IN,
    LOADER,
    Loadable,
    StageTable,
    function_model,
    own_class_model,
    sink_class,
)
from semel.sinks import AuditLog, Function, Sink
from semel.sinks import sink as sink_of
from semel.streams import Application, is_reader_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import BaseModel

    from semel.events import Identity, Routing
    from semel.pipeline.positions import Path
    from semel.pipeline.problems import Problems

SQLITE = "sqlite:///"
INBOX = "semel.inbox"
WITH_OFFSETS = frozenset({"kafka", "semel.kafka", INBOX})
"""Formats whose rows have a topic, a partition and an offset."""

_MISSING = object()


@dataclass(frozen=True)
class Pipeline:
    """A pipeline file with its sinks and functions.

    Attributes:
        function: the transformation in Python, if there is one.
        formats: the format of each source: its name, or the class of a Python data source.
    """

    file: PipelineFile
    sinks: tuple[Sink, ...]
    named: Named
    function: Callable[..., Any] | None = None
    formats: Mapping[str, Any] = field(default_factory=dict)
    partition_by: Routing | None = None
    monitoring: Monitoring = field(default_factory=Monitoring)

    @property
    def name(self) -> str:
        """The name in the ledger."""
        return str(self.file.sections.pipeline.name)

    def words(self) -> dict[str, Any]:
        """Return the parameters of `semel.deliver` that the file gives, without the DataFrame."""
        section = self.file.sections.pipeline
        words: dict[str, Any] = {
            "to": list(self.sinks),
            "name": self.name,
            "entity": self.named.entity,
            "event": self.named.event,
            "identity": self.named.identity,
            "order_by": self.named.order_by,
            "increasing": self.named.increasing,
            "ledger": located_ledger(section.ledger, self.file.folder),
            "partitions": section.partitions,
            "order": section.order,
            "accept_gap": section.accept_gap,
            "drop_repeats": section.drop_repeats,
            "partition_by": self.partition_by,
        }
        later = {
            "remember_s": section.remember,
            "application": section.application,
            "latency_s": section.latency,
            "metrics": self.monitoring.metrics,
            "otel": self.monitoring.otel or None,
            "alert": self.monitoring.alert,
            "audit": None if section.audit is None else located(section.audit, self.file.folder),
        }
        return words | {name: value for name, value in later.items() if value is not None}

    @property
    def checkpoint(self) -> str:
        """The folder of the checkpoint."""
        return located(self.file.sections.pipeline.checkpoint, self.file.folder)

    def specification(self) -> PipelineSpec:
        """Return the pipeline as `semel.explain` takes it, without Spark.

        Raises `WrongPipelineFile` if only the columns of the query decide the identity.
        """
        identity = _identity(self.file, self.named)
        if identity is None:
            self.file.problems.at_key(
                ("identity",),
                "which rows are the same event depends on the columns of the query: set identity, "
                "or entity and event, in [identity]",
            )
        self.file.problems.raise_any()
        assert identity is not None, "a problem was raised"
        section, sources = self.file.sections.pipeline, self.file.sections.named_sources.values()
        paced = section.application
        return PipelineSpec(
            self.name,
            self.sinks,
            identity,
            partitions=section.partitions,
            order=section.order,
            accept_gap=section.accept_gap,
            drop_repeats=section.drop_repeats,
            remember_s=REMEMBER_S if section.remember is None else section.remember,
            partition_by=self.partition_by,
            application=None if paced is None else Application.of(paced, section.latency),
            limits={
                name: value
                for each in sources
                if not each.static
                for name, value in limits_of(each.options).items()
            },
        )


def build(file: PipelineFile) -> Pipeline:
    """Import what the file names and make its sinks. Raises `WrongPipelineFile`."""
    making = _Making(file)
    made = making.pipeline()
    file.problems.raise_any()
    making.check(made)
    file.problems.raise_any()
    return made


def located(place: str, folder: FilePath) -> str:
    """Return a path that starts at the folder of the file; a URL or an absolute path unchanged.

    Raises `ConfigurationError` for a path that no file can have.
    """
    if not place.isprintable():
        raise ConfigurationError("a path must be one line of printable characters")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", place):
        return place
    try:
        return str(folder / FilePath(place).expanduser())
    except RuntimeError:
        raise ConfigurationError(f"the user that {place!r} names has no home directory") from None


def located_ledger(url: str | None, folder: FilePath) -> str | None:
    """Return the URL of the ledger; a relative SQLite file starts at the folder of the file."""
    if url is None or not url.startswith(SQLITE) or not url.isprintable():
        return url
    return SQLITE + str(folder / url.removeprefix(SQLITE))


def inbox_options(
    given: Mapping[str, str], folder: FilePath, pipeline: str, ledger: str
) -> dict[str, str]:
    """Return the options of a source `semel.inbox`: its ledger is that of the pipeline if it names
    none, and the pipeline is a registered reader, so that what it has not completed is not pruned.
    """
    found = {
        name: str(located_ledger(value, folder)) if name.lower() == "ledger" else value
        for name, value in given.items()
    }
    named = {name.lower() for name in found}
    if "ledger" not in named:
        found["ledger"] = ledger
    if "reader" not in named and is_reader_name(pipeline):
        found["reader"] = pipeline
    return found


def _check_ledger(url: str, folder: FilePath) -> None:
    """Refuse what is not the URL of a ledger; nothing is connected to."""
    if url.startswith(SQLITE):
        located(url.removeprefix(SQLITE), folder)
    open_store(located_ledger(url, folder) or "", create=False).close()


def _identity(file: PipelineFile, named: Named) -> Identity | None:
    """Return the identity that the file implies; None if the columns decide."""
    try:
        found = implied(named)
        sources = file.sections.named_sources.values()
        if found is None and all(each.format in WITH_OFFSETS for each in sources):
            found = implied(replace(named, identity="position"))
    except ConfigurationError as error:
        file.problems.at_key(("identity",), error)
        return None
    return found


class _Making:
    """Makes the parts of one file."""

    def __init__(self, file: PipelineFile) -> None:
        self._file = file
        self._problems: Problems = file.problems

    def pipeline(self) -> Pipeline:
        """Return the pipeline; what is wrong is left in the problems of the file."""
        section = self._file.sections.identity
        named = Named(
            section.identity, section.entity, section.event, section.order_by, section.increasing
        )
        transform = self._file.sections.transform
        function = None
        if transform is not None and transform.python is not None:
            function = self._function(transform.python, ("transform", "python"))
        made = [self._sink(each) for each in self._file.sinks]
        self._check_places()
        return Pipeline(
            self._file,
            tuple(each for each in made if each is not None),
            named,
            function,
            self._formats(),
            self._routing(),
            self._monitoring(),
        )

    def _check_places(self) -> None:
        """Refuse what is not a name, a place for files, or a ledger."""
        section = self._file.sections.pipeline
        if "@" in section.name:
            text = f"{section.name!r}: batch jobs have an @ in their names; remove the @"
            self._problems.at_value(("pipeline", "name"), text)
        with self._blaming(("pipeline", "checkpoint")):
            located(section.checkpoint, self._file.folder)
        with self._blaming(("pipeline", "audit")):
            if section.audit is not None:
                AuditLog(located(section.audit, self._file.folder))
        with self._blaming(("pipeline", "ledger")), suppress(MissingExtra):
            if section.ledger is not None:
                _check_ledger(section.ledger, self._file.folder)
        for name, source in self._file.sections.named_sources.items():
            one = self._file.sections.source is not None
            for option, value in source.options.items():
                if option.lower() == "path":
                    table = ("source",) if one else ("sources", name)
                    with self._blaming((*table, "options", option)):
                        located(value, self._file.folder)

    def check(self, pipeline: Pipeline) -> None:
        """Check what the parts have to do with each other."""
        identity = _identity(self._file, pipeline.named)
        sources = self._file.sections.named_sources.values()
        named = pipeline.named
        plain = all(each.format in _WITHOUT_POSITIONS for each in sources)
        if identity is None and plain and named.identity is None and not named.events():
            self._problems.at_key(
                ("identity",) if self._has("identity") else (),
                "nothing says which rows are the same event: set entity and event in [identity]",
            )
        if self._problems.found or identity is None:
            return
        try:
            pipeline.specification()
        except ConfigurationError as error:
            self._blame(("pipeline",), error)

    def _has(self, name: str) -> bool:
        return (name,) in self._problems.positions.keys

    # -- imported modules

    def _load(self, reference: str, path: Path) -> Any:
        """Import `module:object`; `_MISSING` if that is a problem."""
        module, _, name = reference.partition(":")
        for each in (str(FilePath.cwd()), str(self._file.folder)):
            if each not in sys.path:
                sys.path.insert(0, each)
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                if not hasattr(found, part):
                    self._problems.at_value(path, f"the module {module!r} has no {name!r}")
                    return _MISSING
                found = getattr(found, part)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's module raises
            text = str(error) if isinstance(error, SemelError) else _headline(error)
            self._problems.at_value(path, f"cannot import {module!r}: {text}")
            return _MISSING
        return found

    def _function(self, reference: str, path: Path) -> Any:
        found = self._load(reference, path)
        if found is _MISSING:
            return None
        if not callable(found):
            self._problems.at_value(
                path, f"{reference} is a {type(found).__name__}, and not a function"
            )
            return None
        return found

    def _formats(self) -> dict[str, Any]:
        formats: dict[str, Any] = {}
        for name, each in self._file.sections.named_sources.items():
            one = self._file.sections.source is not None
            path = ("source", "format") if one else ("sources", name, "format")
            formats[name] = each.format
            if is_reference(each.format):
                found = self._load(each.format, path)
                if found is not _MISSING and not (
                    isinstance(found, type) and hasattr(found, "name")
                ):
                    self._problems.at_value(
                        path, f"{each.format} is not a class of a Python data source"
                    )
                formats[name] = found
        return formats

    def _routing(self) -> Routing | None:
        section = self._file.sections.pipeline.partition_by
        if section is None:
            return None
        path = ("pipeline", "partition_by")
        try:
            if section.range is not None:
                return by_range(section.range)
            directory: Any = section.directory
            if is_reference(directory):
                directory = self._function(directory, (*path, "directory"))
                if directory is None:
                    return None
            return by_directory(directory, default=section.default)
        except ConfigurationError as error:
            self._blame(path, error)
            return None

    def _monitoring(self) -> Monitoring:
        section = self._file.sections.pipeline
        alert: Any = section.alert
        if is_reference(alert):
            alert = self._function(alert, ("pipeline", "alert"))
        found = Monitoring(section.metrics, section.otel, alert)
        try:
            found.check(section.name)
        except ConfigurationError as error:
            self._blame(("pipeline",), error)
        return found

    # -- sinks

    def _sink(self, table: SinkTable) -> Sink | None:
        made = self._made(table)
        if made is None or isinstance(made, Sink):
            return made
        self._problems.at_value((*table.path, "type"), f"{table.type} is not a sink")
        return None

    def _made(self, table: SinkTable) -> Any:
        """Return what a table describes; None if that is a problem."""
        if table.type not in BUILT_IN and table.type != LOADER:
            return self._own(table)
        settings = self._settings(table)
        if settings is None:
            return None
        if table.type != LOADER:
            settings.setdefault("name", table.type)
        if table.type == "files":
            with self._blaming((*table.path, "url")):
                settings["url"] = located(settings["url"], self._file.folder)
        return self._called(sink_class(table.type), settings, table)

    def _settings(self, table: SinkTable) -> dict[str, Any] | None:
        """Return the settings with what they name: functions and a second stage."""
        settings = dict(table.settings)
        for name, value in table.settings.items():
            path = (*table.path, name)
            if isinstance(value, Loadable):
                settings[name] = self._function(value.reference, path)
            elif isinstance(value, StageTable):
                below = sink_table(value.table, path, self._problems, loader=True)
                settings[name] = None if below is None else self._made(below)
            if settings[name] is None:
                return None
        return settings

    def _own(self, table: SinkTable) -> Any:
        """Make a sink of `module:object`: a class, a sink, or a function."""
        path = (*table.path, "type")
        found = self._load(table.type, path)
        if found is _MISSING:
            return None
        if not (callable(found) or isinstance(found, Sink)) or _is_other_class(found):
            self._problems.at_value(
                path,
                f"expected a sink, a class of sinks or a function, and {table.type} is "
                f"{_article(found)}",
            )
            return None
        model, make = _own_sink(found)
        given: Mapping[str, Any] | None = table.settings
        if model is not None:
            given = checked(model, table.settings, table.path, self._problems)
        settings = None if given is None else self._settings(replace(table, settings=given))
        return None if settings is None else self._called(make, settings, table)

    def _called(self, make: Callable[..., Any], settings: Mapping[str, Any], at: SinkTable) -> Any:
        try:
            return make(**settings)
        except ConfigurationError as error:
            self._blame(at.path, error)
        except Exception as error:  # noqa: BLE001 - the constructor of any sink
            self._blame(at.path, f"{at.type}: {_headline(error)}")
        return None

    @contextmanager
    def _blaming(self, path: Path) -> Iterator[None]:
        """Add an error at a key."""
        try:
            yield
        except ConfigurationError as error:
            self._problems.at_key(path, error)

    def _blame(self, path: Path, error: object) -> None:
        """Add an error at the setting that its text names, otherwise at its table."""
        known = self._problems.positions.keys
        names = [at[-1] for at in known if at[:-1] == path and isinstance(at[-1], str)]
        text = str(error)
        named = [
            (found.start(), name)
            for name in names
            if (found := re.search(rf"(?<![\w']){re.escape(str(name))}(?![\w'])", text))
        ]
        where = (*path, min(named)[1]) if named else path
        self._problems.at_key(where, text)


_WITHOUT_POSITIONS = frozenset({"json", "csv", "parquet", "orc", "text", "rate", "socket", "delta"})
"""Formats whose rows have no topic, partition and offset unless the query makes them."""


def _own_sink(found: Any) -> tuple[type[BaseModel] | None, Callable[..., Any]]:
    """Return the settings that a sink of the user's takes, and what makes it with them."""
    if isinstance(found, type):
        model = own_class_model(found)
        name = inspect.signature(found).parameters.get("name")
        defaults = {"name": found.__name__} if name and name.default is name.empty else {}
        return model, lambda **settings: found(**(defaults | settings))
    if isinstance(found, Sink):
        kind = type(found)
        model = function_model() if kind is Function else own_class_model(kind, required=False)
        return model, lambda **settings: replace(found, **settings) if settings else found
    return function_model(), lambda **settings: sink_of(**settings)(found)


def _is_other_class(found: object) -> bool:
    return isinstance(found, type) and not issubclass(found, Sink)


def _article(found: object) -> str:
    """Return what an object is, in words."""
    if isinstance(found, type):
        return "another class"
    return f"of the type {type(found).__name__}"


def _headline(error: BaseException) -> str:
    """Return an error of the user's code on one line, whatever its message does."""
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception:  # noqa: BLE001 - whatever the user's class raises
        return f"{kind}, without a message"
