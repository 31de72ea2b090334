"""What is wrong with a pipeline file: each problem with its line, and all of them at once.

Always true: no message holds a value that came from the environment or from a file of a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from semel.errors import ConfigurationError, plain_text
from semel.events.encoding import ascii_json
from semel.urls import conceal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semel.pipeline.positions import Path, Positions, TextPlace

PROBLEMS_MAX = 50
MESSAGE_MAX = 1_000
SECRET_MIN = 4
"""A shorter value from the environment is not hidden: it would hide parts of ordinary words."""


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One thing that is wrong, and where."""

    place: TextPlace
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"line": self.place.line, "column": self.place.column, "message": self.message}


class WrongPipelineFile(ConfigurationError):
    """A pipeline file cannot be used; the text has a line for each problem."""

    def __init__(self, file: str, problems: tuple[Mistake, ...]) -> None:
        super().__init__(file, problems)
        self.file = file
        self.problems = problems

    @property
    def lines(self) -> tuple[str, ...]:
        """The problems as `FILE:LINE:COLUMN: message`, in the order of the file."""
        shown = [
            f"{self.file}:{each.place.line}:{each.place.column}: {each.message}"
            for each in self.problems[:PROBLEMS_MAX]
        ]
        more = len(self.problems) - PROBLEMS_MAX
        if more > 0:
            shown.append(f"{self.file}: and {more} more; correct these first")
        return tuple(shown)

    def __str__(self) -> str:
        return "\n".join(self.lines)


@dataclass
class Problems:
    """Collects what is wrong with one file.

    Attributes:
        secrets: values that no message may hold.
    """

    file: str
    positions: Positions
    secrets: set[str] = field(default_factory=set, repr=False)
    found: list[Mistake] = field(default_factory=list)

    def hide(self, value: str) -> None:
        """Let no message hold this value, or a line of it, however it is written."""
        for each in (value, *value.splitlines()):
            if len(each) >= SECRET_MIN:
                self.secrets |= _written(each)

    def at_key(self, path: Path, message: object) -> None:
        """Add what is wrong with a key or a table."""
        self._add(self.positions.key(path), message)

    def at_value(self, path: Path, message: object) -> None:
        """Add what is wrong with a value."""
        self._add(self.positions.value(path), message)

    def has(self, path: Path) -> bool:
        """Return whether something is wrong at a value, or within it."""
        places = {
            place
            for known in (self.positions.keys, self.positions.values)
            for at, place in known.items()
            if at[: len(path)] == path
        }
        return any(each.place in places for each in self.found)

    def shown(self, text: object) -> str:
        """Return a text without secrets, on one line."""
        return plain_text(conceal(str(text), self.secrets), MESSAGE_MAX)

    def _add(self, place: TextPlace, message: object) -> None:
        problem = Mistake(place, self.shown(message))
        if problem not in self.found:
            self.found.append(problem)

    def raise_any(self) -> None:
        """Raise `WrongPipelineFile` if anything is wrong."""
        if self.found:
            raise WrongPipelineFile(self.file, tuple(sorted(self.found))) from None


def _written(secret: str) -> set[str]:
    """Return a secret as it is, and as Python, JSON, URLs and templates write it."""
    python = repr(secret)[1:-1].replace("\\'", "'")  # a quote is escaped only beside another one
    plain = {secret, python, python.replace("'", "\\'"), ascii_json(secret)[1:-1]}
    templates = {each.replace("{", "{{").replace("}", "}}") for each in plain}
    return plain | templates | {quote(secret), quote(secret, safe=""), quote_plus(secret)}


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the rest of a sentence about an unknown name: the nearest known one, or all."""
    names = list(known)
    near = get_close_matches(name.lower(), names, 1)
    return f"did you mean {near[0]!r}?" if near else f"use {', '.join(names)}"
