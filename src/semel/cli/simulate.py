"""The command `semel simulate`: the real protocol in thousands of small worlds."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from semel.verify.simulator import Category, run_world, run_worlds

if TYPE_CHECKING:
    from semel.verify.simulator import Summary, Tally, WorldResult

EPILOG = (
    "Example: semel simulate --worlds 20000 --seed 7. "
    "An invalid world is told with its seed; semel simulate --replay SEED tells it again."
)
TABLE_WIDTH = 120
_COLUMNS = (
    Category.DELIVERED,
    Category.LOST,
    Category.DUPLICATED,
    Category.REORDERED,
    Category.UNEXPECTED,
    Category.IN_DOUBT,
    Category.SLIPPED,
)


def simulate(
    worlds: Annotated[int, typer.Option(min=1, help="How many worlds to play.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same worlds.")] = 7,
    processes: Annotated[
        int,
        typer.Option(min=0, help="Processes that share the work.", show_default="CPUs"),
    ] = os.cpu_count() or 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
    replay: Annotated[
        int | None, typer.Option(metavar="SEED", help="Tell the story of one world.")
    ] = None,
) -> None:
    """Play the delivery protocol against crashes, zombies, lost replies and lost checkpoints.

    Store, destinations, clock and cluster are simulated; the protocol is the real one. Every world
    is made from one seed and judged: nothing lost, nothing twice, nothing out of order, and no
    doubt that is not recorded. Exit status 1 when a world is invalid.
    """
    if replay is not None:
        _replay(replay, as_json=as_json)
        return
    summary = _run(worlds, seed, processes)
    if as_json:
        print(json.dumps(summary.to_json(), indent=2))
    else:
        console = Console()
        console.width = max(console.width, TABLE_WIDTH)
        console.print(_table(summary))
        total = summary.total
        print(
            f"{total.of(Category.LOST)} lost, {total.of(Category.DUPLICATED)} duplicated"
            f" in {total.worlds} worlds with {total.faults} faults"
        )
        if total.unknown:
            print(
                f"{total.unknown} worlds are unknown: something in them still waits, for a person"
                " or for the next minibatch of its log"
            )
    if summary.total.invalid:
        _tell(summary)
        raise typer.Exit(1)


def _run(worlds: int, seed: int, processes: int) -> Summary:
    console = Console(stderr=True)
    columns = (
        TextColumn("playing worlds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("worlds", total=worlds)
        return run_worlds(worlds, seed, processes, lambda done: progress.advance(task, done))


def _table(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("capability", "on doubt"):
        table.add_column(name)
    for name in ("worlds", *(category.value for category in _COLUMNS), "unknown", "invalid"):
        table.add_column(name, justify="right")
    for (capability, policy), tally in sorted(summary.groups.items()):
        table.add_row(capability, policy, *_cells(tally))
    table.add_row("all", "", *_cells(summary.total), style="bold")
    return table


def _cells(tally: Tally) -> list[str]:
    counts = [str(tally.of(category)) for category in _COLUMNS]
    return [str(tally.worlds), *counts, str(tally.unknown), str(tally.invalid)]


def _tell(summary: Summary) -> None:
    """Tell the first invalid world, and name the others."""
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    first, *others = summary.invalid
    for line in _story(first):
        console.print(line)
    for outcome in others:
        console.print(f"world {outcome.seed} is invalid too: {outcome.violations[0]}")


def _story(outcome: WorldResult) -> list[str]:
    case = outcome.case
    about = (
        f"world {outcome.seed}: {outcome.verdict.value}"
        f" ({case.variant.value}, on doubt {case.on_doubt.value}, on reject {case.on_reject.value},"
        f" identity {case.identities.value}, {case.partitions} partitions)"
    )
    again = f"replay it: semel simulate --replay {outcome.seed}"
    return [*outcome.story, "", about, *outcome.violations, again]


def _replay(seed: int, *, as_json: bool) -> None:
    outcome = run_world(seed, with_story=True)
    if as_json:
        found = {
            "seed": outcome.seed,
            "verdict": outcome.verdict.value,
            "counts": outcome.counts,
            "violations": list(outcome.violations),
            "story": list(outcome.story),
        }
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_story(outcome)))
    if outcome.violations:
        raise typer.Exit(1)
