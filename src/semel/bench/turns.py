"""What every benchmark needs: sides that take turns, and a session and a folder that go with it."""

from __future__ import annotations

import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from semel.bench.caretakers import Caretaker
from semel.spark.session import make_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from semel.bench.progress import Progress

T = TypeVar("T")

# Spark outlives us by a moment, and may make the folder anew.
_CLEAR = 'for _ in 1 2 3 4 5; do rm -rf "$1"; sleep 0.5; [ -e "$1" ] || exit 0; done'


def turns(
    say: Progress,
    what: str,
    repetitions: int,
    sides: Mapping[str, Callable[[], T]],
    unit: str,
) -> dict[str, list[T]]:
    """Let the sides take turns and give what each measured. The first turn warms all of them up: it
    is measured too, and comes first. `unit` is that of what a side measures.
    """
    found: dict[str, list[T]] = {name: [] for name in sides}
    for turn in range(repetitions + 1):
        for name, side in sides.items():
            found[name].append(say.turn(what, turn, repetitions, name, unit, side))
    return found


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards, also where this process is ended or killed."""
    made = tempfile.mkdtemp(prefix="semel-bench-")
    with closing(Caretaker(_CLEAR, made)):
        yield Path(made)


@contextmanager
def session(name: str, settings: dict[str, str]) -> Iterator[Any]:
    """A Spark session that is stopped afterwards."""
    spark = make_session(f"semel bench {name}", settings=settings)
    try:
        yield spark
    finally:
        spark.stop()
