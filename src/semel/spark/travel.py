"""Whether a sink can travel to the executors, and if not, which part of it cannot.

Always true: it is pickled as Spark pickles it, on the driver, before anything starts.
"""

from __future__ import annotations

from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, plain_text
from semel.sinks import Function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from semel.sinks import Sink

_DEEP = 8
"""So many steps into what cannot be pickled; deeper, its type alone says little more."""


def refuse_rooted(sinks: Iterable[Sink]) -> None:
    """Raise `ConfigurationError` for a sink that cannot be pickled; it names the part that holds
    it back.
    """
    for sink in sinks:
        error = _failure(sink)
        if error is None:
            continue
        where, held = _held(sink)
        instead = (
            "Open it inside the function, or keep it in a module that the function imports"
            if isinstance(sink, Function)
            else "Open it in the sink's open(), which runs on the executor, and keep it in the "
            "session"
        )
        raise ConfigurationError(
            f"sink {sink.name!r} cannot be sent to the executors: {where or 'the sink itself'} is "
            f"a {_kind(held)}, which cannot be pickled ({plain_text(error)}). {instead}"
        )


def _failure(value: object) -> Exception | None:
    """Pickle as Spark does; give what it raises."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle
    try:
        pickler.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever a __reduce__ of the user's raises
        return error
    return None


def _held(sink: Sink) -> tuple[str, object]:
    """Follow the parts that cannot be pickled to the last one, and say how it is reached."""
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
    """What a value takes with it when it is pickled, each with its name."""
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
    """The global names that a function's code uses, those of functions inside of it as well."""
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
