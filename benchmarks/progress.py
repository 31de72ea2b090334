"""The progress of a benchmark, what it has measured, and what it keeps when it fails.

Always true: every figure is kept as soon as a side has measured it, so none is lost when a later
round fails; the side that failed is known.
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
    """How long a benchmark takes on 2 quiet cores: its start, and each run of each side.

    Attributes:
        sides: the number of sides that run in each round, all comparisons together.
    """

    sides: int
    run_s: float
    start_s: float = 30.0

    def runs(self, repetitions: int) -> int:
        """The number of runs of all sides; round 0 warms up."""
        return self.sides * (repetitions + 1)

    def seconds(self, repetitions: int) -> float:
        """The time that all of it takes."""
        return self.start_s + self.runs(repetitions) * self.run_s


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one side measured in one round; round 0 warmed it up."""

    what: str
    side: str
    round: int
    figures: tuple[float, ...]
    unit: str

    def __str__(self) -> str:
        figures = " and ".join(f"{each:,.4g}" for each in self.figures)
        return f"{self.what}, round {self.round}: {self.side}: {figures} {self.unit}"


class BenchmarkProgress:
    """Shows how far a benchmark is, and keeps what it has measured.

    Attributes:
        measured: what the sides have measured so far.
        under_way: the side that runs now, and its round; None between runs.
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
        self.measured: list[Measurement] = []
        self._logs: dict[str, str] = {}
        self.under_way: str | None = None
        self._shown = "the start"

    def __call__(self, text: str) -> None:
        """Show what is done now."""
        self._shown = text
        self._show(text)

    def estimate(self) -> str:
        """How long it will take, for a person who starts it."""
        if self._length is None:
            return "its duration is not known"
        runs = self._length.runs(self._repetitions)
        minutes = self._length.seconds(self._repetitions) / 60
        return f"about {minutes:.0f} minutes on 2 quiet cores: {runs} runs"

    def run(
        self,
        what: str,
        number: int,
        repetitions: int,
        side: str,
        unit: str,
        measure: Callable[[], Any],
    ) -> Any:
        """Run one side in the round `number`, and keep what it measured."""
        now = CLOCK.monotonic()
        self._first = now if self._first is None else self._first
        shown = f"{what}, round {number} of {repetitions}: {side}"
        self(f"{shown} ({self._left(now)})")
        self.under_way = self._shown = shown
        found = measure()
        figures = tuple(found) if isinstance(found, tuple) else (found,)
        self.measured.append(Measurement(what, side, number, figures, unit))
        self.under_way = None
        return found

    def _left(self, now: float) -> str:
        """The time so far, and the time left at this pace."""
        so_far = f"{(now - self._began) / 60:.0f} min so far"
        done = len(self.measured)
        if self._length is None or self._first is None or not done:
            return so_far
        left = max(0, self._length.runs(self._repetitions) - done)
        return f"{so_far}, about {left * (now - self._first) / done / 60:.0f} min left"

    @contextmanager
    def leaves(self, logs: Mapping[str, Callable[[], str]]) -> Iterator[None]:
        """Keep these logs, by file name, if the body fails: the servers that wrote them are gone
        afterwards.
        """
        try:
            yield
        except BaseException:
            self._logs |= {name: _read(log) for name, log in logs.items()}
            raise

    def failed(self, name: str, error: BaseException) -> Failure:
        """Write the error, the measurements and the logs of a failed benchmark to a folder."""
        folder = Path(tempfile.mkdtemp(prefix=f"semel-benchmark-{name}-failed-"))
        kept = {
            "error.txt": "".join(traceback.format_exception(error)),
            "measured.json": json.dumps([asdict(each) for each in self.measured], indent=2),
            **self._logs,
        }
        for file, text in kept.items():
            (folder / file).write_text(text, errors="replace")
        lines = str(error).strip().splitlines() or [""]
        message = f"{type(error).__name__}: {lines[0]}" if lines[0] else type(error).__name__
        where = f"in {self.under_way}" if self.under_way else f"after {self._shown!r}"
        return Failure(name, where, message[:500], tuple(self.measured), folder, tuple(kept))


def _read(log: Callable[[], str]) -> str:
    try:
        return log()
    except OSError as error:
        return f"could not be read: {error}"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a benchmark failed.

    Attributes:
        where: the side that ran and its round, or what was shown last.
        folder: the folder that has the error and the logs (`files`).
    """

    name: str
    where: str
    error: str
    measured: tuple[Measurement, ...]
    folder: Path
    files: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(
            [
                f"benchmark {self.name} failed {self.where}: {self.error}",
                f"the error and the logs are kept in {self.folder}: {', '.join(self.files)}",
                "measured so far:" if self.measured else "nothing was measured so far",
                *(f"  {each}" for each in self.measured),
            ]
        )

    def to_json(self) -> Mapping[str, Any]:
        """Return it as JSON."""
        return {
            "failed": {
                "where": self.where,
                "error": self.error,
                "folder": str(self.folder),
                "files": list(self.files),
            },
            "measured": [asdict(each) for each in self.measured],
        }
