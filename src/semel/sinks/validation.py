"""Checks the settings of a sink when it is made.

Always true:
- an unknown or missing setting is a `ConfigurationError`, which names the nearest known one;
- a policy is one of the protocol's values, also if it was passed as a string.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from difflib import get_close_matches
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from semel.errors import ConfigurationError
from semel.protocol import OnDoubt, OnReject
from semel.sinks.callables import Retry, runs_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from enum import StrEnum

    from semel.events import Event
    from semel.protocol import DoubtWord, RejectWord

    Doubt = OnDoubt | DoubtWord | Callable[[Event], bool | None]

_P = ParamSpec("_P")
_T = TypeVar("_T")

AUTHORS = frozenset({"keyed_by_event", "span_chunks"})
"""Settings for authors of sinks, which messages to users do not list."""

_COUNTS = {"chunk_rows": 1, "span_chunks": 1, "park_limit": 0}
_TIMES = ("lease_s", "deadline_s", "remembers_s")


if TYPE_CHECKING:

    class DoubtPolicy:
        """`on_doubt` for type checkers: set as a string, a policy or a function, read as a
        policy.
        """

        def __get__(self, sink: object, kind: object) -> OnDoubt: ...

        def __set__(self, sink: object, given: Doubt) -> None: ...

    class RejectPolicy:
        """`on_reject` for type checkers: set as a string or a policy, read as a policy."""

        def __get__(self, sink: object, kind: object) -> OnReject: ...

        def __set__(self, sink: object, given: OnReject | RejectWord) -> None: ...


class Checked(ABCMeta):
    """The metaclass of sinks: it checks settings before a sink is made."""

    if not TYPE_CHECKING:  # an editor shows the settings of the sink itself

        def __call__(cls, *given: Any, **settings: Any) -> Any:
            """Make a sink. Raises `ConfigurationError` for settings that cannot work."""
            name = settings.get("name")
            who = f"sink {name!r}" if name else cls.__name__
            require_words(cls, who, given, settings)
            if name is not None and (not isinstance(name, str) or not name):
                raise ConfigurationError(f"{who}: name must be a non-empty string, got {name!r}")
            made = super().__call__(*given, **_read(who, settings))
            if "park_limit" not in settings:
                # The default grows with the chunk: a large chunk can be parked at once.
                object.__setattr__(made, "park_limit", max(made.park_limit, made.parked_at_once))
            return made

    @property
    def __signature__(cls) -> inspect.Signature:
        """The settings as `help` shows them: those of the sink itself."""
        made = inspect.signature(cls.__init__)  # type: ignore[misc]
        return made.replace(parameters=list(made.parameters.values())[1:])


def no_such(who: str, word: str, known: Iterable[str]) -> ConfigurationError:
    """Return the error for an unknown setting, with the nearest known one."""
    words = list(known)
    near = get_close_matches(word, words, 1)
    meant = f"; did you mean {near[0]!r}?" if near else "."
    return ConfigurationError(
        f"{who}: unknown setting {word!r}{meant} Settings: {', '.join(words)}"
    )


def no_column(what: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """Return the error for a setting that names a missing column, with the nearest column."""
    names = list(known)
    lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), list(lower), 1)
    meant = f"; did you mean {lower[near[0]]!r}?" if near else "."
    if name.partition(".")[0] in names:
        meant = ". It is a field of a column: select it as a column of its own."
    return ConfigurationError(
        f"{what} names the column {name!r}, which the DataFrame does not have{meant} It has "
        f"{', '.join(names)}. Correct the setting or the query"
    )


def require_words(
    function: Callable[..., object], who: str, given: tuple[Any, ...], words: Mapping[str, Any]
) -> None:
    """Raise `ConfigurationError` if `function` cannot be called with these arguments."""
    signature = _signature(function)
    try:
        signature.bind(*given, **words)
    except TypeError as error:
        named = {
            each.name: each
            for each in signature.parameters.values()
            if each.kind is each.KEYWORD_ONLY and each.name not in AUTHORS
        }
        for word in words:
            known = signature.parameters.get(word)
            if known is None or known.kind is known.POSITIONAL_ONLY:
                raise no_such(who, word, named) from None
        missing = [
            name for name, each in named.items() if each.default is each.empty and name not in words
        ]
        if missing:
            wanted = ", ".join(f"{name}=" for name in missing)
            raise ConfigurationError(f"{who}: missing: {wanted}") from None
        raise ConfigurationError(f"{who}: {error}; write every setting as name=value") from None


@lru_cache
def _signature(function: Callable[..., object]) -> inspect.Signature:
    """The same for every sink of a kind, and slow to find out."""
    return inspect.signature(function)


def checked_words(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Make a function raise `ConfigurationError` for unknown and missing parameters, as
    sinks do.
    """

    @wraps(function)
    def checking(*given: _P.args, **words: _P.kwargs) -> _T:
        name = words.get("name")
        who = f"pipeline {name!r}" if name else "pipeline"
        require_words(function, who, given, words)
        return function(*given, **words)

    return checking


def _read(who: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with those that all sinks share converted to the protocol's values."""
    read = dict(settings)
    if callable(read.get("on_doubt")):
        if read.get("probe") is not None:
            raise ConfigurationError(
                f"{who}: on_doubt is a function and probe is given too; pass only one of them"
            )
        read["probe"], read["on_doubt"] = read["on_doubt"], OnDoubt.PROBE
    if runs_nothing(read.get("probe")):
        raise ConfigurationError(
            f"{who}: the probe is `async def` or has a `yield`, so a call would run nothing. Make "
            "it an ordinary function that returns True, False or None"
        )
    if "on_doubt" in read:
        read["on_doubt"] = _one_of(OnDoubt, read["on_doubt"], who, "on_doubt")
    if "on_reject" in read:
        read["on_reject"] = _one_of(OnReject, read["on_reject"], who, "on_reject")
    retry = read.get("retry", Retry())
    if not isinstance(retry, Retry):
        seconds = f"{retry:g}" if isinstance(retry, int | float) else "30"
        raise ConfigurationError(f"{who}: retry must be a Retry; pass Retry(for_s={seconds})")
    for word, least in _COUNTS.items():
        value = read.get(word, least)
        if type(value) is not int or value < least:
            raise ConfigurationError(
                f"{who}: {word} must be an integer of at least {least}, got {value!r}"
            )
    for word in _TIMES:
        value = read.get(word, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ConfigurationError(
                f"{who}: {word} must be a number of seconds, not negative, got {value!r}"
            )
    return read


def _one_of(kind: type[StrEnum], value: Any, who: str, word: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        *others, last = ("a function" if each is OnDoubt.PROBE else each.value for each in kind)
        raise ConfigurationError(
            f"{who}: unknown {word} {value!r}; use {', '.join(others)} or {last}"
        ) from None
