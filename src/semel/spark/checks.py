"""Checks that refuse a pipeline before any event moves, because it would break the promise.

Always true:
- parameters of a wrong type are refused first, before anything is written or Spark is called; a
  string is never taken for a flag, because "no" would be true;
- a sink is pickled on the driver as Spark pickles it, before anything starts, and the message
  names the part that cannot be pickled.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, plain_text
from semel.protocol import Capability
from semel.spark.frames.plan import route
from semel.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from semel.delivery import PipelineSpec
    from semel.sinks import Sink


ASYNCHRONOUS = "asyncprogresstrackingenabled"
NO_MICRO_BATCHES = ("continuous", "realTime")
"""The triggers without micro-batches; not every version of Spark has both."""


def refuse_optimized() -> None:
    """Refuse Python without assertions: violations of the design would go unnoticed."""
    if sys.flags.optimize:
        raise ConfigurationError(
            "Python runs with -O (PYTHONOPTIMIZE), which removes the checks that semel's promise "
            "rests on: start the driver and the executors without it"
        )


def refuse_session(spark: SparkSession, spec: PipelineSpec) -> None:
    """Refuse an interpreter or a session with which an effect could happen twice unnoticed."""
    refuse_optimized()
    refuse_stopped(spark, spec.name)
    if (spark.conf.get("spark.speculation", "false") or "").lower() != "true":
        return
    for sink in spec.sinks:
        if sink.capability in (Capability.OPAQUE, Capability.PROBING):
            raise ConfigurationError(
                f"pipeline {spec.name!r}: speculation runs a partition twice at the same time, and "
                f"sink {sink.name!r} is {sink.capability.value}: its destination cannot refuse the "
                "second. Set spark.speculation=false for this application"
            )


def refuse_stopped(spark: Any, name: str) -> None:
    """Refuse a session that was stopped."""
    try:
        if hasattr(spark, "_jsparkSession"):
            stopped = bool(spark._jsparkSession.sparkContext().isStopped())  # noqa: SLF001
        else:
            stopped = bool(spark.is_stopped)  # Spark Connect
    except Exception:  # noqa: BLE001 - the JVM is gone, and the session with it
        stopped = True
    if stopped:
        raise ConfigurationError(
            f"pipeline {name!r}: the Spark session of the DataFrame is stopped. Start a session, "
            "read the DataFrame from it again, and call spark.stop() only after the query has ended"
        )


def refuse_columns(frame: DataFrame, sinks: Iterable[Sink]) -> None:
    """Refuse columns that Arrow cannot carry or that a sink's destination cannot hold."""
    schema = arrow_schema(frame.schema)
    for sink in sinks:
        sink.refuse(schema)


def refuse_trigger(spec: PipelineSpec, trigger: Mapping[str, Any]) -> None:
    """Refuse triggers without micro-batches."""
    for word in NO_MICRO_BATCHES:
        if trigger.get(word) is not None:
            raise ConfigurationError(
                f"pipeline {spec.name!r}: trigger({word}=...) runs without micro-batches, "
                "which semel opens and completes. Use processingTime or availableNow"
            )


def refuse_options(spec: PipelineSpec, options: Mapping[str, str]) -> None:
    """Refuse options under which a restart replays more than the ledger keeps."""
    if options.get(ASYNCHRONOUS, "false").lower() == "true":
        raise ConfigurationError(
            f"pipeline {spec.name!r}: asynchronous progress tracking commits only some of the "
            "micro-batches, so a restart replays more than the ledger keeps. "
            "Remove asyncProgressTrackingEnabled"
        )


def refuse_mode(spec: PipelineSpec, mode: str) -> None:
    """Refuse output modes in which an id comes again with new values."""
    if mode != "append" and not spec.identity.allows_update_mode:
        raise ConfigurationError(
            f"pipeline {spec.name!r}: in {mode} mode a row comes again with new values under "
            'the same id. Use append mode, identity="counter", or an id that includes a version: '
            'event=["window.start", "version"]'
        )


def refuse_moved(frame: DataFrame, name: str) -> None:
    """Refuse, for position identity, a plan that puts a source partition into several tasks or
    reads several sources.
    """
    found = route(frame)
    instead = "use given identity (entity=, event=)"
    if found.splitting:
        raise ConfigurationError(
            f"pipeline {name!r}: the Kafka source has {', '.join(found.splitting)}, with which "
            "Spark reads one partition of a topic in several tasks; by position, one task delivers "
            f"a source partition in the order of its offsets. Remove the option, or {instead}"
        )
    if found.sources > 1:
        raise ConfigurationError(
            f"pipeline {name!r}: the DataFrame reads {found.sources} streaming sources, and "
            "positions are unique within one source only. Read all topics with one source "
            f'(.option("subscribe", "a,b")), run one pipeline for each source, or {instead}'
        )
    if found.moving:
        raise ConfigurationError(
            f"pipeline {name!r}: {found.moving!r} in the plan puts the rows of a source partition "
            "into several tasks; by position, one task delivers a source partition in the order of "
            "its offsets. Remove repartition, deduplication and shuffled joins before "
            f"semel.deliver (broadcast the static side of a join), or {instead}"
        )


def require_types(pipeline: str, words: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for the first parameter whose value has the wrong type."""
    for word, value in words.items():
        fits, form = _FORMS[word]
        if not fits(value):
            raise ConfigurationError(
                f"pipeline {pipeline!r}: {word} must be {form}, got {_shown(word, value)}"
            )


def _shown(word: str, value: object) -> str:
    if word != "ledger":
        return repr(value)
    if isinstance(value, Path):
        return f"a path. Write it as a URL: ledger={f'sqlite:///{value}'!r}"
    return type(value).__name__  # it may hold a password


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and value >= 1)


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0  # type: ignore[operator, arg-type]


def _is_name(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_names(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return bool(value) and all(isinstance(each, str) for each in value)
    return _is_name(value)


_FLAG = (_is_flag, "True or False")
_NAMES = (_is_names, "the name of a column, or a list of names")
_FORMS: dict[str, tuple[Callable[[object], bool], str]] = {
    "entity": (_is_name, "the name of one column; combine several columns into one first"),
    "event": _NAMES,
    "order_by": _NAMES,
    "ledger": (_is_name, "a URL: sqlite:///path or postgresql://..."),
    "partitions": (_is_count, "a whole number of at least 1"),
    "order": _FLAG,
    "increasing": _FLAG,
    "accept_gap": _FLAG,
    "otel": _FLAG,
    "standby": _FLAG,
    "drop_repeats": _FLAG,
    "fail_on_parked": _FLAG,
    "remember_s": (_is_time, "a number of seconds, not negative"),
}


_DEEP = 8
"""How many levels deep the part that cannot be pickled is searched for."""


def refuse_rooted(sinks: Iterable[Sink]) -> None:
    """Raise `ConfigurationError` for a sink that cannot be pickled, with the part that cannot."""
    for sink in sinks:
        error = _failure(sink)
        if error is None:
            continue
        where, held = _held(sink)
        raise ConfigurationError(
            f"sink {sink.name!r} cannot be sent to the executors: {where or 'the sink itself'} is "
            f"a {_kind(held)}, which cannot be pickled ({plain_text(error)}). "
            f"{sink.pickling_advice}"
        )


def _failure(value: object) -> Exception | None:
    """Pickle as Spark does; return the error, if any."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle
    try:
        pickler.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever a __reduce__ of the user's raises
        return error
    return None


def _held(sink: Sink) -> tuple[str, object]:
    """Return the innermost part that cannot be pickled, and the path to it."""
    where, value = "", sink
    for _ in range(_DEEP):
        found = next(
            ((name, part) for name, part in _parts(value) if _failure(part) is not None), None
        )
        if found is None:
            break
        name, value = found
        where = f"{name} of {where}" if where else name
    return where, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is pickled together with a value, each part with its name."""
    if isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        yield from ((f"{name!r}", cell) for name, cell in zip(names, cells, strict=False))
        known = value.__globals__
        yield from ((f"{name!r}", known[name]) for name in _names(value.__code__) if name in known)
        yield from ((f"a default of {value.__name__}", each) for each in value.__defaults__ or ())
        yield from ((f"{name!r}", each) for name, each in (value.__kwdefaults__ or {}).items())
    elif isinstance(value, MethodType):
        yield "the object", value.__self__
        yield value.__name__, value.__func__
    elif isinstance(value, partial):
        yield "the function", value.func
        yield from ((f"argument {at}", each) for at, each in enumerate(value.args))
        yield from ((f"{name!r}", each) for name, each in value.keywords.items())
    elif isinstance(value, dict):
        yield from ((f"{key!r}", each) for key, each in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"element {at}", each) for at, each in enumerate(value))
    else:
        slots = [name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())]
        kept = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        kept |= getattr(value, "__dict__", {})
        yield from (
            (
                f"the function {each.__name__}" if isinstance(each, FunctionType) else repr(name),
                each,
            )
            for name, each in kept.items()
        )


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True


def _names(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function's code uses, including those of nested functions."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _kind(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
