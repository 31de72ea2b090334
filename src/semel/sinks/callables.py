"""Calls of code that semel did not write: what they return, and what they raise.

- A call of an `async def` or a generator function runs nothing. It returns an object that still has
  to be run, and that is true in Python, so it must not be taken for an answer.
- An exception that the code did not classify means that the outcome is unknown.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, OutcomeUnknown, plain_text

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

PROGRAMMING = (
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Errors of the code, not of the destination, as long as nothing was delivered."""


class Unclassified(OutcomeUnknown):
    """It may have arrived; `__cause__` is the exception that the sink raised."""

    @classmethod
    def of(cls, error: Exception) -> Unclassified:
        """Wrap an exception that is not one of semel's."""
        made = cls(f"{type(error).__name__}: {plain_text(error)}")
        made.__cause__ = error
        return made


def is_programming(error: BaseException | None) -> bool:
    """Return whether an error, or the cause of an unclassified one, is an error of the code."""
    if isinstance(error, Unclassified):
        error = error.__cause__
    return isinstance(error, PROGRAMMING)


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
