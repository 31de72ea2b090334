"""What a benchmark says while it runs, what it has measured, and what it leaves when it fails.

Always true: every figure is kept as soon as a side has measured it, so none is lost where a later
turn fails; whose turn it was is known.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.runtime import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Length:
    """How long a benchmark takes on 2 quiet cores: its start, and each turn of each of its sides.

    Attributes:
        sides: how many sides take their turn in each repetition, all comparisons together.
    """

    sides: int
    turn_s: float
    start_s: float = 30.0

    def turns(self, repetitions: int) -> int:
        """How many turns there are; the first repetition warms up."""
        return self.sides * (repetitions + 1)

    def seconds(self, repetitions: int) -> float:
        """How long all of it takes."""
        return self.start_s + self.turns(repetitions) * self.turn_s


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side measured in one turn; turn 0 warmed it up."""

    what: str
    side: str
    turn: int
    figures: tuple[float, ...]
    unit: str

    def told(self) -> str:
        """Say it in a line."""
        figures = " and ".join(f"{each:,.4g}" for each in self.figures)
        return f"{self.what}, turn {self.turn}: {self.side}: {figures} {self.unit}"


class Progress:
    """Says how far a benchmark is, and keeps what it has measured.

    Attributes:
        measured: what the sides have measured so far.
        under_way: whose turn it is; None between turns.
    """

    def __init__(
        self,
        show: Callable[[str], None] = lambda _: None,
        length: Length | None = None,
        repetitions: int = 0,
    ) -> None:
        self._show = show
        self._length, self._repetitions = length, repetitions
        self._began = CLOCK.monotonic()
        self._first: float | None = None
        self.measured: list[Turn] = []
        self._logs: dict[str, str] = {}
        self.under_way: str | None = None
        self._saying = "the start"

    def __call__(self, text: str) -> None:
        """Say what is done now."""
        self._saying = text
        self._show(text)

    def estimate(self) -> str:
        """Say before it starts how long it will take."""
        if self._length is None:
            return "nobody knows how long this takes"
        turns = self._length.turns(self._repetitions)
        minutes = self._length.seconds(self._repetitions) / 60
        return f"about {minutes:.0f} minutes on 2 quiet cores: {turns} turns"

    def turn(
        self, what: str, turn: int, repetitions: int, side: str, unit: str, run: Callable[[], Any]
    ) -> Any:
        """Let a side have its turn, and keep what it measured."""
        now = CLOCK.monotonic()
        self._first = now if self._first is None else self._first
        saying = f"{what}, turn {turn} of {repetitions}: {side}"
        self(f"{saying} ({self._left(now)})")
        self.under_way = self._saying = saying
        found = run()
        figures = tuple(found) if isinstance(found, tuple) else (found,)
        self.measured.append(Turn(what, side, turn, figures, unit))
        self.under_way = None
        return found

    def _left(self, now: float) -> str:
        """How long it has taken, and how long it will still take at this pace."""
        so_far = f"{(now - self._began) / 60:.0f} min so far"
        done = len(self.measured)
        if self._length is None or self._first is None or not done:
            return so_far
        left = max(0, self._length.turns(self._repetitions) - done)
        return f"{so_far}, about {left * (now - self._first) / done / 60:.0f} min left"

    @contextmanager
    def leaves(self, logs: Mapping[str, Callable[[], str]]) -> Iterator[None]:
        """Keep these logs, by the names of files, where what is done within fails: afterwards the
        servers that wrote them are gone.
        """
        try:
            yield
        except BaseException:
            self._logs |= {name: _read(log) for name, log in logs.items()}
            raise

    def failed(self, name: str, error: BaseException) -> Failure:
        """Keep what is left of a benchmark that failed: the error, and the logs of its servers."""
        folder = Path(tempfile.mkdtemp(prefix=f"semel-bench-{name}-failed-"))
        kept = {
            "error.txt": "".join(traceback.format_exception(error)),
            "measured.json": json.dumps([asdict(each) for each in self.measured], indent=2),
            **self._logs,
        }
        for file, text in kept.items():
            (folder / file).write_text(text, errors="replace")
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
        where = f"in the turn of {self.under_way}" if self.under_way else f"after {self._saying!r}"
        return Failure(name, where, said[:500], tuple(self.measured), folder, tuple(kept))


def _read(log: Callable[[], str]) -> str:
    try:
        return log()
    except OSError as error:
        return f"could not be read: {error}"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a benchmark failed.

    Attributes:
        where: whose turn it was, or what came before.
        folder: where the error and the logs are kept, in `files`.
    """

    name: str
    where: str
    error: str
    measured: tuple[Turn, ...]
    folder: Path
    files: tuple[str, ...]

    def told(self) -> str:
        """Say it in a few lines."""
        return "\n".join(
            [
                f"semel bench {self.name} failed {self.where}: {self.error}",
                f"the error and the logs are kept in {self.folder}: {', '.join(self.files)}",
                "measured so far:" if self.measured else "nothing was measured so far",
                *(f"  {each.told()}" for each in self.measured),
            ]
        )

    def to_json(self) -> Mapping[str, Any]:
        """Give it as JSON."""
        return {
            "failed": {
                "where": self.where,
                "error": self.error,
                "folder": str(self.folder),
                "files": list(self.files),
            },
            "measured": [asdict(each) for each in self.measured],
        }
