"""The words of `deliver` and `deliver_batch`: a value of another type is refused with the value.

Always true: nothing is written, and nothing of Spark is asked, before every word is of its type. A
text is never taken for true: "no" would be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def require_types(pipeline: str, words: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for the first word whose value is of another type than it has."""
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
    "entity": (_is_name, "the name of one column; what several columns name is one column of them"),
    "event": _NAMES,
    "order_by": _NAMES,
    "ledger": (_is_name, "a URL: sqlite:///path or postgresql://..."),
    "partitions": (_is_count, "a whole number of at least 1"),
    "order": _FLAG,
    "increasing": _FLAG,
    "accept_gap": _FLAG,
    "fail_on_parked": _FLAG,
    "remember_s": (_is_time, "a number of seconds, not negative"),
}
