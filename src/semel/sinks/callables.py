"""Functions and methods that a call does not run: `async def` and generators.

A call of one returns an object that still has to be run. It is true in Python, so it must not be
taken for an answer.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.sinks.sink import AnySession, Sink

_METHODS = (
    "deliver",
    "arrived",
    "take_over",
    "deliver_with",
    "deliver_again",
    "delivered_ids",
    "write",
    "finish",
    "close",
)
"""The methods of all session protocols."""


def runs_nothing(function: object) -> bool:
    """Return whether a call of this function or callable object runs none of its code."""
    while isinstance(function, partial):
        function = function.func
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    called = getattr(type(function), "__call__", None)  # noqa: B004 - an object's own
    return any(kind(each) for kind in kinds for each in (function, called))


def left_to_run(answer: Any) -> str | None:
    """Describe a returned object that still has to be run; None for any other object."""
    if inspect.isawaitable(answer):
        return f"a {type(answer).__name__} that is never awaited"
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        return "a generator that is never run"
    return None


def checked_session(sink: Sink, session: AnySession) -> AnySession:
    """Return the session. Raises `ConfigurationError` if a call of one of its methods would run
    nothing, because each such call would count as a success.
    """
    for name in _METHODS:
        if runs_nothing(getattr(type(session), name, None)):
            raise ConfigurationError(
                f"sink {sink.name!r}: {type(session).__name__}.{name} is `async def` or has a "
                "`yield`, so a call would do nothing. Make it an ordinary method"
            )
    return session
