"""The command `semel simulate`: the real protocol in thousands of simulated worlds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import JsonOption
from semel.cli.output import show_json

if TYPE_CHECKING:
    from rich.table import Table

    from semel.verify.simulator import Category, Summary, Tally, WorldResult

EPILOG = (
    "Example: semel simulate --worlds 20000 --seed 7. "
    "An invalid world is printed with its seed; --replay SEED prints it again."
)
TABLE_WIDTH = 120


def simulate(
    worlds: Annotated[int, typer.Option(min=1, help="How many worlds to run.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same worlds.")] = 7,
    processes: Annotated[
        int,
        typer.Option(min=0, help="The number of processes.", show_default="CPUs"),
    ] = os.cpu_count() or 1,
    as_json: JsonOption = False,
    replay: Annotated[
        int | None, typer.Option(metavar="SEED", help="Print the story of one world.")
    ] = None,
) -> None:
    """Run the delivery protocol against crashes, zombies, lost replies and lost checkpoints.

    Store, destinations, clock and cluster are simulated; the protocol is the real one. Every world
    is made from one seed and checked: nothing lost, nothing twice, nothing out of order, and no
    doubt that is not recorded. Exit status 1 when a world is invalid.
    """
    if replay is not None:
        _replay(replay, as_json=as_json)
        return
    summary = _run(worlds, seed, processes)
    if as_json:
        show_json(summary.to_json())
    else:
        _show(summary)
    if summary.total.invalid:
        _show_invalid(summary)
        raise typer.Exit(1)


def _run(worlds: int, seed: int, processes: int) -> Summary:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from semel.verify.simulator import run_worlds

    columns = (
        TextColumn("running worlds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("worlds", total=worlds)
        return run_worlds(worlds, seed, processes, lambda done: progress.advance(task, done))


def _show(summary: Summary) -> None:
    from rich.console import Console

    from semel.verify.simulator import Category

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
            f"{total.unknown} worlds are unknown: an event in them still waits, for a person or for"
            " the next minibatch of its log"
        )


def _categories() -> tuple[Category, ...]:
    from semel.verify.simulator import Category

    return (
        Category.DELIVERED,
        Category.LOST,
        Category.DUPLICATED,
        Category.REORDERED,
        Category.UNEXPECTED,
        Category.IN_DOUBT,
        Category.SLIPPED,
    )


def _table(summary: Summary) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("capability", "on doubt"):
        table.add_column(name)
    for name in ("worlds", *(each.value for each in _categories()), "unknown", "invalid"):
        table.add_column(name, justify="right")
    for (capability, policy), tally in sorted(summary.groups.items()):
        table.add_row(capability, policy, *_cells(tally))
    table.add_row("all", "", *_cells(summary.total), style="bold")
    return table


def _cells(tally: Tally) -> list[str]:
    counts = [str(tally.of(category)) for category in _categories()]
    return [str(tally.worlds), *counts, str(tally.unknown), str(tally.invalid)]


def _show_invalid(summary: Summary) -> None:
    """Print the story of the first invalid world, and the seeds of the others."""
    from rich.console import Console

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
    from semel.verify.simulator import run_world

    outcome = run_world(seed, with_story=True)
    if as_json:
        show_json(
            {
                "seed": outcome.seed,
                "verdict": outcome.verdict.value,
                "counts": outcome.counts,
                "violations": list(outcome.violations),
                "story": list(outcome.story),
            }
        )
    else:
        print("\n".join(_story(outcome)))
    if outcome.violations:
        raise typer.Exit(1)
