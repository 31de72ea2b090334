"""The command `semel chaos`: a Spark cluster and real servers under a seeded schedule of faults."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from semel.cli.demo import require_system
from semel.cli.options import JsonOption
from semel.cli.output import show_json, show_table

if TYPE_CHECKING:
    from rich.console import Console

    from semel.verify.chaos import ChaosReport

EPILOG = (
    "Example: semel chaos --minutes 15 --seed 1 --html chaos.html. It needs "
    "pip install 'semel[chaos]', Java, Linux, and the jars of a Kafka broker. Exit status 0: every "
    "event arrived once and in order; 1: something was lost, repeated or reordered, too much was "
    "in doubt, or the run did not end; 2: something that it needs is missing; 130 after Ctrl-C, "
    "143 after SIGTERM."
)
_SHOWN = 20


def chaos(
    minutes: Annotated[float, typer.Option(min=0.2, help="How long faults happen.")] = 15.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same schedule.")] = 1,
    liar: Annotated[
        bool,
        typer.Option("--liar", help="Deliver with plain foreachBatch, to see what is found then."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report with a timeline to a page.", show_default=False
        ),
    ] = None,
    kafka_jars: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The folder libs of an unpacked Kafka. In a checkout of semel Maven fetches it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Let faults happen to a Spark cluster and to real servers, and count what arrived.

    It starts a Spark master with two workers, two drivers (one is the standby), PostgreSQL for the
    ledger, and PostgreSQL, Redis, Kafka and an HTTP service as destinations, all on loopback. They
    are killed, stopped, cut off, slowed and filled up as the seed says. The destinations remember
    everything; at the end each event is looked up.
    """
    from semel.verify.chaos import ChaosRun, write_page

    require_system()
    signal.signal(signal.SIGTERM, _end)
    console = _console()
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("chaos"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[counts]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("chaos", total=minutes, counts="")

        def show(minute: float, counts: dict[str, int]) -> None:
            text = ", ".join(f"{count} {name}" for name, count in counts.items())
            progress.update(bar, completed=minute, counts=text)

        print_line = progress.console.print
        with ChaosRun(seed, minutes, print_line, show, liar=liar, kafka_jars=kafka_jars) as run:
            report = run.play()
    if html is not None:
        write_page(report, html)
    if as_json:
        show_json(report.to_json())
    else:
        _show(report)
    if report.verdict != "valid":
        raise typer.Exit(1)


def _end(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def _show(report: ChaosReport) -> None:
    rows = [
        (
            kind,
            found["happened"],
            found["not_possible"],
            found["recovery_median_s"],
            found["recovery_max_s"],
        )
        for kind, found in report.by_kind().items()
    ]
    times = ("happened", "not possible", "recovered after s", "longest s")
    show_table(("fault", *times), rows, right=times)
    print()
    names = ("delivered", "lost", "repeated", "reordered", "unexpected", "in_doubt", "pending")
    sinks = [(s.sink, s.capability, *(getattr(s, name) for name in names)) for s in report.sinks]
    headings = ("sink", "capability", *(name.replace("_", " ") for name in names))
    show_table(headings, sinks, right=headings[2:])
    print()
    for sink in report.sinks:
        for text in sink.violations[:_SHOWN]:
            print(f"{sink.sink}: {text}")
        if len(sink.violations) > _SHOWN:
            print(f"{sink.sink}: and {len(sink.violations) - _SHOWN} more")
    print(
        f"{report.verdict.value}: {report.events} events, {len(report.happened)} faults, "
        f"{report.total('lost')} lost, {report.total('repeated')} repeated, "
        f"{report.total('reordered')} reordered, {report.total('in_doubt')} were in doubt; "
        f"seed {report.seed}"
    )
