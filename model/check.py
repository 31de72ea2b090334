"""Checks the model of the protocol: TLC explores every state of small worlds, and finds each
planted bug. Run as `python -m model.check`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from model.worlds import LARGE, LIVENESS, PLANTED, STANDARD, World

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
VIOLATED = re.compile(r"Invariant (\w+) is violated|(Temporal properties were violated)")
STATES = re.compile(r"^([\d,]+) states generated, ([\d,]+) distinct states found", re.MULTILINE)
COMPLETE = "Model checking completed. No error has been found."


@dataclass(frozen=True, slots=True)
class Outcome:
    """What TLC found in one world.

    Attributes:
        complete: whether every state was explored and nothing was violated.
        violated: the property that does not hold, if there is one.
        states: how many distinct states it saw.
        output: all that it printed, with the steps to the violation.
    """

    world: World
    complete: bool
    violated: str | None
    states: int
    seconds: float
    output: str

    @property
    def as_expected(self) -> bool:
        """Whether everything holds; with a planted bug, whether the property it breaks does not."""
        if self.world.bug == "none":
            return self.complete
        return self.violated in self.world.properties

    @property
    def line(self) -> str:
        """One line for the terminal."""
        found = "holds" if self.complete else f"violates {self.violated}"
        if not self.complete and self.violated is None:
            found = "unknown: TLC did not finish"
        mark = "ok" if self.as_expected else "FAILED"
        name = self.world.name if self.world.bug == "none" else f"planted: {self.world.name}"
        return f"{mark:6} {name:48} {found:32} {self.states:>9,} states {self.seconds:6.1f} s"


@cache
def tools() -> Path:
    """The jar of TLC; the first use fetches it with Maven."""
    fetch = HERE.parent / ".ci" / "model" / "fetch"
    done = subprocess.run([fetch], stdout=subprocess.PIPE, text=True, check=True)
    [jar] = Path(done.stdout.strip()).glob("*.jar")
    return jar


def explore(world: World, within_s: float) -> Outcome:
    """Run TLC on one world, in a folder of its own that is removed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="semel-model-") as name:
        folder = Path(name)
        for each in HERE.glob("*.tla"):
            shutil.copy(each, folder)
        (folder / "World.tla").write_text(world.module)
        (folder / "World.cfg").write_text(world.settings)
        # fmt: off
        command = [
            "java", "-Xmx3g", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={folder}",
            "-cp", str(tools()), "tlc2.TLC", "-workers", "1", "-lncheck", "final",
            "-metadir", str(folder / "states"), "World",
        ]
        # fmt: on
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=within_s,
                check=False,
            )
            output = done.stdout
        except subprocess.TimeoutExpired:
            output = f"TLC was stopped after {within_s:g} s"
    found = VIOLATED.search(output)
    counted = STATES.search(output)
    return Outcome(
        world=world,
        complete=COMPLETE in output,
        violated=None if found is None else found[1] or LIVENESS,
        states=0 if counted is None else int(counted[2].replace(",", "")),
        seconds=time.monotonic() - began,
        output=output,
    )


def explore_all(worlds: Sequence[World], processes: int, within_s: float) -> list[Outcome]:
    """Explore several worlds at once, and print a line for each as it ends."""

    def one(world: World) -> Outcome:
        outcome = explore(world, within_s)
        sys.stdout.write(outcome.line + "\n")
        sys.stdout.flush()
        return outcome

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, worlds))


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore the worlds, and return 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m model.check", description=__doc__)
    parser.add_argument("--large", action="store_true", help="larger worlds too")
    parser.add_argument("--only", default="", help="worlds and bugs with this text in their names")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    worlds = [*(LARGE if chosen.large else STANDARD), *PLANTED]
    worlds = [each for each in worlds if chosen.only in each.name]
    began = time.monotonic()
    outcomes = explore_all(worlds, chosen.processes, 36_000.0 if chosen.large else 1_200.0)
    wrong = [each for each in outcomes if not each.as_expected]
    for each in wrong:
        sys.stdout.write(f"\n{each.line}\n{each.output}\n")
    bugs = sum(each.world.bug != "none" for each in outcomes)
    states = sum(each.states for each in outcomes)
    sys.stdout.write(
        f"{len(outcomes) - bugs} worlds and {bugs} planted bugs, {states:,} states, "
        f"{time.monotonic() - began:.0f} s: {len(wrong)} not as they must be\n"
    )
    return 1 if wrong or not outcomes else 0


if __name__ == "__main__":
    sys.exit(main())
