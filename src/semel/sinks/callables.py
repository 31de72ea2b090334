"""What a call does not run: `async def` and generators give something that somebody has to run.

So an answer of that kind says nothing of what was to be done, though it counts as true in Python.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any


def runs_nothing(function: object) -> bool:
    """Whether a call of this function, or of this object, runs nothing of it."""
    while isinstance(function, partial):
        function = function.func
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    called = getattr(type(function), "__call__", None)  # noqa: B004 - an object's own
    return any(kind(each) for kind in kinds for each in (function, called))


def left_to_run(answer: Any) -> str | None:
    """Name what a call gave that is still to be run; None where it gave no such thing."""
    if inspect.isawaitable(answer):
        return f"a {type(answer).__name__}, and nobody awaits it"
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        return "a generator, and nobody runs it"
    return None
