"""The commands `semel verify-sink` and `verify-store` prove what a sink or a store claims."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import JsonOption
from semel.cli.output import plain, show_json, show_table
from semel.errors import ConfigurationError
from semel.ledger import open_store
from semel.ledger.store import Key
from semel.urls import redact

if TYPE_CHECKING:
    from semel.verify.contract import CaseResult, ContractCase, Finding, Maker, Subject
    from semel.verify.store_contract import StoreCase, StoreCaseResult

SINK_EPILOG = (
    "Example: semel verify-sink payments:charge --arrived payments:arrived. MODULE is found as "
    "`python -m` finds it, the current directory first. SINK is a sink, or a function without "
    "arguments that returns one. Exit status: 0 earned; 1 not earned, or unknown; 2 a wrong "
    "command. docs/verify-sink.md describes how to write `arrived` and what each case does."
)

SHOWN = 3
"""How many findings of a case are printed."""


def verify_sink(
    subject: Annotated[str, typer.Argument(metavar="MODULE:SINK", show_default=False)],
    *,
    arrived: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Returns the effects that happened, in order, as (entity, event id) pairs.",
            show_default=False,
        ),
    ],
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Makes the rows that the sink needs from an Arrow table of customer, payment_id, "
            "amount and note.",
        ),
    ] = None,
    entity: Annotated[str, typer.Option(help="The column of the entity.")] = "customer",
    event: Annotated[str, typer.Option(help="The column of the event id.")] = "payment_id",
    reset: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Called once before the suite.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this case; may be repeated.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The seed of random choices.", show_default="7")
    ] = None,
    settle: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="How long the destination may still work on a call whose caller was killed.",
            show_default="0.2",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Crash a sink at every step and check that it earns the capability that it claims.

    Real processes deliver to it and are killed, stopped, cut off and resumed as zombies. Then the
    next process replays the same minibatch to its end, and the effects are compared with the
    promise: nothing lost, nothing twice, nothing out of order. Unknown is not earned.
    """
    from semel.cli.options import call_object, find_object
    from semel.verify.contract import SEED, Maker, earned

    seed = SEED if seed is None else seed
    wanted = _choose_cases(case)
    with contextlib.redirect_stdout(sys.stderr):  # the module may print; the answer is ours alone
        tested = _subject(subject, arrived, rows, Maker(entity, event), settle)
        if reset is not None:
            call_object(reset, find_object(reset))
        results = _run(tested, wanted, seed)
    command = ["semel", "verify-sink", subject, "--arrived", arrived]
    command += _options({"--rows": rows, "--reset": reset})
    if (entity, event) != ("customer", "payment_id"):
        command += _options({"--entity": entity, "--event": event})
    if as_json:
        show_json(_to_json(tested, results, seed, command))
    else:
        _show(tested, results, seed, command)
    raise typer.Exit(0 if earned(results) else 1)


def _options(values: Mapping[str, str | None]) -> list[str]:
    """Return the options that were given, as a command has them."""
    given = ((name, value) for name, value in values.items() if value is not None)
    return [word for pair in given for word in pair]


def _choose_cases(names: Sequence[str] | None) -> list[ContractCase]:
    from semel.verify.contract import CASES

    known = {each.name: each for each in CASES}
    for name in names or ():
        if name not in known:
            raise ConfigurationError(f"there is no case {name!r}; use one of {', '.join(known)}")
    return [each for each in CASES if not names or each.name in names]


def _subject(
    name: str, arrived: str, rows: str | None, maker: Maker, settle: float | None
) -> Subject:
    from semel.cli.options import call_object, find_object
    from semel.sinks import Sink
    from semel.verify.contract import SETTLES_S, Maker, Subject

    settles_s = SETTLES_S if settle is None else settle

    found, verb = find_object(name), "is"
    if not isinstance(found, Sink) and callable(found):
        found, verb = call_object(name, found), "returns"
    if not isinstance(found, Sink):
        raise ConfigurationError(
            f"{name} {verb} {_kind(found)}, not a sink: decorate a function with @semel.sink, or "
            "pass an instance of a subclass of semel.sinks.Sink"
        )
    if rows is not None:
        maker = Maker(maker.entity, maker.event, _callable(rows))
    maker.require()
    return Subject(name, found, _callable(arrived), maker, settles_s)


def _callable(name: str) -> Callable[..., Any]:
    from semel.cli.options import find_object

    found: Callable[..., Any] = find_object(name)
    if not callable(found):
        raise ConfigurationError(f"{name} is {_kind(found)}, not a function")
    return found


def _kind(found: object) -> str:
    """Return the type in words: `a list`, `an int`, `None`."""
    if found is None:
        return "None"
    kind = type(found).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _run(subject: Subject, cases: Sequence[ContractCase], seed: int) -> list[CaseResult]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from semel.verify.contract import Earned, ForkServer, Suite

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
        results: list[CaseResult] = []
        for case in cases:
            progress.update(bar, description=case.name)
            results.append(suite.run(case))
            wrong = sum(result.earned in (Earned.NO, Earned.UNKNOWN) for result in results)
            progress.update(bar, advance=1, wrong=f"{wrong} not earned" if wrong else "")
        return suite.look_again(results)


def _repeat_command(command: Sequence[str], result: CaseResult, seed: int) -> str:
    return shlex.join([*command, "--case", result.case, "--seed", str(seed)])


def _sentence(subject: Subject, results: Sequence[CaseResult]) -> str:
    """Return the result in one sentence."""
    from semel.verify.contract import Earned, earned

    capability = subject.sink.capability.name
    plays = sum(result.plays for result in results)
    if earned(results):
        doubts = sum(result.in_doubt for result in results)
        held = f", {doubts} held in doubt" if doubts else ""
        events = sum(result.events for result in results)
        shown = f"{events} events in {plays} plays, 0 lost, 0 duplicated, 0 out of order{held}"
        if _is_complete(results):
            return f"{subject.name} earns {capability}: {shown}"
        kept = sum(result.earned is Earned.YES for result in results)
        return f"{subject.name} kept {capability} in {kept} of the cases: {shown}"
    broken = [result.case for result in results if result.earned is Earned.NO]
    unknown = [result.case for result in results if result.earned is Earned.UNKNOWN]
    why = [f"broken in {', '.join(broken)}"] if broken else []
    why += [f"unknown in {', '.join(unknown)}"] if unknown else []
    return f"{subject.name} does not earn {capability}: {'; '.join(why) or 'no case was run'}"


def _is_complete(results: Sequence[CaseResult]) -> bool:
    """Whether every case was run."""
    from semel.verify.contract import CASES

    return {case.name for case in CASES} == {result.case for result in results}


def _show(
    subject: Subject, results: Sequence[CaseResult], seed: int, command: Sequence[str]
) -> None:
    from semel.verify.contract import Earned

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
            for line in _lines_of(result):
                print(plain(line))
            print(f"  again: {_repeat_command(command, result, seed)}")
        elif result.earned is Earned.NOTHING:
            print(f"{result.case} does not apply: {plain(result.findings[0].what[0])}")
    print()
    print(f"{_sentence(subject, results)} (seed {seed})")


def _lines_of(result: CaseResult) -> list[str]:
    lines = [f"{result.case}: {result.earned.value}"]
    for finding in result.findings[:SHOWN]:
        lines += _lines_of_finding(finding)
    left = len(result.findings) - SHOWN
    return [*lines, f"  and {left} more plays"] if left > 0 else lines


def _lines_of_finding(finding: Finding) -> list[str]:
    lines = [f"  {finding.play}"] if finding.play != "-" else []
    lines += [f"    {text}" for text in finding.what[:SHOWN]]
    left = len(finding.what) - SHOWN
    lines += [f"    and {left} more"] if left > 0 else []
    return [*lines, *(f"      {text}" for text in finding.story)]


def _to_json(
    subject: Subject, results: Sequence[CaseResult], seed: int, command: Sequence[str]
) -> dict[str, Any]:
    from semel.verify.contract import earned

    return {
        "sink": subject.name,
        "capability": subject.sink.capability.value,
        "earned": earned(results),
        "complete": _is_complete(results),
        "seed": seed,
        "says": _sentence(subject, results),
        "cases": [
            {**result.to_json(), "again": _repeat_command(command, result, seed)}
            for result in results
        ],
    }


# -- stores

STORE_EPILOG = (
    "Example: semel verify-store sqlite:///scratch.db. Exit status: 0 every case is ok; 1 a case "
    "failed; 2 a wrong command or URL; 3 the store cannot be reached. docs/own-store.md describes "
    "how to write and register a store."
)


def verify_store(
    url: Annotated[str, typer.Argument(metavar="URL", show_default=False)],
    *,
    case: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run this case only; repeat it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of a table.")
    ] = False,
) -> None:
    """Check that a store does what every store of a ledger must do.

    Each case writes rows of its own inside the ledger's table, under names that no pipeline uses,
    and removes them at its end. A ledger that is not there yet is created, as a first run does.
    """
    chosen = _choose_store_cases(case)
    store = open_store(url)
    try:
        store.read([Key("verify", "reachable")])
    finally:
        store.close()
    results = _run_store_cases(url, chosen)
    if as_json:
        show_json(_store_to_json(url, results))
    else:
        _show_store(url, results)
    if not all(result.ok for result in results):
        raise typer.Exit(1)


def _choose_store_cases(names: Sequence[str] | None) -> list[StoreCase]:
    from semel.verify.store_contract import CASES

    known = {each.name: each for each in CASES}
    for name in names or ():
        if name not in known:
            raise ConfigurationError(f"unknown case {name!r}; use one of {', '.join(known)}")
    return [each for each in CASES if not names or each.name in names]


def _run_store_cases(url: str, cases: Sequence[StoreCase]) -> list[StoreCaseResult]:
    """Run the cases one after the other, with a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from semel.verify.store_contract import run_case

    progress = Progress(
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    results = []
    with progress:
        bar = progress.add_task("starting", total=len(cases))
        for case in cases:
            progress.update(bar, description=case.name)
            results.append(run_case(case, partial(open_store, url)))
            progress.update(bar, advance=1)
    return results


def _show_store(url: str, results: Sequence[StoreCaseResult]) -> None:
    show_table(
        ("case", "what must hold", "verdict", "s"),
        [(each.case, each.says, each.verdict, f"{each.seconds:.1f}") for each in results],
        right=("s",),
    )
    failed = [each for each in results if not each.ok]
    for each in failed:
        print(f"\n{each.case}: {plain(each.finding)}")
    print()
    if failed:
        print(f"{redact(url)} failed {len(failed)} of {len(results)} cases")
    else:
        print(f"{redact(url)} passed {len(results)} cases")


def _store_to_json(url: str, results: Sequence[StoreCaseResult]) -> dict[str, Any]:
    from semel.verify.store_contract import CASES

    return {
        "store": redact(url),
        "ok": all(each.ok for each in results),
        "complete": len(results) == len(CASES),
        "cases": [
            {
                "case": each.case,
                "says": each.says,
                "verdict": each.verdict,
                "finding": each.finding or None,
                "seconds": round(each.seconds, 3),
            }
            for each in results
        ],
    }
