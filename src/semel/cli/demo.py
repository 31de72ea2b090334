"""The command `semel demo`: real Spark, killed half-way; with semel and without."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from semel.cli.checks import Health
from semel.cli.doctor import check_java
from semel.cli.event_names import Parked, read_events
from semel.cli.options import opened
from semel.cli.output import show_table
from semel.cli.parked import list_parked
from semel.cli.resolve import resolve
from semel.errors import ConfigurationError
from semel.protocol import ParkedState
from semel.runtime import SystemClock
from semel.verify.demo import ChargeCounts, Demo, Unfinished, spark_home

EPILOG = "Example: semel demo --payments 200 --keep. Exit status 1 when it does not come out so."

Tell = Callable[[str], None]


def demo(
    payments: Annotated[
        int, typer.Option(min=100, max=2_000, help="How many payments are to be charged.")
    ] = 400,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder with ledger, checkpoints and logs.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Charge payments from real Spark, kill its workers and its driver, and count the charges.

    The same stream is delivered twice, side by side: with plain foreachBatch, and with semel. The
    destination is a process of its own that counts every charge. What semel holds in doubt after
    the kills is looked up and resolved, with the commands that a person would type.
    """
    _require_system()
    clock = SystemClock()
    began = clock.monotonic()
    try:
        plain, semel, in_doubt = _run(payments, keep=keep)
    except Unfinished as error:
        _console().print(f"semel: {error}")
        raise typer.Exit(1) from None
    counts = {"plain": asdict(plain), "semel": asdict(semel) | {"in_doubt": in_doubt}}
    if as_json:
        print(json.dumps(counts))
    else:
        _show(counts)
    _console().print(f"{payments} payments, in {clock.monotonic() - began:.0f} s")
    _judge(plain, semel)


def _require_system() -> None:
    """Refuse to start what cannot come to its end."""
    spark_home()
    java = check_java()
    if java.health is Health.MISSING:
        raise ConfigurationError(f"Java: {java.found}; {java.do}")
    if not Path("/proc/self/stat").exists():
        raise ConfigurationError(
            "semel demo finds the processes that it kills in /proc, and this system has none: run "
            "it on Linux or in a container"
        )


def _run(payments: int, *, keep: bool) -> tuple[ChargeCounts, ChargeCounts, int]:
    """Play it, and show it while it runs."""
    progress = Progress(
        TextColumn("{task.description:<5}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("charged, {task.fields[twice]} of them twice"),
        console=_console(),
    )
    bars = [progress.add_task(name, total=payments, twice=0) for name in ("plain", "semel")]

    def tell(text: str) -> None:
        progress.console.print(text)

    def show(*tallies: ChargeCounts) -> None:
        for bar, tally in zip(bars, tallies, strict=True):
            progress.update(bar, completed=tally.charged, twice=tally.twice)

    with progress, Demo(payments, tell, show, keep=keep) as played:
        try:
            played.deliver()
            in_doubt = _resolve_held(played, tell)
            return *played.finish(), in_doubt
        finally:
            if keep:
                tell(f"kept {played.folder}: semel status --ledger {played.ledger}")


def _console() -> Console:
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


# -- what is held


def _resolve_held(played: Demo, tell: Tell) -> int:
    """Decide each event that is in doubt, by looking; show how for the first. Say how many."""
    with opened(played.ledger) as (ledger, _):
        held = [each for each in read_events(ledger) if each.row.state is ParkedState.HELD]
    if not held:
        tell("semel holds nothing in doubt: no kill came between a charge and its answer")
        return 0
    tell(f"semel holds {len(held)} in doubt: the kill came between a charge and its answer, and")
    tell("only the destination knows whether it was made. What a person does:")
    _tell_typed(tell, ["export", f"SEMEL_LEDGER={played.ledger}"])
    listed = _typed(list_parked, ledger=played.ledger)
    _tell_typed(tell, ["semel", "parked", "ls"], listed)
    for number, event in enumerate(held):
        words, told = _decide(played, event)
        if number == 0:
            _tell_typed(tell, ["semel", "resolve", *words], told)
        else:
            tell(f"  {told.splitlines()[0]}")
    return len(held)


def _decide(played: Demo, event: Parked) -> tuple[list[str], str]:
    """Look one up at the destination and resolve it; give the words and what the command said."""
    assert isinstance(event.row.event, int)
    if played.was_charged(event.row.event):
        decision, reason = "delivered", "the charge server has it"
    else:
        decision, reason = "resend", "the charge server does not have it"
    words = [event.short, decision, "--reason", reason]
    return words, _typed(resolve, event.short, decision, reason, ledger=played.ledger)


def _typed(command: Callable[..., None], *words: str, **options: Any) -> str:
    """Do what the command does, and give what it says."""
    said = io.StringIO()
    with redirect_stdout(said):
        command(*words, **options)
    return said.getvalue()


def _tell_typed(tell: Tell, command: list[str], said: str = "") -> None:
    tell(f"  $ {shlex.join(command)}")
    for line in said.splitlines():
        tell(f"  {line.rstrip()}")


# -- how it came out


def _show(counts: dict[str, dict[str, int]]) -> None:
    names = ("charged once", "twice", "never", "in doubt")
    plain, semel = counts["plain"], counts["semel"]
    show_table(
        ("", *names),
        [
            ("plain foreachBatch", plain["once"], plain["twice"], plain["never"], "nobody knows"),
            ("semel", semel["once"], semel["twice"], semel["never"], semel["in_doubt"]),
        ],
        right=names,
    )
    if semel["in_doubt"]:
        print("in doubt: semel held them for a person, who looked each up at the destination")


def _judge(plain: ChargeCounts, semel: ChargeCounts) -> None:
    """Say what is wrong, if anything is."""
    wrong = []
    if semel.twice or semel.never:
        wrong.append(f"semel charged {semel.twice} payments twice and {semel.never} never")
    if not plain.twice:
        wrong.append("plain foreachBatch charged nothing twice, so the kills showed nothing")
    if wrong:
        _console().print(f"semel: {'; '.join(wrong)}")
        raise typer.Exit(1)
