"""The command `semel verify-sink`: crashes a sink at every step and says what it earns."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from semel.cli.import_object import call, find
from semel.cli.output import plain, show_json, show_table
from semel.errors import ConfigurationError
from semel.sinks import Sink
from semel.verify.contract import (
    CASES,
    SEED,
    SETTLES_S,
    ContractCase,
    Earned,
    Finding,
    ForkServer,
    Maker,
    Result,
    Subject,
    Suite,
    earned,
)

EPILOG = (
    "Example: semel verify-sink payments:charge --arrived payments:arrived. MODULE is found as "
    "`python -m` would, the current directory first. SINK is a sink, or a function without "
    "arguments that returns one. Exit status: 0 earned; 1 not earned, or unknown; 2 a wrong "
    "command. docs/verify-sink.md tells how to write `arrived` and what each case does."
)

SHOWN = 3
"""How many findings of a case are told."""


def verify_sink(
    subject: Annotated[str, typer.Argument(metavar="MODULE:SINK", show_default=False)],
    *,
    arrived: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Gives the effects that happened, in order, as (entity, event id) pairs.",
            show_default=False,
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Makes the rows the sink needs of an Arrow table of customer, payment_id, amount "
            "and note.",
        ),
    ] = None,
    entity: Annotated[str, typer.Option(help="The entity's column.")] = "customer",
    event: Annotated[str, typer.Option(help="The event id's column.")] = "payment_id",
    reset: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Called once before the suite.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Play this case only; repeat it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="What is random comes from it.")] = SEED,
    settle: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="How long the destination may still work on a call whose caller was killed.",
        ),
    ] = SETTLES_S,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Crash a sink at every step and say whether it earns the capability that it claims.

    Real processes deliver to it and are killed, stopped, cut off and woken as zombies; then the
    next one replays the same minibatch to its end, and what arrived is compared with what is
    promised: nothing lost, nothing twice, nothing out of order. Unknown is not earned.
    """
    wanted = _chosen(case)
    with contextlib.redirect_stdout(sys.stderr):  # what the module prints is not our answer
        tested = _subject(subject, arrived, rows, Maker(entity, event), settle)
        if reset is not None:
            call(reset, find(reset))
        results = _run(tested, wanted, seed)
    said = [subject, "--arrived", arrived]
    for option, value in (("--rows", rows), ("--reset", reset)):
        said += [option, value] if value is not None else []
    if (entity, event) != ("customer", "payment_id"):
        said += ["--entity", entity, "--event", event]
    command = ["semel", "verify-sink", *said]
    if as_json:
        show_json(_json(tested, results, seed, command))
    else:
        _show(tested, results, seed, command)
    if not earned(results):
        raise typer.Exit(1)


# -- what is asked for


def _chosen(names: Sequence[str] | None) -> list[ContractCase]:
    known = {each.name: each for each in CASES}
    for name in names or ():
        if name not in known:
            raise ConfigurationError(f"there is no case {name!r}; there are {', '.join(known)}")
    return [each for each in CASES if not names or each.name in names]


def _subject(name: str, arrived: str, rows: str | None, maker: Maker, settles_s: float) -> Subject:
    found, verb = find(name), "is"
    if not isinstance(found, Sink) and callable(found):
        found, verb = call(name, found), "gives"
    if not isinstance(found, Sink):
        raise ConfigurationError(
            f"{name} {verb} {_kind(found)}, not a sink: write @semel.sink above a function, "
            "or give an instance of a subclass of semel.sinks.Sink"
        )
    if rows is not None:
        maker = Maker(maker.entity, maker.event, _callable(rows))
    maker.require()
    return Subject(name, found, _callable(arrived), maker, settles_s)


def _callable(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = find(name)
    if not callable(found):
        raise ConfigurationError(f"{name} is {_kind(found)}, not a function")
    return found


def _kind(found: object) -> str:
    """Say what something is: `a list`, `an int`, `None`."""
    if found is None:
        return "None"
    kind = type(found).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


# -- while it runs


def _run(subject: Subject, cases: Sequence[ContractCase], seed: int) -> list[Result]:
    progress = Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[wrong]}"),
        console=Console(stderr=True),
        transient=True,
    )
    with progress, ForkServer() as fork_server:
        suite = Suite(subject, fork_server, seed)
        bar = progress.add_task("starting", total=len(cases), wrong="")
        results: list[Result] = []
        for case in cases:
            progress.update(bar, description=case.name)
            results.append(suite.run(case))
            wrong = sum(result.earned in (Earned.NO, Earned.UNKNOWN) for result in results)
            progress.update(bar, advance=1, wrong=f"{wrong} not earned" if wrong else "")
        return suite.look_again(results)


# -- how it came out


def _again(command: Sequence[str], result: Result, seed: int) -> str:
    return shlex.join([*command, "--case", result.case, "--seed", str(seed)])


def _sentence(subject: Subject, results: Sequence[Result]) -> str:
    """Say what was shown, and nothing more."""
    capability = subject.sink.capability.name
    plays = sum(result.plays for result in results)
    if earned(results):
        doubts = sum(result.in_doubt for result in results)
        held = f", {doubts} held in doubt" if doubts else ""
        events = sum(result.events for result in results)
        shown = f"{events} events in {plays} plays, 0 lost, 0 duplicated, 0 out of order{held}"
        if _is_whole(results):
            return f"{subject.name} earns {capability}: {shown}"
        kept = sum(result.earned is Earned.YES for result in results)
        return f"{subject.name} kept {capability} in {kept} of the cases: {shown}"
    broken = [result.case for result in results if result.earned is Earned.NO]
    unknown = [result.case for result in results if result.earned is Earned.UNKNOWN]
    why = [f"broken in {', '.join(broken)}"] if broken else []
    why += [f"unknown in {', '.join(unknown)}"] if unknown else []
    return f"{subject.name} does not earn {capability}: {'; '.join(why) or 'nothing was played'}"


def _is_whole(results: Sequence[Result]) -> bool:
    return {case.name for case in CASES} == {result.case for result in results}


def _show(subject: Subject, results: Sequence[Result], seed: int, command: Sequence[str]) -> None:
    show_table(
        ("case", "what happens", "verdict", "plays", "in doubt", "s"),
        [
            (
                result.case,
                result.says,
                result.earned.value,
                result.plays,
                result.in_doubt,
                f"{result.seconds:.1f}",
            )
            for result in results
        ],
        right=("plays", "in doubt", "s"),
    )
    for result in results:
        if result.earned in (Earned.NO, Earned.UNKNOWN):
            print()
            for line in _told(result):
                print(plain(line))
            print(f"  again: {_again(command, result, seed)}")
        elif result.earned is Earned.NOTHING:
            print(f"{result.case} does not apply: {plain(result.findings[0].what[0])}")
    print()
    print(f"{_sentence(subject, results)} (seed {seed})")


def _told(result: Result) -> list[str]:
    lines = [f"{result.case}: {result.earned.value}"]
    for finding in result.findings[:SHOWN]:
        lines += _finding(finding)
    left = len(result.findings) - SHOWN
    return [*lines, f"  and {left} plays more"] if left > 0 else lines


def _finding(finding: Finding) -> list[str]:
    lines = [f"  {finding.play}"] if finding.play != "-" else []
    lines += [f"    {text}" for text in finding.what[:SHOWN]]
    left = len(finding.what) - SHOWN
    lines += [f"    and {left} more"] if left > 0 else []
    return [*lines, *(f"      {text}" for text in finding.story)]


def _json(
    subject: Subject, results: Sequence[Result], seed: int, command: Sequence[str]
) -> dict[str, Any]:
    return {
        "sink": subject.name,
        "capability": subject.sink.capability.value,
        "earned": earned(results),
        "complete": _is_whole(results),
        "seed": seed,
        "says": _sentence(subject, results),
        "cases": [
            {**result.to_json(), "again": _again(command, result, seed)} for result in results
        ],
    }
