"""The command `semel demo`: real Spark, killed half-way, with semel and without."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from semel.cli.options import opened
from semel.cli.output import show_table
from semel.cli.parked import list_parked, resolve
from semel.errors import ConfigurationError
from semel.runtime import SystemClock

if TYPE_CHECKING:
    from rich.console import Console

    from semel.operate import ParkedEvent
    from semel.verify.demo import ChargeCounts, Demo

EPILOG = (
    "Example: semel demo --payments 200 --keep. Exit status 1 when a payment is charged twice or "
    "never with semel, or the kills show no duplicate without it."
)

PrintLine = Callable[[str], None]
Parameters = ParamSpec("Parameters")


def demo(
    payments: Annotated[
        int, typer.Option(min=100, max=2_000, help="How many payments to charge.")
    ] = 400,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder with the ledger, checkpoints and logs.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Charge payments from real Spark, kill its workers and its driver, and count the charges.

    The same stream is delivered twice, side by side: with plain foreachBatch, and with semel. The
    destination is a separate process that counts every charge. The events that semel holds in doubt
    after the kills are looked up and resolved, with the commands that a person would type.
    """
    from semel.verify.demo import Unfinished

    require_system()
    clock = SystemClock()
    began = clock.monotonic()
    try:
        plain, semel, in_doubt = _run(payments, keep=keep)
    except Unfinished as error:
        _console().print(f"semel: {error}")
        raise typer.Exit(1) from None
    counts = {"plain": asdict(plain), "semel": asdict(semel) | {"in_doubt": in_doubt}}
    if as_json:
        from semel.events.encoding import ascii_json

        print(ascii_json(counts))
    else:
        _show(counts)
    _console().print(f"{payments} payments, in {clock.monotonic() - began:.0f} s")
    _check(plain, semel)


def require_system() -> None:
    """Refuse to start if Spark, Java or /proc is missing."""
    from semel.operate import Health, check_java
    from semel.verify.demo import spark_home

    spark_home()
    java = check_java()
    if java.health is Health.MISSING:
        raise ConfigurationError(f"Java: {java.found}; {java.do}")
    if not Path("/proc/self/stat").exists():
        raise ConfigurationError(
            "semel demo needs /proc to find the processes that it kills, and this system has none: "
            "run it on Linux or in a container"
        )


def _run(payments: int, *, keep: bool) -> tuple[ChargeCounts, ChargeCounts, int]:
    """Run the demo with a progress bar; return both tallies and how many events were in doubt."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from semel.verify.demo import Demo

    progress = Progress(
        TextColumn("{task.description:<5}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("charged, {task.fields[twice]} of them twice"),
        console=_console(),
    )
    bars = [progress.add_task(name, total=payments, twice=0) for name in ("plain", "semel")]

    def print_line(text: str) -> None:
        progress.console.print(text)

    def show(*tallies: ChargeCounts) -> None:
        for bar, tally in zip(bars, tallies, strict=True):
            progress.update(bar, completed=tally.charged, twice=tally.twice)

    with progress, Demo(payments, print_line, show, keep=keep) as played:
        try:
            played.deliver()
            in_doubt = _resolve_held(played, print_line)
            return *played.finish(), in_doubt
        finally:
            if keep:
                print_line(f"kept {played.folder}: semel status --ledger {played.ledger}")


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def _resolve_held(played: Demo, print_line: PrintLine) -> int:
    """Look up each event in doubt at the destination and resolve it; print the commands for the
    first. Return how many there were.
    """
    from semel.operate import read_parked_events
    from semel.protocol import ParkedState

    with opened(played.ledger) as ledger:
        events = read_parked_events(ledger).events
    held = [each for each in events if each.row.state is ParkedState.HELD]
    if not held:
        print_line("semel holds nothing in doubt: no kill came between a charge and its answer")
        return 0
    print_line(f"semel holds {len(held)} in doubt: the kill came between a charge and its answer,")
    print_line("and only the destination knows whether it was made. What a person does:")
    _print_command(print_line, ["export", f"SEMEL_LEDGER={played.ledger}"])
    listed = _run_command(list_parked, ledger=played.ledger)
    _print_command(print_line, ["semel", "parked", "ls"], listed)
    for number, event in enumerate(held):
        arguments, output = _decide(played, event)
        if number == 0:
            _print_command(print_line, ["semel", "resolve", *arguments], output)
        else:
            print_line(f"  {output.splitlines()[0]}")
    return len(held)


def _decide(played: Demo, event: ParkedEvent) -> tuple[list[str], str]:
    """Look up an event at the destination and resolve it; return the arguments and the output."""
    assert isinstance(event.row.event, int)
    if played.was_charged(event.row.event):
        decision, reason = "delivered", "the charge server has it"
    else:
        decision, reason = "resend", "the charge server does not have it"
    words = [event.short, decision]
    output = _run_command(resolve, words, reason, ledger=played.ledger)
    return [*words, "--reason", reason], output


def _run_command(
    command: Callable[Parameters, None], *arguments: Parameters.args, **options: Parameters.kwargs
) -> str:
    """Run a command in this process and return its output."""
    output = io.StringIO()
    with redirect_stdout(output):
        command(*arguments, **options)
    return output.getvalue()


def _print_command(print_line: PrintLine, command: list[str], output: str = "") -> None:
    print_line(f"  $ {shlex.join(command)}")
    for line in output.splitlines():
        print_line(f"  {line.rstrip()}")


def _show(counts: dict[str, dict[str, int]]) -> None:
    names = ("charged once", "twice", "never", "in doubt")
    plain, semel = counts["plain"], counts["semel"]
    show_table(
        ("", *names),
        [
            ("plain foreachBatch", plain["once"], plain["twice"], plain["never"], "unknown"),
            ("semel", semel["once"], semel["twice"], semel["never"], semel["in_doubt"]),
        ],
        right=names,
    )
    if semel["in_doubt"]:
        print("in doubt: held by semel until a person looked them up at the destination")


def _check(plain: ChargeCounts, semel: ChargeCounts) -> None:
    """Exit with 1 if the counts are not as promised."""
    wrong = []
    if semel.twice or semel.never:
        wrong.append(f"semel charged {semel.twice} payments twice and {semel.never} never")
    if not plain.twice:
        wrong.append("plain foreachBatch charged nothing twice, so the kills showed nothing")
    if wrong:
        _console().print(f"semel: {'; '.join(wrong)}")
        raise typer.Exit(1)
