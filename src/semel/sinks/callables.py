"""Calls of code that semel did not write: what they return and raise, how long they are retried.

- A call of an `async def` or a generator function runs nothing. It returns an object that still has
  to be run, and that is true in Python, so it must not be taken for an answer.
- An exception that the code did not classify means that the outcome is unknown.
- Only a call that surely delivered nothing is tried again: backoff with jitter and a limit.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError, OutcomeUnknown, plain_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from semel.runtime import Runtime
    from semel.sinks.sink import AnySession, Sink

_METHODS = (
    "deliver",
    "submit",
    "collect",
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
    name = _method_that_runs_nothing(type(session))
    if name is not None:
        raise ConfigurationError(
            f"sink {sink.name!r}: {type(session).__name__}.{name} is `async def` or has a "
            "`yield`, so a call would do nothing. Make it an ordinary method"
        )
    return session


@lru_cache(maxsize=256)
def _method_that_runs_nothing(kind: type) -> str | None:
    """Look at the methods of a session once for its class: a session is opened for each partition
    of each minibatch.
    """
    return next((name for name in _METHODS if runs_nothing(getattr(kind, name, None))), None)


@dataclass(frozen=True, slots=True)
class Retry:
    """Wait `first_s`, then twice as long each time up to `most_s`, until `for_s` have passed in
    all, calls and pauses together. A call that has begun is not cut short.
    """

    first_s: float = 0.1
    most_s: float = 10.0
    for_s: float = 60.0

    def __post_init__(self) -> None:
        if not (self.first_s > 0 and self.most_s > 0):
            raise ConfigurationError(
                f"{self}: first_s and most_s must be greater than 0, otherwise the retries never "
                "end"
            )

    def tries(self, runtime: Runtime, *, only_pauses: bool = False) -> Iterator[None]:
        """Begin one try after the other, each after its pause, until `for_s` have passed: by the
        clock, or, for tries that have to wait themselves, by the pauses between them only.
        """
        monotonic = None if only_pauses else runtime.clock.monotonic
        for wait_s in self.waits(runtime.random, monotonic):
            if wait_s:
                runtime.clock.sleep(wait_s)
            yield

    def waits(
        self, random: Random, monotonic: Callable[[], float] | None = None
    ) -> Iterator[float]:
        """Return how long to wait before each try: zero before the first, then each pause."""
        pauses = self.pauses(random, monotonic)  # time counts from before the first try
        yield 0.0
        yield from pauses

    def pauses(
        self,
        random: Random,
        monotonic: Callable[[], float] | None = None,
        began: float | None = None,
    ) -> Iterator[float]:
        """Return the pauses, each between half and all of its step, until `for_s` have passed: by
        their sum, and by the clock if there is one, counted from `began` or from now.
        """
        if began is None:
            began = monotonic() if monotonic is not None else 0.0
        return self._pauses(random, monotonic, began)

    def _pauses(
        self, random: Random, monotonic: Callable[[], float] | None, began: float
    ) -> Iterator[float]:
        paused, step = 0.0, self.first_s
        while True:
            spent = paused if monotonic is None else max(paused, monotonic() - began)
            if spent >= self.for_s:
                return
            pause = min(step * (0.5 + random.random() / 2), self.for_s - spent)
            yield pause
            paused += pause
            step = min(step * 2, self.most_s)
