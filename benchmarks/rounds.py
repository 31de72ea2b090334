"""Rounds in which all sides of a benchmark run, and its Spark session and temporary folder."""

from __future__ import annotations

import tempfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from semel.spark.session import make_session
from semel.verify.servers.cleanup import CleanupAtExit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.progress import BenchmarkProgress

T = TypeVar("T")

ROOT = Path(__file__).parents[1]

# Spark ends a moment later than this process, and may recreate the folder.
_CLEAR = 'for _ in 1 2 3 4 5; do rm -rf "$1"; sleep 0.5; [ -e "$1" ] || exit 0; done'


def rounds(
    say: BenchmarkProgress,
    what: str,
    repetitions: int,
    sides: Mapping[str, Callable[[], T]],
    unit: str,
) -> dict[str, list[T]]:
    """Run every side once a round and return what each measured. Round 0 warms all of them up: it
    is measured too, and comes first. `unit` is the unit of the figures.
    """
    found: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(repetitions + 1):
        for name, side in sides.items():
            found[name].append(say.run(what, number, repetitions, name, unit, side))
    return found


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that is removed afterwards, also when this process is killed."""
    made = tempfile.mkdtemp(prefix="semel-benchmark-")
    with closing(CleanupAtExit(_CLEAR, made)):
        yield Path(made)


@contextmanager
def session(name: str, settings: dict[str, str]) -> Iterator[Any]:
    """A Spark session that is stopped afterwards; its Python workers can import `benchmarks`."""
    path = {"spark.executorEnv.PYTHONPATH": str(ROOT)}
    spark = make_session(f"semel benchmark {name}", settings={**settings, **path})
    try:
        yield spark
    finally:
        spark.stop()
